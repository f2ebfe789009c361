// The functions of the AVX512-BF16 TileMath table, by file. What each does is said in
// tile_math.hpp; a slot of an operand is a pair of bf16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/tile_math.hpp"

namespace foveal::cpu::avx512_bf16 {

// products.cpp
void multiply_packed(const TileProduct& product);
void accumulate(const TileProduct& product);
void accumulate_transposed(const TileProduct& product);

// pairs.cpp
void pair_rows(const void* rows, std::int64_t ld, std::int64_t n, std::int64_t count, void* pairs,
               std::int64_t ld_pairs);
void narrow(const float* from, std::int64_t count, void* to);
void narrow_pairs(const float* rows, std::int64_t ld, std::int64_t n, std::int64_t count,
                  void* pairs, std::int64_t ld_pairs);

// memory_rows.cpp
void multiply_memory(const RowProduct& product, const MemoryRows& b);
void accumulate_memory(const RowProduct& product, const MemoryRows& b);

}  // namespace foveal::cpu::avx512_bf16
