#include <cmath>

#include "algorithm/online_softmax.hpp"
#include "cpu/bwd/passes.hpp"

namespace foveal::cpu {

void compute_delta(const BackwardArgs& args, const BackwardScratch& scratch, const WorkTile& work,
                   std::int64_t head_k) {
  const Sequence sequence = sequence_of(args, work.b);
  const QueryTile rows{.b = work.b,
                       .q_begin = sequence.lengths.q_begin,
                       .head_k = head_k,
                       .group = args.group,
                       .packed = used_packed_rows(args, sequence, work.block)};
  for (std::int64_t r = rows.packed.min; r < rows.packed.max; ++r) {
    float& delta = args.delta[rows.offset(args.delta_strides, r)];
    args.out.loader.load(rows.offset(args.out.strides, r), scratch.row);
    args.dout.loader.load(rows.offset(args.dout.strides, r), scratch.dout);
    delta = args.math.dot(scratch.dout, scratch.row, args.geometry.headdim_v);
    if (args.dlse.base != nullptr) {
      delta -= load_scalar(DType::kFloat32, args.dlse.base, rows.offset(args.dlse.strides, r));
    }
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
