// The tables of TileMath made from one source over Highway's vocabulary, one an instruction set.
#pragma once

#include <span>

#include "cpu/tile_math.hpp"

namespace foveal::cpu::simd {

/// Those that this processor can run, the fastest first.
[[nodiscard]] std::span<const TileMath* const> tables();

}  // namespace foveal::cpu::simd
