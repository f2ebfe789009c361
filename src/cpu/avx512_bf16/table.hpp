// The table for operands of bf16 on processors with AVX512-BF16: products by vdpbf16ps, and all
// else from the table of AVX-512.
#pragma once

#include "cpu/tile_math.hpp"

namespace foveal::cpu::avx512_bf16 {

/// Null where the processor has no AVX512-BF16.
[[nodiscard]] const TileMath* table();

}  // namespace foveal::cpu::avx512_bf16
