// The table for operands of bf16 on processors with AVX512-BF16: products by vdpbf16ps, and all
// else from the table of AVX-512.
#pragma once

#include "cpu/tile_math.hpp"

// clang 16's optimizer recurses without end on vectors of bf16 that come from integers.
#if defined(__x86_64__) && !(defined(__clang__) && __clang_major__ < 17)
#define FOVEAL_WITH_AVX512_BF16 1
#else
#define FOVEAL_WITH_AVX512_BF16 0
#endif

namespace foveal::cpu::avx512_bf16 {

/// Null where the processor has no AVX512-BF16, or the compiler cannot build it.
[[nodiscard]] const TileMath* table();

}  // namespace foveal::cpu::avx512_bf16
