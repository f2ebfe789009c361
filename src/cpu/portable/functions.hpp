// The functions of the portable TileMath table, by file. What each does is said in tile_math.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/tile_math.hpp"

namespace foveal::cpu::portable {

// products.cpp
void pack(const void* rows, std::int64_t ld, std::int64_t n, std::int64_t slots, void* to);
void multiply_packed(const TileProduct& product);
void accumulate(const TileProduct& product);
void accumulate_transposed(const TileProduct& product);

// memory_rows.cpp
void multiply_memory(const RowProduct& product, const MemoryRows& b);
void accumulate_memory(const RowProduct& product, const MemoryRows& b);

// rows.cpp
float row_max(const float* row, std::int64_t count);
float exp_sum(float* row, std::int64_t count, float factor, float offset);
void scale(float* row, std::int64_t count, float factor);
void cap(float* row, std::int64_t count, float softcap);
void score_gradients(const float* p, float delta, float* ds, std::int64_t count);
float dot(const float* a, const float* b, std::int64_t count);

// convert.cpp
void load_fp16(const std::byte* from, std::int64_t count, float* to);
void load_bf16(const std::byte* from, std::int64_t count, float* to);
void store_fp16(const float* from, std::int64_t count, std::byte* to);
void store_bf16(const float* from, std::int64_t count, std::byte* to);

}  // namespace foveal::cpu::portable
