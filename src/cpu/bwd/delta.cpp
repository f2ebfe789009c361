#include <algorithm>
#include <cmath>

#include "algorithm/online_softmax.hpp"
#include "cpu/bwd/passes.hpp"

namespace foveal::cpu {

namespace {

/// Packed rows of the tile to which no block of keys adds.
algorithm::Range rows_without_sums(const BackwardArgs& args, const Sequence& sequence,
                                   std::int64_t block) {
  algorithm::Range rows = packed_rows(args, sequence, block);
  const bool has_sums = args.dq_sums.holds(block) && !key_blocks_of(args, sequence, block).empty();
  if (has_sums) rows.min = used_packed_rows(args, sequence, block).max;
  return rows;
}

}  // namespace

void compute_delta(const BackwardArgs& args, const BackwardScratch& scratch,
                   const BackwardItem& item) {
  const std::int64_t b = item.sequence->b;
  const Sequence sequence = sequence_of(args, b);
  const QueryTile rows{.b = b,
                       .q_begin = sequence.lengths.q_begin,
                       .head_k = item.head_k,
                       .group = args.group,
                       .packed = used_packed_rows(args, sequence, item.block)};
  for (std::int64_t r = rows.packed.min; r < rows.packed.max; ++r) {
    float& delta = args.delta[rows.offset(args.delta_strides, r)];
    args.out.loader.load(rows.offset(args.out.strides, r), scratch.row);
    args.dout.loader.load(rows.offset(args.dout.strides, r), scratch.row_of_dout);
    delta = args.math.dot(scratch.row_of_dout, scratch.row, args.geometry.headdim_v);
    if (args.dlse.base != nullptr) {
      delta -= load_scalar(DType::kFloat32, args.dlse.base, rows.offset(args.dlse.strides, r));
    }
  }
  if (!args.dq.wanted) return;
  const algorithm::Range zeros = rows_without_sums(args, sequence, item.block);
  std::fill_n(scratch.dk, round_up(args.geometry.headdim, kLane), 0.0f);
  for (std::int64_t r = zeros.min; r < zeros.max; ++r) {
    args.dq.storer.store(scratch.dk, rows.offset(args.dq.strides, r));
  }
}

void compute_dsink(const BackwardArgs& args, std::int64_t head) {
  const float sink =
      load_scalar(DType::kFloat32, args.tensors.sinks, head * args.problem.sinks.strides[0]);
  // In double: a sum of one small term a row, over all sequences.
  double sum = 0.0;
  for (std::int64_t b = 0; b < args.geometry.batch; ++b) {
    const Sequence sequence = sequence_of(args, b);
    const QueryTile rows{.b = b,
                         .q_begin = sequence.lengths.q_begin,
                         .head_k = head,
                         .group = 1,
                         .packed = {0, sequence.mask.seqlen_q}};
    for (std::int64_t i = 0; i < sequence.mask.seqlen_q; ++i) {
      const float lse =
          load_scalar(DType::kFloat32, args.lse.base, rows.offset(args.lse.strides, i));
      if (lse == algorithm::kNegativeInfinity) continue;  // the sink is -inf too and has no weight
      const double weight = std::exp(static_cast<double>(sink) - static_cast<double>(lse));
      sum -= weight * static_cast<double>(args.delta[rows.offset(args.delta_strides, i)]);
    }
  }
  store_scalar(DType::kFloat32, args.tensors.dsinks, head * args.problem.dsinks.strides[0],
               static_cast<float>(sum));
}

}  // namespace foveal::cpu
