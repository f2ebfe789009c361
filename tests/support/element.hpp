// Reading and writing single elements of any dtype through a TensorSpec.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include <foveal/tensor.hpp>

#include "core/half.hpp"

namespace foveal::test {

/// Coordinates in the order of the spec's dimensions; those past its rank are 0.
using Index = std::array<std::int64_t, TensorSpec::kMaxRank>;

/// Offset of an element from the view's first one, in elements.
[[nodiscard]] inline std::int64_t offset_of(const TensorSpec& spec, const Index& index) {
  std::int64_t offset = 0;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(spec.rank); ++axis) {
    offset += index[axis] * spec.strides[axis];
  }
  return offset;
}

/// First and last element of a view that has elements, as offsets from its element 0.
[[nodiscard]] inline std::pair<std::int64_t, std::int64_t> reach(const TensorSpec& spec) {
  std::int64_t low = 0;
  std::int64_t high = 0;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(spec.rank); ++axis) {
    const std::int64_t far = (spec.shape[axis] - 1) * spec.strides[axis];
    low += far < 0 ? far : 0;
    high += far > 0 ? far : 0;
  }
  return {low, high};
}

/// `function(index)` for every element in row-major order.
template <class Function>
void for_each_index(const TensorSpec& spec, Function&& function) {
  if (spec.numel() == 0) return;
  Index index{};
  for (;;) {
    function(static_cast<const Index&>(index));
    int axis = spec.rank - 1;
    for (; axis >= 0; --axis) {
      const auto i = static_cast<std::size_t>(axis);
      if (++index[i] < spec.shape[i]) break;
      index[i] = 0;
    }
    if (axis < 0) return;
  }
}

template <class T>
[[nodiscard]] T load_as(const void* data, std::int64_t offset) {
  T value;
  std::memcpy(&value,
              static_cast<const std::byte*>(data) + offset * static_cast<std::int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

template <class T>
void store_as(void* data, std::int64_t offset, T value) {
  std::memcpy(static_cast<std::byte*>(data) + offset * static_cast<std::int64_t>(sizeof(T)), &value,
              sizeof(T));
}

[[nodiscard]] inline double load_element(DType dtype, const void* data, std::int64_t offset) {
  switch (dtype) {
    case DType::kFloat16: return static_cast<double>(to_float(load_as<Half>(data, offset)));
    case DType::kBFloat16: return static_cast<double>(to_float(load_as<BFloat16>(data, offset)));
    case DType::kFloat32: return static_cast<double>(load_as<float>(data, offset));
    case DType::kInt32: return static_cast<double>(load_as<std::int32_t>(data, offset));
    case DType::kBool: return load_as<std::uint8_t>(data, offset) != 0 ? 1.0 : 0.0;
    case DType::kNone: break;
  }
  return 0;
}

/// Rounds to nearest even; whole numbers for kInt32, 0 or 1 for kBool.
inline void store_element(DType dtype, void* data, std::int64_t offset, double value) {
  const auto single = static_cast<float>(value);
  switch (dtype) {
    case DType::kFloat16: return store_as(data, offset, from_float<Half>(single));
    case DType::kBFloat16: return store_as(data, offset, from_float<BFloat16>(single));
    case DType::kFloat32: return store_as(data, offset, single);
    case DType::kInt32: return store_as(data, offset, static_cast<std::int32_t>(value));
    case DType::kBool: return store_as(data, offset, static_cast<std::uint8_t>(value != 0 ? 1 : 0));
    case DType::kNone: break;
  }
}

/// What a value becomes when it is stored as `dtype`.
[[nodiscard]] inline float round_to(DType dtype, float value) {
  switch (dtype) {
    case DType::kFloat16: return to_float(from_float<Half>(value));
    case DType::kBFloat16: return to_float(from_float<BFloat16>(value));
    default: return value;
  }
}

/// Half the distance between neighbours of `dtype` around a value: what rounding it once costs.
[[nodiscard]] double half_ulp(DType dtype, double value);

}  // namespace foveal::test
