#include "reference/operand_reader.hpp"

#include <cstring>

#include "core/half.hpp"
#include "core/host_device.hpp"

namespace foveal::reference {
namespace {

/// Through memcpy: the data may begin at any byte.
template <class T>
T load(const std::byte* address) {
  T value;
  std::memcpy(&value, address, sizeof value);
  return value;
}

}  // namespace

OperandReader::OperandReader(const TensorSpec& spec, const void* data)
    : spec_(spec), data_(static_cast<const std::byte*>(data)) {}

std::int64_t OperandReader::offset(std::span<const std::int64_t> index) const {
  FOVEAL_ASSERT(static_cast<int>(index.size()) == spec_.rank);
  std::int64_t sum = 0;
  for (std::size_t axis = 0; axis < index.size(); ++axis) {
    FOVEAL_ASSERT(0 <= index[axis] && index[axis] < spec_.shape[axis]);
    sum += index[axis] * spec_.strides[axis];
  }
  return sum;
}

double OperandReader::element(std::int64_t offset) const {
  const std::byte* address = data_ + offset * dtype_bytes(spec_.dtype);
  switch (spec_.dtype) {
    case DType::kNone: return 0.0;
    case DType::kFloat16: return to_float(load<Half>(address));
    case DType::kBFloat16: return to_float(load<BFloat16>(address));
    case DType::kFloat32: return load<float>(address);
    case DType::kInt32: return load<std::int32_t>(address);
    case DType::kBool: return load<std::uint8_t>(address) != 0 ? 1.0 : 0.0;
  }
  return 0.0;
}

double OperandReader::broadcast_at(std::array<std::int64_t, TensorSpec::kMaxRank> index) const {
  for (std::size_t axis = 0; axis < index.size(); ++axis) {
    if (spec_.shape[axis] == 1) index[axis] = 0;
  }
  return element(offset(index));
}

void OperandReader::read_vector(std::int64_t batch, std::int64_t row, std::int64_t head,
                                std::span<double> values) const {
  if (values.empty()) return;
  const std::int64_t base = rank() == 3 ? offset(std::array<std::int64_t, 3>{row, head, 0})
                                        : offset(std::array<std::int64_t, 4>{batch, row, head, 0});
  const std::int64_t stride = spec_.strides[static_cast<std::size_t>(rank() - 1)];
  for (std::size_t d = 0; d < values.size(); ++d) {
    values[d] = element(base + static_cast<std::int64_t>(d) * stride);
  }
}

double OperandReader::at_row(std::int64_t batch, std::int64_t head, std::int64_t row) const {
  return rank() == 2 ? at(head, row) : at(batch, head, row);
}

}  // namespace foveal::reference
