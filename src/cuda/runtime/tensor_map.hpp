// How the copy engine is told of a tensor: a value that travels among a kernel's parameters.
#pragma once

#include <array>
#include <cstdint>

#include <foveal/status.hpp>
#include <foveal/tensor.hpp>

namespace foveal::cuda {

/// The driver's CUtensorMap, opaque.
struct alignas(64) TensorMap {
  std::uint64_t words[16];
};

/// A tensor of 16-bit elements in four dimensions, the first with adjacent elements, and the boxes
/// that are copied of it, one wide in the last two.
struct TensorMapShape {
  const void* data = nullptr;             ///< A multiple of 16 bytes.
  std::array<std::int64_t, 4> extents{};  ///< At least 1.
  std::array<std::int64_t, 3> strides{};  ///< In elements, of dimensions 1 to 3: multiples of 8.
  std::int32_t box_columns = 0;           ///< 64, 32 or 16: rows of 128 to 32 bytes, swizzled so.
  std::int32_t box_rows = 0;
};

/// Asks the driver. No device work; may be called while a stream is captured.
[[nodiscard]] Status encode_tensor_map(const TensorMapShape& shape, TensorMap& map);

}  // namespace foveal::cuda
