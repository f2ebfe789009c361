// Tiles for tests of the CPU tile layer.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include <gtest/gtest.h>

#include "cpu/tile_math.hpp"
#include "support/random.hpp"

namespace foveal::cpu {

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};
using Floats = std::unique_ptr<float[], Free>;

inline Floats aligned_floats(std::int64_t count) {
  const std::int64_t padded = round_up<std::int64_t>(count, kLane) + kLane;
  Floats floats(static_cast<float*>(
      std::aligned_alloc(kTileAlignment, static_cast<std::size_t>(padded) * sizeof(float))));
  for (std::int64_t i = 0; i < padded; ++i) floats[i] = 0.0f;
  return floats;
}

/// A row-major tile, its padding columns and rows 0.
struct Tile {
  Tile(std::int64_t rows_, std::int64_t columns_)
      : rows(rows_),
        columns(columns_),
        ld(tile_ld(columns_)),
        data(aligned_floats(tile_floats(rows_, columns_))) {}

  float& at(std::int64_t row, std::int64_t column) { return data[row * ld + column]; }
  [[nodiscard]] float at(std::int64_t row, std::int64_t column) const {
    return data[row * ld + column];
  }

  std::int64_t rows;
  std::int64_t columns;
  std::int64_t ld;
  Floats data;
};

inline Tile random_tile(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  Tile tile(rows, columns);
  test::Random random(seed);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      tile.at(row, column) = static_cast<float>(random.normal());
    }
  }
  return tile;
}

}  // namespace foveal::cpu
