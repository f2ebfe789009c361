#include "cpu/score_products.hpp"

#include "algorithm/block_range.hpp"

namespace foveal::cpu {
namespace {

using algorithm::Range;

/// Columns of a strip of scores: what a block of AVX-512 is wide.
constexpr std::int64_t kColumnStrip = 2 * kLane;
/// Rows of a strip of sums: two blocks of AVX-512, four of AVX2.
constexpr std::int64_t kRowStrip = 24;

Range shifted(Range range, std::int64_t origin) {
  return algorithm::make_range(range.min - origin, range.max - origin);
}

/// Rows of the tile, from its first, that see one of the keys [begin, end) from its first.
Range rows_seeing(const ScoreTile& tile, std::int64_t begin, std::int64_t end) {
  const Range rows = tile.mask.rows_of_keys({tile.keys.min + begin, tile.keys.min + end});
  const std::int64_t group = tile.rows.group;
  return shifted(algorithm::intersect(tile.rows.packed, {rows.min * group, rows.max * group}),
                 tile.rows.packed.min);
}

/// Keys of the tile, from its first, that one of the rows [begin, end) from its first sees.
Range keys_seen(const ScoreTile& tile, std::int64_t begin, std::int64_t end) {
  const Range packed{tile.rows.packed.min + begin, tile.rows.packed.min + end};
  const Range keys = tile.mask.keys_of_rows(algorithm::query_rows(packed, tile.rows.group));
  return shifted(algorithm::intersect(tile.keys, keys), tile.keys.min);
}

/// The terms as slots, those at the ends rounded outwards, the first to a multiple of depth_step.
Range slots_of(const TileMath& math, Range terms) {
  const std::int64_t first = terms.min / math.slot_terms;
  return {first - first % math.depth_step, math.slots(terms.max)};
}

}  // namespace

void multiply_scores(const TileMath& math, const MaskedTile& scores, const TileProduct& product) {
  if (!scores.needs_mask) return math.multiply_packed(product);
  const std::int64_t panel_slots = round_up(product.depth, kLane) * kLane;
  for (std::int64_t column = 0; column < product.columns; column += kColumnStrip) {
    const std::int64_t end = min_of(column + kColumnStrip, product.columns);
    const Range rows = rows_seeing(scores.tile, column, end);
    if (rows.empty()) continue;
    TileProduct strip = product;
    strip.rows = rows.size();
    strip.columns = end - column;
    strip.a = slot_at(product.a, rows.min * product.lda);
    strip.b = slot_at(product.b, column / kLane * panel_slots);
    strip.c = product.c + rows.min * product.ldc + column;
    math.multiply_packed(strip);
  }
}

void accumulate_over_keys(const TileMath& math, const MaskedTile& weights,
                          const TileProduct& product) {
  const ScoreTile& tile = weights.tile;
  if (!weights.needs_mask) {
    TileProduct whole = product;
    whole.depth = math.slots(tile.keys.size());
    return math.accumulate(whole);
  }
  for (std::int64_t row = 0; row < product.rows; row += kRowStrip) {
    const std::int64_t end = min_of(row + kRowStrip, product.rows);
    const Range terms = slots_of(math, keys_seen(tile, row, end));
    if (terms.empty()) continue;
    TileProduct strip = product;
    strip.rows = end - row;
    strip.depth = terms.size();
    strip.a = slot_at(product.a, row * product.lda + terms.min);
    strip.b = slot_at(product.b, terms.min * product.ldb);
    strip.c = product.c + row * product.ldc;
    math.accumulate(strip);
  }
}

void accumulate_over_rows(const TileMath& math, const MaskedTile& weights,
                          const TileProduct& product) {
  const ScoreTile& tile = weights.tile;
  if (!weights.needs_mask) {
    TileProduct whole = product;
    whole.depth = math.slots(tile.rows.packed.size());
    return math.accumulate_transposed(whole);
  }
  for (std::int64_t key = 0; key < product.rows; key += kRowStrip) {
    const std::int64_t end = min_of(key + kRowStrip, product.rows);
    const Range terms = slots_of(math, rows_seeing(tile, key, end));
    if (terms.empty()) continue;
    TileProduct strip = product;
    strip.rows = end - key;
    strip.depth = terms.size();
    strip.a = slot_at(product.a, terms.min * product.lda + key);
    strip.b = slot_at(product.b, terms.min * product.ldb);
    strip.c = product.c + key * product.ldc;
    math.accumulate_transposed(strip);
  }
}

}  // namespace foveal::cpu
