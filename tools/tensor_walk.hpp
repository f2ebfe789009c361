// Visits the elements of a view in row-major order.
#pragma once

#include <array>
#include <cstdint>

#include <foveal/tensor.hpp>

namespace foveal::tools {

/// Calls `visit(index, offset)` for every element: its place in row-major order of the shape, and
/// its distance from the first element by the strides.
template <class Visitor>
void for_each_element(const TensorSpec& spec, const Visitor& visit) {
  if (spec.numel() == 0) return;
  std::array<std::int64_t, TensorSpec::kMaxRank> shape{1, 1, 1, 1};
  std::array<std::int64_t, TensorSpec::kMaxRank> strides{};
  const std::int32_t unused = TensorSpec::kMaxRank - spec.rank;
  for (std::int32_t axis = 0; axis < spec.rank; ++axis) {
    shape[static_cast<std::size_t>(unused + axis)] = spec.shape[static_cast<std::size_t>(axis)];
    strides[static_cast<std::size_t>(unused + axis)] = spec.strides[static_cast<std::size_t>(axis)];
  }
  std::int64_t index = 0;
  for (std::int64_t a = 0; a < shape[0]; ++a) {
    for (std::int64_t b = 0; b < shape[1]; ++b) {
      for (std::int64_t c = 0; c < shape[2]; ++c) {
        const std::int64_t row = a * strides[0] + b * strides[1] + c * strides[2];
        for (std::int64_t d = 0; d < shape[3]; ++d) visit(index++, row + d * strides[3]);
      }
    }
  }
}

}  // namespace foveal::tools
