#include <algorithm>

#include "algorithm/block_range.hpp"
#include "core/integer.hpp"
#include "cpu/bwd/passes.hpp"
#include "cpu/bwd/tile_gradients.hpp"

namespace foveal::cpu {
namespace {

using algorithm::Range;

/// dv += p^T dout, dk += ds^T q
void add_products(const BackwardArgs& args, const BackwardScratch& scratch, std::int64_t rows,
                  std::int64_t keys) {
  if (args.dv.wanted) {
    args.math.accumulate_transposed({.rows = keys,
                                     .columns = args.geometry.headdim_v,
                                     .depth = rows,
                                     .a = scratch.p,
                                     .lda = scratch.ld_n,
                                     .b = scratch.dout,
                                     .ldb = scratch.ld_dv,
                                     .c = scratch.dv,
                                     .ldc = scratch.ld_dv});
  }
  if (args.dk.wanted) {
    args.math.accumulate_transposed({.rows = keys,
                                     .columns = args.geometry.headdim,
                                     .depth = rows,
                                     .a = scratch.ds,
                                     .lda = scratch.ld_n,
                                     .b = scratch.q,
                                     .ldb = scratch.ld_d,
                                     .c = scratch.dk,
                                     .ldc = scratch.ld_d});
  }
}

/// Adds the contributions of every row that sees the keys.
void sum_over_rows(const BackwardArgs& args, const BackwardScratch& scratch,
                   const Sequence& sequence, std::int64_t head_k, Range keys) {
  // Blocks of one row: a tile holds those of tile.m / group consecutive rows with all their heads.
  const algorithm::BlockRange rows = algorithm::m_block_range(sequence.mask, keys, /*tile_m=*/1);
  if (rows.visit.empty() || args.group == 0) return;
  load_keys(args, scratch, sequence, head_k, keys,
            sequence.mask.keys_of_rows({0, sequence.mask.seqlen_q}));
  const Range full{rows.full.min * args.group, rows.full.max * args.group};
  const std::int64_t end = rows.visit.max * args.group;
  for (std::int64_t begin = rows.visit.min * args.group; begin < end; begin += args.tile.m) {
    const ScoreTile tile{.rows = {.b = sequence.b,
                                  .q_begin = sequence.lengths.q_begin,
                                  .head_k = head_k,
                                  .group = args.group,
                                  .packed = {begin, min_of(begin + args.tile.m, end)}},
                         .mask = sequence.mask,
                         .keys = keys};
    const Range packed = tile.rows.packed;
    const bool needs_mask = packed.min < full.min || packed.max > full.max;
    load_rows(args, scratch, tile.rows);
    compute_gradients(args, scratch, tile, needs_mask, GradientOf::kProduct);
    add_products(args, scratch, packed.size(), keys.size());
  }
}

/// Writes the positions of a tile: sums for the keys, 0 for what is no key.
void store_positions(const KeyGradient& gradient, const Sequence& sequence, std::int64_t head_k,
                     Range positions, Range keys, const float* sums, std::int64_t ld) {
  if (!gradient.wanted) return;
  const algorithm::KvLocator locator = locate_keys(gradient.layout, sequence, head_k);
  const float* zeros = sums + keys.size() * ld;  // of a position that is no key, where there is one
  for (std::int64_t j = positions.min; j < positions.max; ++j) {
    const float* from = keys.contains(j) ? sums + (j - keys.min) * ld : zeros;
    gradient.storer.store(from, locator.row_offset(j));
  }
}

}  // namespace

void compute_dk_dv(const BackwardArgs& args, const BackwardScratch& scratch, const WorkTile& work,
                   std::int64_t head_k) {
  const Sequence sequence = sequence_of(args, work.b);
  const Range positions = key_positions(args, sequence, work.block);
  const Range keys = used_keys(args, sequence, work.block);
  std::fill_n(scratch.dk, positions.size() * scratch.ld_d, 0.0f);
  std::fill_n(scratch.dv, positions.size() * scratch.ld_dv, 0.0f);
  sum_over_rows(args, scratch, sequence, head_k, keys);
  store_positions(args.dk, sequence, head_k, positions, keys, scratch.dk, scratch.ld_d);
  store_positions(args.dv, sequence, head_k, positions, keys, scratch.dv, scratch.ld_dv);
}

}  // namespace foveal::cpu
