#include <algorithm>

#include "algorithm/block_range.hpp"
#include "core/integer.hpp"
#include "cpu/bwd/passes.hpp"
#include "cpu/bwd/tile_gradients.hpp"

namespace foveal::cpu {
namespace {

using algorithm::Range;

/// Adds the contributions of every key that the rows see.
void sum_over_keys(const BackwardArgs& args, const BackwardScratch& scratch,
                   const Sequence& sequence, const QueryTile& rows) {
  const Range query_rows = algorithm::query_rows(rows.packed, args.group);
  const algorithm::BlockRange blocks =
      algorithm::n_block_range(sequence.mask, query_rows, args.tile.n);
  if (blocks.visit.empty()) return;
  const Range seen = sequence.mask.keys_of_rows(query_rows);
  load_rows(args, scratch, rows);
  for (std::int64_t n_block = blocks.visit.min; n_block < blocks.visit.max; ++n_block) {
    const std::int64_t begin = n_block * args.tile.n;
    const Range keys{begin, min_of(begin + args.tile.n, sequence.mask.seqlen_k)};
    load_keys(args, scratch, sequence, rows.head_k, keys, seen);
    compute_gradients(args, scratch, {.rows = rows, .mask = sequence.mask, .keys = keys},
                      blocks.needs_mask(n_block), GradientOf::kProduct);
    args.math.accumulate({.rows = rows.packed.size(),
                          .columns = args.geometry.headdim,
                          .depth = keys.size(),
                          .a = scratch.ds,
                          .lda = scratch.ld_n,
                          .b = scratch.k,
                          .ldb = scratch.ld_d,
                          .c = scratch.dq,
                          .ldc = scratch.ld_d});
  }
}

}  // namespace

void compute_dq(const BackwardArgs& args, const BackwardScratch& scratch, const WorkTile& work,
                std::int64_t head_k) {
  const Sequence sequence = sequence_of(args, work.b);
  QueryTile rows{.b = work.b,
                 .q_begin = sequence.lengths.q_begin,
                 .head_k = head_k,
                 .group = args.group,
                 .packed = used_packed_rows(args, sequence, work.block)};
  const Range packed = packed_rows(args, sequence, work.block);
  std::fill_n(scratch.dq, packed.size() * scratch.ld_d, 0.0f);
  sum_over_keys(args, scratch, sequence, rows);
  // Rows that aren't used follow those that are: their sums are 0.
  rows.packed = packed;
  for (std::int64_t r = rows.packed.min; r < rows.packed.max; ++r) {
    args.dq.storer.store(scratch.dq + (r - rows.packed.min) * scratch.ld_d,
                         rows.offset(args.dq.strides, r));
  }
}

}  // namespace foveal::cpu
