// The functions of the AMX TileMath table. What each does is said in tile_math.hpp; a slot of an
// operand is a pair of bf16.
#pragma once

#include "cpu/tile_math.hpp"

namespace foveal::cpu::amx_bf16 {

// products.cpp
void multiply_packed(const TileProduct& product);
void accumulate(const TileProduct& product);
void accumulate_transposed(const TileProduct& product);

// transpose.cpp
/// A tile of up to 16 x 16 slots to its transpose: to[16 row + column] = from[column * ld + row]
/// for column < columns; rows of `from` are read 16 slots wide.
void transpose_slots(const void* from, std::int64_t ld, std::int64_t columns, void* to);

}  // namespace foveal::cpu::amx_bf16
