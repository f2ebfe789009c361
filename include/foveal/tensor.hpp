// What a tensor looks like, without its data: element type, shape and strides in elements.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include <foveal/export.h>

namespace foveal {

/// Element types. kNone marks an absent operand. kBool is one byte, 0 or not 0.
enum class DType : std::int32_t {
  kNone = 0,
  kFloat16 = 1,
  kBFloat16 = 2,
  kFloat32 = 3,
  kInt32 = 4,
  kBool = 5,
};

/// Bytes of one element; 0 for kNone.
[[nodiscard]] constexpr std::int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kNone: return 0;
    case DType::kFloat16: return 2;
    case DType::kBFloat16: return 2;
    case DType::kFloat32: return 4;
    case DType::kInt32: return 4;
    case DType::kBool: return 1;
  }
  return 0;
}

/// "fp16", "bf16", "fp32", "int32", "bool"; "none" for an absent operand.
[[nodiscard]] constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kNone: return "none";
    case DType::kFloat16: return "fp16";
    case DType::kBFloat16: return "bf16";
    case DType::kFloat32: return "fp32";
    case DType::kInt32: return "int32";
    case DType::kBool: return "bool";
  }
  return "unknown";
}

/// A view's description. Dimensions are in the order that problem.hpp gives for each operand
/// (`[batch, seqlen, heads, dim]`, packed `[total, heads, dim]`); any other order in memory is a
/// matter of strides. Strides count elements, may be 0 (expanded) or negative.
struct TensorSpec {
  static constexpr int kMaxRank = 4;

  DType dtype = DType::kNone;
  std::int32_t rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};

  /// Row-major without gaps.
  FOVEAL_API static TensorSpec contiguous(DType dtype, std::initializer_list<std::int64_t> shape);
  /// Any strides; `shape` and `strides` have the same length, at most kMaxRank.
  FOVEAL_API static TensorSpec strided(DType dtype, std::initializer_list<std::int64_t> shape,
                                       std::initializer_list<std::int64_t> strides);
  /// `[batch, seqlen, heads, dim]` described in that order, lying in memory as BHSD without gaps.
  FOVEAL_API static TensorSpec bhsd(DType dtype, std::int64_t batch, std::int64_t seqlen,
                                    std::int64_t heads, std::int64_t dim);

  [[nodiscard]] bool present() const { return dtype != DType::kNone; }
  /// Product of the shape; 0 for an absent operand.
  [[nodiscard]] FOVEAL_API std::int64_t numel() const;
  /// `fp16 [2, 128, 16, 64] strides [131072, 1024, 64, 1]`, for messages and `explain`.
  [[nodiscard]] FOVEAL_API std::string to_string() const;

  bool operator==(const TensorSpec&) const = default;
};

}  // namespace foveal
