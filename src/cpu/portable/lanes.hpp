// Four-lane vectors of the compiler's own: GCC and clang lower them to SSE2, NEON or scalar code,
// so that the portable table's speed doesn't hang on what an optimiser recognises.
#pragma once

#include <cstdint>
#include <cstring>

namespace foveal::cpu::portable {

using Float4 = float __attribute__((vector_size(16)));
using Int4 = std::int32_t __attribute__((vector_size(16)));

constexpr std::int64_t kVector = 4;

inline Float4 load(const float* from) {
  Float4 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline void store(Float4 value, float* to) { std::memcpy(to, &value, sizeof value); }

inline Float4 broadcast(float value) { return Float4{value, value, value, value}; }

inline float horizontal_sum(Float4 value) { return (value[0] + value[2]) + (value[1] + value[3]); }

inline float horizontal_max(Float4 value) {
  const float low = value[0] > value[1] ? value[0] : value[1];
  const float high = value[2] > value[3] ? value[2] : value[3];
  return low > high ? low : high;
}

}  // namespace foveal::cpu::portable
