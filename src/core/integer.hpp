// Integer arithmetic that the rooms share.
#pragma once

#include <cstdint>
#include <limits>

#include "core/host_device.hpp"

namespace foveal {

template <class Integer>
FOVEAL_HOST_DEVICE constexpr Integer ceil_div(Integer value, Integer divisor) {
  return (value + divisor - 1) / divisor;
}

template <class Integer>
FOVEAL_HOST_DEVICE constexpr Integer round_up(Integer value, Integer multiple) {
  return ceil_div(value, multiple) * multiple;
}

template <class Integer>
FOVEAL_HOST_DEVICE constexpr Integer min_of(Integer a, Integer b) {
  return b < a ? b : a;
}

template <class Integer>
FOVEAL_HOST_DEVICE constexpr Integer max_of(Integer a, Integer b) {
  return a < b ? b : a;
}

template <class Integer>
FOVEAL_HOST_DEVICE constexpr Integer clamp_to(Integer value, Integer low, Integer high) {
  return max_of(low, min_of(value, high));
}

/// Largest multiple of `divisor` not above `value`, over `divisor`; right for negative values too.
FOVEAL_HOST_DEVICE constexpr std::int64_t floor_div(std::int64_t value, std::int64_t divisor) {
  return value >= 0 ? value / divisor : -((-value + divisor - 1) / divisor);
}

/// a * b into `product`; false where it leaves 64 bits.
constexpr bool multiply_checked(std::int64_t a, std::int64_t b, std::int64_t& product) {
  return !__builtin_mul_overflow(a, b, &product);
}

/// a + b into `sum`; false where it leaves 64 bits.
constexpr bool add_checked(std::int64_t a, std::int64_t b, std::int64_t& sum) {
  return !__builtin_add_overflow(a, b, &sum);
}

}  // namespace foveal
