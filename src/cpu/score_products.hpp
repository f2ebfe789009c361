// Products of a score tile with its operands. Where the mask hides part of the tile, strips that
// nothing visible falls into are left out: what is added is the same to the bit, since a weight
// that is hidden is 0.
#pragma once

#include <cstdint>

#include "cpu/score_tile.hpp"
#include "cpu/tile_math.hpp"

namespace foveal::cpu {

/// A score tile and whether some of its pairs are hidden.
struct MaskedTile {
  const ScoreTile& tile;
  bool needs_mask = false;
};

/// C[rows, keys] = A[rows, depth] . B[keys, depth]^T, B packed. With a mask, hidden elements may
/// keep what they were.
void multiply_scores(const TileMath& math, const MaskedTile& scores, const TileProduct& product);

/// C[rows, columns] += W[rows, keys] . B[keys, columns]; `product.depth` is not looked at. W is an
/// operand, its terms are keys.
void accumulate_over_keys(const TileMath& math, const MaskedTile& weights,
                          const TileProduct& product);

/// C[keys, columns] += W[rows, keys]^T . B[rows, columns]; `product.depth` is not looked at. W is
/// an operand, its terms are rows.
void accumulate_over_rows(const TileMath& math, const MaskedTile& weights,
                          const TileProduct& product);

}  // namespace foveal::cpu
