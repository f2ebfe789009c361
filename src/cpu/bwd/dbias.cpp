#include <algorithm>
#include <array>

#include "algorithm/block_range.hpp"
#include "core/integer.hpp"
#include "cpu/bwd/passes.hpp"
#include "cpu/bwd/tile_gradients.hpp"

namespace foveal::cpu {
namespace {

using algorithm::Range;

/// Along one axis, what a tile of dbias is the sum over: all of a broadcast axis, else the tile.
struct DbiasAxis {
  std::int64_t first = 0;  ///< Of dbias, and of what it sums over.
  std::int64_t extent = 1;
  bool broadcast = false;

  /// Indices of the whole problem, of `full` along this axis, that go into the tile.
  [[nodiscard]] Range summed(std::int64_t full) const {
    return broadcast ? Range{0, full} : algorithm::make_range(first, min_of(first + extent, full));
  }
};

struct DbiasTile {
  DbiasAxis batch, head, row, column;
};

std::int64_t tile_extent(const TensorSpec& spec, std::size_t axis, std::int64_t tile) {
  return spec.shape[axis] == 1 ? 1 : tile;
}

/// Tiles of tile.m rows and tile.n columns; last tiles first, since causal rows see more later on.
DbiasTile dbias_tile(const BackwardArgs& args, std::int64_t item) {
  const TensorSpec& spec = args.problem.dbias;
  const std::array<std::int64_t, 4> step{1, 1, tile_extent(spec, 2, args.tile.m),
                                         tile_extent(spec, 3, args.tile.n)};
  std::int64_t rest = num_dbias_tiles(args) - 1 - item;
  std::array<DbiasAxis, 4> axes;
  for (std::size_t axis = 4; axis-- > 0;) {
    const std::int64_t tiles = ceil_div(spec.shape[axis], step[axis]);
    const std::int64_t first = rest % tiles * step[axis];
    axes[axis] = {.first = first,
                  .extent = min_of(step[axis], spec.shape[axis] - first),
                  .broadcast = spec.shape[axis] == 1};
    rest /= tiles;
  }
  return {axes[0], axes[1], axes[2], axes[3]};
}

/// Adds ds of a score tile at its place in the tile of dbias.
void add_ds(const BackwardScratch& scratch, const DbiasTile& dbias, const ScoreTile& tile) {
  const std::int64_t keys = tile.keys.size();
  for (std::int64_t r = 0; r < tile.rows.packed.size(); ++r) {
    const float* ds = scratch.ds + r * scratch.ld_n;
    double* sums = scratch.dbias + (dbias.row.broadcast ? 0 : r) * scratch.ld_n;
    if (dbias.column.broadcast) {
      double sum = 0.0;
      for (std::int64_t j = 0; j < keys; ++j) sum += static_cast<double>(ds[j]);
      sums[0] += sum;
    } else {
      for (std::int64_t j = 0; j < keys; ++j) sums[j] += static_cast<double>(ds[j]);
    }
  }
}

/// One sequence and query head of those that the tile sums over.
void sum_over_scores(const BackwardArgs& args, const BackwardScratch& scratch,
                     const DbiasTile& dbias, const Sequence& sequence, std::int64_t head) {
  const Range all_rows = dbias.row.summed(sequence.mask.seqlen_q);
  const Range columns = dbias.column.summed(sequence.mask.seqlen_k);
  for (std::int64_t i = all_rows.min; i < all_rows.max; i += args.tile.m) {
    const Range rows{i, min_of(i + args.tile.m, all_rows.max)};
    const Range seen = sequence.mask.keys_of_rows(rows);
    const Range wanted = algorithm::intersect(seen, columns);
    if (wanted.empty()) continue;
    const algorithm::BlockRange blocks = algorithm::n_block_range(sequence.mask, rows, args.tile.n);
    ScoreTile tile{.rows = {.b = sequence.b,
                            .q_begin = sequence.lengths.q_begin,
                            .head_k = head,  // a group of one head
                            .group = 1,
                            .packed = rows},
                   .mask = sequence.mask,
                   .keys = {}};
    load_rows(args, scratch, tile.rows);
    for (std::int64_t n_block = wanted.min / args.tile.n; n_block * args.tile.n < wanted.max;
         ++n_block) {
      const std::int64_t begin = n_block * args.tile.n;
      tile.keys = algorithm::intersect({begin, begin + args.tile.n}, columns);
      load_keys(args, scratch, sequence, head / args.group, tile.keys, seen);
      compute_gradients(args, scratch, tile, blocks.needs_mask(n_block), GradientOf::kBias);
      add_ds(scratch, dbias, tile);
    }
  }
}

void store_dbias(const BackwardArgs& args, const BackwardScratch& scratch, const DbiasTile& dbias) {
  const TensorSpec& spec = args.problem.dbias;
  const RowStorer storer{.math = &args.math,
                         .base = args.tensors.dbias,
                         .dtype = spec.dtype,
                         .stride = spec.strides[3],
                         .count = dbias.column.extent};
  const std::int64_t origin =
      dbias.batch.first * spec.strides[0] + dbias.head.first * spec.strides[1] +
      dbias.row.first * spec.strides[2] + dbias.column.first * spec.strides[3];
  float* row = scratch.ds;  // free by now
  for (std::int64_t r = 0; r < dbias.row.extent; ++r) {
    const double* sums = scratch.dbias + r * scratch.ld_n;
    for (std::int64_t j = 0; j < dbias.column.extent; ++j) row[j] = static_cast<float>(sums[j]);
    storer.store(row, origin + r * spec.strides[2]);
  }
}

}  // namespace

std::int64_t num_dbias_tiles(const BackwardArgs& args) {
  const TensorSpec& spec = args.problem.dbias;
  if (!spec.present()) return 0;
  return spec.shape[0] * spec.shape[1] *
         ceil_div(spec.shape[2], tile_extent(spec, 2, args.tile.m)) *
         ceil_div(spec.shape[3], tile_extent(spec, 3, args.tile.n));
}

void compute_dbias(const BackwardArgs& args, const BackwardScratch& scratch, std::int64_t item) {
  const DbiasTile dbias = dbias_tile(args, item);
  std::fill_n(scratch.dbias, dbias.row.extent * scratch.ld_n, 0.0);
  const Range batch = dbias.batch.summed(args.geometry.batch);
  const Range heads = dbias.head.summed(args.geometry.nheads_q);
  for (std::int64_t b = batch.min; b < batch.max; ++b) {
    const Sequence sequence = sequence_of(args, b);
    for (std::int64_t head = heads.min; head < heads.max; ++head) {
      sum_over_scores(args, scratch, dbias, sequence, head);
    }
  }
  store_dbias(args, scratch, dbias);
}

}  // namespace foveal::cpu
