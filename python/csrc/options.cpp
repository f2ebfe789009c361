#include "options.hpp"

#include <string>

#include "errors.hpp"

namespace foveal::python {
namespace {

/// Bottom-right alignment, a window on its right and fewer keys say the top-left rule exactly.
void apply_top_left(AttentionProblem& problem) {
  const std::int64_t seqlen_q = problem.q.shape[1];
  const std::int64_t seqlen_k = problem.k.shape[1];
  if (seqlen_k < seqlen_q) {
    problem.window_size_right = seqlen_q - seqlen_k;
    return;
  }
  problem.causal = true;
  for (TensorSpec* spec : {&problem.k, &problem.v, &problem.dk, &problem.dv}) {
    if (spec->present()) spec->shape[1] = seqlen_q;
  }
  for (TensorSpec* spec : {&problem.bias, &problem.dbias}) {
    if (spec->present() && spec->shape[3] == seqlen_k && seqlen_k > 1) spec->shape[3] = seqlen_q;
  }
}

void apply_dropout_state(const Options& options, const Tensor& anchor, AttentionTensors& tensors) {
  if (!options.dropout_state) {
    if (options.dropout_p > 0) raise_invalid("dropout_p > 0 needs dropout_state: seed and offset");
    return;
  }
  const Tensor& state = *options.dropout_state;
  check_device("dropout_state", state, anchor);
  std::int32_t dtype = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(state.get(), &dtype));
  if (dtype != aoti_torch_dtype_int64() || state.numel() != 2 || !state.is_contiguous()) {
    raise_invalid("dropout_state: it must be int64 [2], the seed and the offset");
  }
  tensors.dropout_seed_ptr = static_cast<const std::uint64_t*>(state.data_ptr());
  tensors.dropout_offset_ptr = tensors.dropout_seed_ptr + 1;
}

}  // namespace

Options read_options(ArgumentReader& arguments) {
  return {.bias = arguments.optional_tensor(),
          .sinks = arguments.optional_tensor(),
          .alibi_slopes = arguments.optional_tensor(),
          .cu_seqlens_q = arguments.optional_tensor(),
          .cu_seqlens_k = arguments.optional_tensor(),
          .seqused_q = arguments.optional_tensor(),
          .seqused_k = arguments.optional_tensor(),
          .leftpad_k = arguments.optional_tensor(),
          .block_table = arguments.optional_tensor(),
          .cache_batch_idx = arguments.optional_tensor(),
          .dropout_state = arguments.optional_tensor(),
          .max_seqlen_q = arguments.integer(),
          .max_seqlen_k = arguments.integer(),
          .softmax_scale = arguments.optional_number(),
          .softcap = arguments.number(),
          .dropout_p = arguments.number(),
          .window_size_left = arguments.integer(),
          .window_size_right = arguments.integer(),
          .causal = static_cast<Causal>(arguments.integer()),
          .layout = static_cast<Layout>(arguments.boolean()),
          .deterministic = arguments.boolean(),
          .batch_invariant = arguments.boolean()};
}

bool drops_last_keys(Causal causal, const AttentionProblem& problem) {
  return causal == Causal::kTopLeft && problem.q.rank == 4 && problem.k.rank == 4 &&
         problem.k.shape[1] > problem.q.shape[1];
}

void apply_options(const Options& options, const Tensor& anchor, AttentionProblem& problem,
                   AttentionTensors& tensors) {
  const auto add = [&](const char* name, const OptionalTensor& tensor, TensorSpec& spec,
                       const void*& data) { add_operand(name, tensor, anchor, spec, data); };
  add("bias", options.bias, problem.bias, tensors.bias);
  add("sinks", options.sinks, problem.sinks, tensors.sinks);
  add("alibi_slopes", options.alibi_slopes, problem.alibi_slopes, tensors.alibi_slopes);
  add("cu_seqlens_q", options.cu_seqlens_q, problem.cu_seqlens_q, tensors.cu_seqlens_q);
  add("cu_seqlens_k", options.cu_seqlens_k, problem.cu_seqlens_k, tensors.cu_seqlens_k);
  add("seqused_q", options.seqused_q, problem.seqused_q, tensors.seqused_q);
  add("seqused_k", options.seqused_k, problem.seqused_k, tensors.seqused_k);
  add("leftpad_k", options.leftpad_k, problem.leftpad_k, tensors.leftpad_k);
  add("block_table", options.block_table, problem.block_table, tensors.block_table);
  add("cache_batch_idx", options.cache_batch_idx, problem.cache_batch_idx, tensors.cache_batch_idx);
  apply_dropout_state(options, anchor, tensors);
  problem.max_seqlen_q = options.max_seqlen_q;
  problem.max_seqlen_k = options.max_seqlen_k;
  if (options.softmax_scale) problem.softmax_scale = static_cast<float>(*options.softmax_scale);
  problem.softcap = static_cast<float>(options.softcap);
  problem.dropout_p = static_cast<float>(options.dropout_p);
  problem.window_size_left = options.window_size_left;
  problem.window_size_right = options.window_size_right;
  problem.deterministic = options.deterministic;
  problem.batch_invariant = options.batch_invariant;
  problem.causal = options.causal == Causal::kBottomRight;
  if (options.causal != Causal::kTopLeft) return;
  if (problem.q.rank != 4 || problem.k.rank != 4 || options.seqused_k || options.block_table) {
    raise_invalid("causal aligned top left: for dense q and k alone");
  }
  apply_top_left(problem);
}

}  // namespace foveal::python
