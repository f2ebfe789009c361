#include "cpu/bwd/args.hpp"

#include "cpu/bwd/config.hpp"

namespace foveal::cpu {
namespace {

using planner::LaunchContext;

RowLoader loader_of(const TensorSpec& spec, const void* data, const TileMath& math) {
  const auto last = static_cast<std::size_t>(spec.rank - 1);
  return {&math, data, spec.dtype, spec.strides[last], spec.shape[last]};
}

RowStorer storer_of(const TensorSpec& spec, void* data, const TileMath& math) {
  const auto last = static_cast<std::size_t>(spec.rank - 1);
  return {&math, data, spec.dtype, spec.strides[last], spec.shape[last]};
}

RowOperand row_operand(const TensorSpec& spec, const void* data, const TileMath& math) {
  return {loader_of(spec, data, math), row_strides(spec)};
}

KeyOperand key_operand(const LaunchContext& launch, const TensorSpec& spec, const void* data,
                       const TileMath& math) {
  return {loader_of(spec, data, math),
          kv_layout(launch.problem, launch.geometry, spec, launch.tensors)};
}

RowValues row_values(const TensorSpec& spec, const void* data) {
  if (!spec.present()) return {};
  return {data, lse_strides(spec)};
}

RowGradient row_gradient(const TensorSpec& spec, void* data, const TileMath& math) {
  if (!spec.present()) return {};
  return {true, storer_of(spec, data, math), row_strides(spec)};
}

KeyGradient key_gradient(const LaunchContext& launch, const TensorSpec& spec, void* data,
                         const TileMath& math) {
  if (!spec.present()) return {};
  return {true, storer_of(spec, data, math),
          kv_layout(launch.problem, launch.geometry, spec, launch.tensors)};
}

}  // namespace

BackwardArgs::BackwardArgs(const LaunchContext& launch, const DqSums& sums_of_dq)
    : problem(launch.problem),
      geometry(launch.geometry),
      tensors(launch.tensors),
      tile(launch.config.tile),
      math(tile_math(launch.problem.q.dtype, launch.config.isa)),
      scores(score_options(math, launch.problem, launch.geometry, launch.tensors)),
      lengths(seqlen_source(launch.problem, launch.geometry, launch.tensors)),
      group(geometry.nheads_k > 0 ? geometry.nheads_q / geometry.nheads_k : 0),
      q(row_operand(problem.q, tensors.q, math)),
      out(row_operand(problem.out, tensors.out, math)),
      dout(row_operand(problem.dout, tensors.dout, math)),
      k(key_operand(launch, problem.k, tensors.k, math)),
      v(key_operand(launch, problem.v, tensors.v, math)),
      lse(row_values(problem.lse, tensors.lse)),
      dlse(row_values(problem.dlse, tensors.dlse)),
      dq(row_gradient(problem.dq, tensors.dq, math)),
      dk(key_gradient(launch, problem.dk, tensors.dk, math)),
      dv(key_gradient(launch, problem.dv, tensors.dv, math)),
      delta(launch.workspace_part<float>(static_cast<std::size_t>(BackwardPart::kDelta))),
      delta_strides{.batch = geometry.packed_q ? 0 : geometry.seqlen_q * geometry.nheads_q,
                    .row = geometry.nheads_q,
                    .head = 1,
                    .dim = 0},
      dq_sums(sums_of_dq) {}

Sequence sequence_of(const BackwardArgs& args, std::int64_t b) {
  const algorithm::SeqlenInfo lengths = algorithm::seqlen_info(args.lengths, b);
  return {b, lengths, {lengths.seqlen_q, lengths.seqlen_k, args.geometry.window}};
}

algorithm::KvLocator locate_keys(const algorithm::KvLayout& layout, const Sequence& sequence,
                                 std::int64_t head_k) {
  return algorithm::kv_locator(layout, sequence.b, /*cache_row=*/sequence.b, head_k,
                               sequence.lengths.k_begin + sequence.lengths.leftpad_k);
}

}  // namespace foveal::cpu
