#include <algorithm>

#include "algorithm/block_range.hpp"
#include "core/integer.hpp"
#include "cpu/bwd/passes.hpp"
#include "cpu/bwd/tile_gradients.hpp"
#include "cpu/score_products.hpp"

namespace foveal::cpu {
namespace {

using algorithm::Range;

/// A block of keys and where it stands in the order of dq's sums.
struct KeyBlockWork {
  const Sequence& sequence;
  std::int64_t block = 0;
  std::int64_t unit = 0;
  std::int64_t head_k = 0;
  Range keys;
};

/// dv += p^T dout, dk += ds^T q
void add_dk_dv(const BackwardArgs& args, const BackwardScratch& scratch, const MaskedTile& tile) {
  const std::int64_t keys = tile.tile.keys.size();
  if (args.dv.wanted) {
    accumulate_over_rows(args.math, tile,
                         {.rows = keys,
                          .columns = args.geometry.headdim_v,
                          .a = scratch.p_pairs,
                          .lda = scratch.ld_n,
                          .b = scratch.dout_pairs,
                          .ldb = scratch.ld_dv,
                          .c = scratch.dv,
                          .ldc = scratch.ld_dv});
  }
  if (args.dk.wanted) {
    accumulate_over_rows(args.math, tile,
                         {.rows = keys,
                          .columns = args.geometry.headdim,
                          .a = scratch.ds_pairs,
                          .lda = scratch.ld_n,
                          .b = scratch.q_pairs,
                          .ldb = scratch.ld_d,
                          .c = scratch.dk,
                          .ldc = scratch.ld_d});
  }
}

void store_dq(const BackwardArgs& args, const KeyBlockWork& work, const QueryTile& rows) {
  for (std::int64_t r = rows.packed.min; r < rows.packed.max; ++r) {
    float* sums = args.dq_sums.row(work.unit, r);
    args.math.scale(sums, args.dq_sums.ld(), args.geometry.softmax_scale);
    args.dq.storer.store(sums, rows.offset(args.dq.strides, r));
  }
}

/// dq += ds k for the rows of `tile`, a part of row tile `row_tile`, in the block's turn.
void add_dq(const BackwardArgs& args, const BackwardScratch& scratch, const KeyBlockWork& work,
            const MaskedTile& tile, std::int64_t row_tile) {
  if (!args.dq.wanted || !args.dq_sums.holds(row_tile)) return;
  const Range blocks = key_blocks_of(args, work.sequence, row_tile);
  const std::int64_t turn = work.block - blocks.min;
  QueryTile rows = tile.tile.rows;
  const Range part = rows.packed;
  rows.packed = used_packed_rows(args, work.sequence, row_tile);
  args.dq_sums.wait_for_turn(work.unit, row_tile, turn);
  if (turn == 0) {
    std::fill_n(args.dq_sums.row(work.unit, rows.packed.min),
                rows.packed.size() * args.dq_sums.ld(), 0.0f);
  }
  accumulate_over_keys(args.math, tile,
                       {.rows = part.size(),
                        .columns = args.geometry.headdim,
                        .a = scratch.ds_operand,
                        .lda = scratch.ld_w,
                        .b = scratch.k_pairs,
                        .ldb = scratch.ld_d,
                        .c = args.dq_sums.row(work.unit, part.min),
                        .ldc = args.dq_sums.ld()});
  if (work.block + 1 < blocks.max) return args.dq_sums.pass_turn(work.unit, row_tile, turn);
  store_dq(args, work, rows);
  args.dq_sums.finish_tile(work.unit, row_tile);
}

/// Adds the contributions of every row that sees the keys, and to every such row.
void visit_rows(const BackwardArgs& args, const BackwardScratch& scratch,
                const KeyBlockWork& work) {
  const Sequence& sequence = work.sequence;
  const Range seeing = sequence.mask.rows_of_keys(work.keys);
  const Range full = sequence.mask.rows_of_every_key(work.keys);
  if (seeing.empty() || args.group == 0) return;
  const Range packed{seeing.min * args.group, seeing.max * args.group};
  if (args.dq.wanted) args.dq_sums.wait_for_slot(work.unit);
  load_keys(args, scratch, sequence, work.head_k, work.keys,
            sequence.mask.keys_of_rows({0, sequence.mask.seqlen_q}));
  std::fill_n(scratch.dk, work.keys.size() * scratch.ld_d, 0.0f);
  std::fill_n(scratch.dv, work.keys.size() * scratch.ld_dv, 0.0f);
  for (std::int64_t row_tile = packed.min / args.tile.m; row_tile * args.tile.m < packed.max;
       ++row_tile) {
    const ScoreTile tile{.rows = {.b = sequence.b,
                                  .q_begin = sequence.lengths.q_begin,
                                  .head_k = work.head_k,
                                  .group = args.group,
                                  .packed = algorithm::intersect(
                                      used_packed_rows(args, sequence, row_tile), packed)},
                         .mask = sequence.mask,
                         .keys = work.keys};
    const Range rows = tile.rows.packed;
    const MaskedTile masked{tile,
                            rows.min < full.min * args.group || rows.max > full.max * args.group};
    load_rows(args, scratch, tile.rows);
    compute_gradients(args, scratch, tile, masked.needs_mask, GradientOf::kProduct);
    make_operands(args, scratch, tile);
    add_dk_dv(args, scratch, masked);
    add_dq(args, scratch, work, masked, row_tile);
  }
}

/// Writes the positions of a block: sums for the keys, 0 for what is no key.
void store_positions(const BackwardArgs& args, const KeyGradient& gradient,
                     const KeyBlockWork& work, Range positions, float* sums, std::int64_t ld,
                     float factor) {
  if (!gradient.wanted) return;
  const algorithm::KvLocator locator = locate_keys(gradient.layout, work.sequence, work.head_k);
  const float* zeros =
      sums + work.keys.size() * ld;  // of a position that is no key, if there is one
  for (std::int64_t j = positions.min; j < positions.max; ++j) {
    const float* from = zeros;
    if (work.keys.contains(j)) {
      float* row = sums + (j - work.keys.min) * ld;
      if (factor != 1.0f) args.math.scale(row, round_up(gradient.storer.count, kLane), factor);
      from = row;
    }
    gradient.storer.store(from, locator.row_offset(j));
  }
}

}  // namespace

void compute_key_block(const BackwardArgs& args, const BackwardScratch& scratch,
                       const BackwardItem& item, std::int64_t unit) {
  const Sequence sequence = sequence_of(args, item.sequence->b);
  const Range positions = key_positions(args, sequence, item.block);
  const KeyBlockWork work{.sequence = sequence,
                          .block = item.block,
                          .unit = unit,
                          .head_k = item.head_k,
                          .keys = used_keys(args, sequence, item.block)};
  std::fill_n(scratch.dk, positions.size() * scratch.ld_d, 0.0f);
  std::fill_n(scratch.dv, positions.size() * scratch.ld_dv, 0.0f);
  visit_rows(args, scratch, work);
  store_positions(args, args.dk, work, positions, scratch.dk, scratch.ld_d,
                  args.geometry.softmax_scale);
  store_positions(args, args.dv, work, positions, scratch.dv, scratch.ld_dv, 1.0f);
}

}  // namespace foveal::cpu
