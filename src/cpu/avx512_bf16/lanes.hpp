// Vectors of 16 fp32 and of 16 pairs of bf16, for the files of this folder, all of which are
// compiled for AVX512-BF16 and called only where the processor has it.
#pragma once

// GCC 12 takes its own undefined vectors for a mistake (GCC bug 105593).
#pragma GCC diagnostic push
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

#include <hwy/highway.h>

#include "cpu/tile_math.hpp"

/// Between these two every function is compiled for the set; headers are included before.
#define FOVEAL_BEGIN_AVX512_BF16 \
  HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")
#define FOVEAL_END_AVX512_BF16 HWY_POP_ATTRIBUTES

FOVEAL_BEGIN_AVX512_BF16
namespace foveal::cpu::avx512_bf16 {

using Floats = __m512;
using Pairs = __m512bh;

/// Slots of a vector.
inline constexpr std::int64_t kVector = 16;

HWY_INLINE Pairs as_pairs(__m512i bits) { return (__m512bh)bits; }

/// 16 slots of an operand at any alignment.
HWY_INLINE __m512i load_slots(const void* operand, std::int64_t slot) {
  return _mm512_loadu_si512(slot_at(operand, slot));
}

/// One pair in every slot.
HWY_INLINE Pairs broadcast_pair(const void* operand, std::int64_t slot) {
  std::int32_t bits;
  __builtin_memcpy(&bits, slot_at(operand, slot), sizeof bits);
  return as_pairs(_mm512_set1_epi32(bits));
}

/// sum + the products of both elements of each pair; subnormal elements count as 0.
HWY_INLINE Floats multiply_add(Pairs left, Pairs right, Floats sum) {
  return _mm512_dpbf16_ps(sum, left, right);
}

}  // namespace foveal::cpu::avx512_bf16
FOVEAL_END_AVX512_BF16
