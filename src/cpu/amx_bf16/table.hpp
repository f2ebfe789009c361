// The table for operands of bf16 on processors with AMX: products of tiles by tdpbf16ps, and all
// else from the table of AVX512-BF16, whose operands are the same.
#pragma once

#include "cpu/avx512_bf16/table.hpp"
#include "cpu/tile_math.hpp"

#if FOVEAL_WITH_AVX512_BF16 && defined(__linux__)
#define FOVEAL_WITH_AMX_BF16 1
#else
#define FOVEAL_WITH_AMX_BF16 0
#endif

namespace foveal::cpu::amx_bf16 {

/// Null where the processor has no AMX, the system does not let programs use it, or the compiler
/// cannot build it.
[[nodiscard]] const TileMath* table();

}  // namespace foveal::cpu::amx_bf16
