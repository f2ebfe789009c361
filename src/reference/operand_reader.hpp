// Operands as the oracle reads them: any dtype, strides and alignment, one element at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <foveal/tensor.hpp>

namespace foveal::reference {

class OperandReader {
 public:
  OperandReader() = default;  ///< An absent operand.
  OperandReader(const TensorSpec& spec, const void* data);

  [[nodiscard]] bool present() const { return spec_.present(); }
  [[nodiscard]] std::int64_t extent(int axis) const {
    return spec_.shape[static_cast<std::size_t>(axis)];
  }
  [[nodiscard]] int rank() const { return spec_.rank; }
  [[nodiscard]] DType dtype() const { return spec_.dtype; }
  [[nodiscard]] std::int64_t numel() const { return spec_.numel(); }

  /// The element at an index as long as the rank. A kBool is 0 or 1.
  template <class... Index>
  [[nodiscard]] double at(Index... index) const {
    return element(offset(std::array<std::int64_t, sizeof...(index)>{index...}));
  }
  /// The same of a kInt32.
  template <class... Index>
  [[nodiscard]] std::int64_t integer_at(Index... index) const {
    return static_cast<std::int64_t>(at(index...));
  }
  /// Of an operand whose axes of extent 1 stand for any index.
  [[nodiscard]] double broadcast_at(std::array<std::int64_t, TensorSpec::kMaxRank> index) const;

  /// The last axis at [batch, row, head], or at [row, head] of a packed operand, where rows count
  /// over all sequences and `batch` has no meaning. `values` has that axis' extent.
  void read_vector(std::int64_t batch, std::int64_t row, std::int64_t head,
                   std::span<double> values) const;
  /// lse and dlse: the element at [batch, head, row], or at [head, row] of a packed one.
  [[nodiscard]] double at_row(std::int64_t batch, std::int64_t head, std::int64_t row) const;

 private:
  [[nodiscard]] std::int64_t offset(std::span<const std::int64_t> index) const;
  [[nodiscard]] double element(std::int64_t offset) const;

  TensorSpec spec_;
  const std::byte* data_ = nullptr;
};

}  // namespace foveal::reference
