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

/// Division by a number known beforehand, of numbers from 0 to 2^31 - 1: a multiplication and a
/// shift, where a GPU's division takes some thirty instructions. Granlund & Montgomery 1994.
class Divisor {
 public:
  constexpr explicit Divisor(std::uint32_t value = 1) : value_(value) {
    while ((std::uint64_t{1} << (shift_ - 31)) < value) ++shift_;
    magic_ = static_cast<std::uint32_t>(((std::uint64_t{1} << shift_) + value - 1) / value);
  }

  FOVEAL_HOST_DEVICE constexpr std::int32_t quotient(std::int32_t number) const {
    return static_cast<std::int32_t>(
        (static_cast<std::uint64_t>(static_cast<std::uint32_t>(number)) * magic_) >> shift_);
  }
  FOVEAL_HOST_DEVICE constexpr std::int32_t remainder(std::int32_t number) const {
    return number - quotient(number) * static_cast<std::int32_t>(value_);
  }

 private:
  std::uint32_t value_;
  std::uint32_t magic_ = 0;
  std::uint32_t shift_ = 31;
};

/// a * b into `product`; false where it leaves 64 bits.
constexpr bool multiply_checked(std::int64_t a, std::int64_t b, std::int64_t& product) {
  return !__builtin_mul_overflow(a, b, &product);
}

/// a + b into `sum`; false where it leaves 64 bits.
constexpr bool add_checked(std::int64_t a, std::int64_t b, std::int64_t& sum) {
  return !__builtin_add_overflow(a, b, &sum);
}

}  // namespace foveal
