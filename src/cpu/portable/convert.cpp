#include <bit>
#include <cstring>

#include "core/half.hpp"
#include "cpu/portable/functions.hpp"
#include "cpu/portable/lanes.hpp"

namespace foveal::cpu::portable {
namespace {

using Uint4 = std::uint32_t __attribute__((vector_size(16)));
using Ushort4 = std::uint16_t __attribute__((vector_size(8)));

/// to_float(Half) without a branch: exponent and mantissa moved up, times 2^112; where the exponent
/// was all ones it becomes all ones again.
Float4 half_lanes(Ushort4 half) {
  const Uint4 bits = __builtin_convertvector(half, Uint4);
  const Uint4 sign = (bits & 0x8000u) << 16;
  const Uint4 magnitude = (bits & 0x7fffu) << 13;
  const Uint4 scaled = std::bit_cast<Uint4>(std::bit_cast<Float4>(magnitude) * 0x1p112f);
  const Int4 not_finite = std::bit_cast<Int4>(magnitude) >= 0x7c00 << 13;
  return std::bit_cast<Float4>(sign | scaled | (std::bit_cast<Uint4>(not_finite) & 0x7f800000u));
}

template <class T>
void store_elements(const float* from, std::int64_t count, std::byte* to) {
  for (std::int64_t j = 0; j < count; ++j) {
    const T element = from_float<T>(from[j]);
    std::memcpy(to + j * static_cast<std::int64_t>(sizeof element), &element, sizeof element);
  }
}

}  // namespace

void load_fp16(const std::byte* from, std::int64_t count, float* to) {
  std::int64_t j = 0;
  for (; j + kVector <= count; j += kVector) {
    Ushort4 half;
    std::memcpy(&half, from + j * 2, sizeof half);
    store(half_lanes(half), to + j);
  }
  for (; j < count; ++j) {
    Half half;
    std::memcpy(&half, from + j * 2, sizeof half);
    to[j] = to_float(half);
  }
}

void load_bf16(const std::byte* from, std::int64_t count, float* to) {
  for (std::int64_t j = 0; j < count; ++j) {
    BFloat16 element;
    std::memcpy(&element, from + j * 2, sizeof element);
    to[j] = to_float(element);
  }
}

void store_fp16(const float* from, std::int64_t count, std::byte* to) {
  store_elements<Half>(from, count, to);
}

void store_bf16(const float* from, std::int64_t count, std::byte* to) {
  store_elements<BFloat16>(from, count, to);
}

}  // namespace foveal::cpu::portable
