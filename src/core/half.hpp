// fp16 and bf16 as storage types for host code: bits, and conversions that round to nearest even.
#pragma once

#include <bit>
#include <cstdint>

namespace foveal {

/// IEEE binary16.
struct Half {
  std::uint16_t bits;
};

/// The upper half of an IEEE binary32.
struct BFloat16 {
  std::uint16_t bits;
};

[[nodiscard]] constexpr float to_float(float value) { return value; }

[[nodiscard]] constexpr float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

[[nodiscard]] constexpr float to_float(Half value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // inf, NaN: the payload moves up
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  // Exponent and mantissa moved up stand for value * 2^-112, subnormals included; the product with
  // 2^112 is exact.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}

template <class T>
[[nodiscard]] constexpr T from_float(float value);

template <>
[[nodiscard]] constexpr float from_float<float>(float value) {
  return value;
}

template <>
[[nodiscard]] constexpr BFloat16 from_float<BFloat16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {  // NaN stays a quiet NaN
    return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  }
  const std::uint32_t round_to_even = 0x7fffu + ((bits >> 16) & 1u);
  return {static_cast<std::uint16_t>((bits + round_to_even) >> 16)};
}

template <>
[[nodiscard]] constexpr Half from_float<Half>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN: upper payload bits, quiet
    return {static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu))};
  }
  if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    return {static_cast<std::uint16_t>(sign | 0x7c00u)};
  }
  if (magnitude < 0x38800000u) {  // below 2^-14: let the adder round at 2^-24
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<std::uint16_t>(
        sign | (std::bit_cast<std::uint32_t>(aligned) - std::bit_cast<std::uint32_t>(0.5f)))};
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

}  // namespace foveal
