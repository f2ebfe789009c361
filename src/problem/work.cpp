// How much a problem computes and moves, and its one-line name.
#include <cstdint>

#include <foveal/problem.hpp>

#include "core/format.hpp"
#include "core/integer.hpp"
#include "problem/geometry.hpp"

namespace foveal {
namespace {

using algorithm::Mask;
using algorithm::SeqlenInfo;

/// Tokens and visible pairs of a whole batch.
struct BatchSizes {
  double rows_q = 0;
  double keys = 0;
  double pairs = 0;  ///< Of one query head.

  void add(const Mask& mask, double times) {
    rows_q += times * static_cast<double>(mask.seqlen_q);
    keys += times * static_cast<double>(mask.seqlen_k);
    pairs += times * algorithm::visible_pairs(mask);
  }
};

BatchSizes sizes_from_lengths(const AttentionProblem& problem, const AttentionGeometry& geometry,
                              const AttentionTensors& tensors) {
  BatchSizes sizes;
  const algorithm::SeqlenSource source = seqlen_source(problem, geometry, tensors);
  for (std::int64_t b = 0; b < geometry.batch; ++b) {
    const SeqlenInfo info = algorithm::seqlen_info(source, b);
    sizes.add({info.seqlen_q, info.seqlen_k, geometry.window}, 1.0);
  }
  return sizes;
}

/// Without lengths every sequence is as long as it can be; packed ones share the total.
BatchSizes sizes_from_capacity(const AttentionGeometry& geometry) {
  BatchSizes sizes;
  const Mask mask{geometry.seqlen_q, geometry.seqlen_k, geometry.window};
  double sequences = static_cast<double>(geometry.batch);
  if (geometry.packed_q && geometry.seqlen_q > 0) {
    const double full =
        static_cast<double>(geometry.total_q) / static_cast<double>(geometry.seqlen_q);
    sequences = min_of(sequences, full);
  }
  sizes.add(mask, sequences);
  return sizes;
}

double spec_bytes(const TensorSpec& spec) {
  return static_cast<double>(spec.numel()) * static_cast<double>(dtype_bytes(spec.dtype));
}

/// Bytes of one key or value row over all KV heads.
double key_row_bytes(const AttentionGeometry& geometry, DType dtype) {
  return static_cast<double>(geometry.nheads_k * (geometry.headdim + geometry.headdim_v) *
                             dtype_bytes(dtype));
}

AttentionWork merge_work(const AttentionProblem& problem) {
  AttentionWork work;
  work.flops = 3.0 * static_cast<double>(problem.out.numel());
  work.read_bytes = spec_bytes(problem.out_a) + spec_bytes(problem.out_b) +
                    spec_bytes(problem.lse_a) + spec_bytes(problem.lse_b);
  work.written_bytes = spec_bytes(problem.out) + spec_bytes(problem.lse);
  return work;
}

AttentionWork append_work(const AttentionProblem& problem) {
  AttentionWork work;
  const double moved =
      spec_bytes(problem.k_new) + spec_bytes(problem.v_new) + spec_bytes(problem.q_rotated);
  work.read_bytes = moved;
  work.written_bytes = moved;
  return work;
}

std::string shape_text(const TensorSpec& spec) {
  return concat(std::span(spec.shape.data(), static_cast<std::size_t>(spec.rank)));
}

std::string window_text(const AttentionProblem& problem) {
  const auto side = [](std::int64_t size) { return size < 0 ? "-1" : std::to_string(size); };
  return concat(" window ", side(problem.window_size_left), ",", side(problem.window_size_right));
}

}  // namespace

AttentionWork attention_work(const AttentionProblem& problem, const AttentionTensors* tensors) {
  if (problem.pass == Pass::kMerge) return merge_work(problem);
  if (problem.pass == Pass::kAppend) return append_work(problem);

  const AttentionGeometry geometry = make_geometry(problem);
  const BatchSizes sizes = tensors != nullptr ? sizes_from_lengths(problem, geometry, *tensors)
                                              : sizes_from_capacity(geometry);
  AttentionWork work;
  work.visible_pairs = sizes.pairs * static_cast<double>(geometry.nheads_q);
  work.flops =
      2.0 * static_cast<double>(geometry.headdim + geometry.headdim_v) * work.visible_pairs;
  const double kv_bytes = sizes.keys * key_row_bytes(geometry, problem.k.dtype);
  work.read_bytes = spec_bytes(problem.q) + kv_bytes + spec_bytes(problem.bias);
  work.written_bytes = spec_bytes(problem.out) + spec_bytes(problem.lse);
  if (problem.pass == Pass::kBackward) {
    work.flops *= 2.5;
    work.read_bytes += spec_bytes(problem.out) + spec_bytes(problem.dout) +
                       spec_bytes(problem.lse) + spec_bytes(problem.dlse);
    work.written_bytes = spec_bytes(problem.dq) + spec_bytes(problem.dk) + spec_bytes(problem.dv) +
                         spec_bytes(problem.dbias);
  }
  return work;
}

std::string to_string(const AttentionProblem& problem) {
  std::string text = pass_name(problem.pass);
  if (problem.pass == Pass::kMerge) {
    return concat(text, " ", dtype_name(problem.out.dtype), " out", shape_text(problem.out));
  }
  text += concat(" ", dtype_name(problem.k.dtype));
  if (problem.q.present()) text += concat(" q", shape_text(problem.q));
  text += concat(" k", shape_text(problem.k));
  if (problem.v.shape != problem.k.shape) text += concat(" v", shape_text(problem.v));
  if (problem.cu_seqlens_q.present() || problem.cu_seqlens_k.present()) text += " packed";
  if (problem.block_table.present()) text += concat(" paged", shape_text(problem.block_table));
  if (problem.causal) text += " causal";
  if (problem.window_size_left >= 0 || problem.window_size_right >= 0) {
    text += window_text(problem);
  }
  if (problem.softcap > 0) text += concat(" softcap ", problem.softcap);
  if (problem.dropout_p > 0) text += concat(" dropout ", problem.dropout_p);
  for (const OperandInfo& operand : operands()) {
    constexpr std::string_view kShown[] = {
        "lse",       "dlse",      "bias",         "dbias", "sinks",      "seqused_q",
        "leftpad_k", "seqused_k", "alibi_slopes", "k_new", "rotary_cos", "cache_batch_idx"};
    if (!(problem.*operand.spec).present()) continue;
    for (const std::string_view shown : kShown) {
      if (shown == operand.name) text += concat(" ", shown);
    }
  }
  if (problem.deterministic) text += " deterministic";
  if (problem.batch_invariant) text += " batch_invariant";
  return text;
}

}  // namespace foveal
