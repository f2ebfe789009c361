// The operators torch.ops.foveal.*: schemas and kernels. Each reads its arguments, describes the
// problem, launches, and gives the results back; one code for CPU and CUDA. Shapes for tracing,
// gradients and batching rules are in foveal/_torch_ops.py.
#include <utility>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "errors.hpp"
#include "launch.hpp"
#include "operand.hpp"
#include "options.hpp"
#include "sdpa.hpp"
#include "stack.hpp"

namespace foveal::python {
namespace {

/// A last dimension with gaps is copied on CUDA, where kernels load whole vectors.
Tensor with_adjacent_elements(Tensor tensor) {
  const std::int64_t rank = tensor.dim();
  if (tensor.is_cpu() || rank == 0 || tensor.stride(rank - 1) == 1) return tensor;
  return torch::stable::contiguous(tensor);
}

TensorSpec out_spec(const TensorSpec& q, const TensorSpec& v) {
  TensorSpec spec = q;
  const auto last = static_cast<std::size_t>(q.rank - 1);
  if (v.rank > 0) spec.shape[last] = v.shape[static_cast<std::size_t>(v.rank - 1)];
  return spec;
}

/// fp32 [batch, nheads_q, seqlen_q] or, packed, [nheads_q, total_q].
TensorSpec lse_spec(const TensorSpec& q) {
  if (q.rank == 3) return TensorSpec::contiguous(DType::kFloat32, {q.shape[1], q.shape[0]});
  return TensorSpec::contiguous(DType::kFloat32, {q.shape[0], q.shape[2], q.shape[1]});
}

void check_rank(const TensorSpec& q) {
  if (q.rank == 3 || q.rank == 4) return;
  raise_invalid("q has " + std::to_string(q.rank) + " dimensions: 3 or 4 needed");
}

struct Forward {
  Tensor out, lse;
};

/// A forward pass into new tensors. `problem` and `tensors` may have operands already: k_new and
/// what comes with it.
Forward run_forward(Tensor q, const Tensor& k, const Tensor& v, const Options& options,
                    bool want_lse, bool fp32_out, AttentionProblem& problem,
                    AttentionTensors& tensors) {
  q = with_adjacent_elements(std::move(q));
  add_operand("q", q, q, problem.q, tensors.q, options.layout);
  add_operand("k", k, q, problem.k, tensors.k, options.layout);
  add_operand("v", v, q, problem.v, tensors.v, options.layout);
  check_rank(problem.q);
  TensorSpec spec = out_spec(problem.q, problem.v);
  if (fp32_out) spec.dtype = DType::kFloat32;
  Tensor out = empty_operand(q, spec, options.layout);
  Tensor lse = want_lse ? empty_operand(q, lse_spec(problem.q)) : no_tensor(q);
  add_operand("out", out, q, problem.out, tensors.out, options.layout);
  if (want_lse) add_operand("lse", lse, q, problem.lse, tensors.lse);
  apply_options(options, q, problem, tensors);
  launch(problem, tensors, q);
  return {std::move(out), std::move(lse)};
}

/// (q, k, v, options, want_lse, fp32_out) -> (out, lse)
void forward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  ArgumentReader arguments(stack);
  Tensor q = arguments.tensor();
  Tensor k = arguments.tensor();
  Tensor v = arguments.tensor();
  const Options options = read_options(arguments);
  const bool want_lse = arguments.boolean();
  const bool fp32_out = arguments.boolean();
  AttentionProblem problem;
  AttentionTensors tensors;
  k = with_adjacent_elements(std::move(k));
  v = with_adjacent_elements(std::move(v));
  const Forward results =
      run_forward(std::move(q), k, v, options, want_lse, fp32_out, problem, tensors);
  put_results(stack, results.out, results.lse);
}

/// New tokens, as the cache operators take them.
struct NewTokens {
  OptionalTensor k_new, v_new, rotary_cos, rotary_sin;
  bool rotary_interleaved = false;
};

NewTokens read_new_tokens(ArgumentReader& arguments) {
  return {.k_new = arguments.optional_tensor(),
          .v_new = arguments.optional_tensor(),
          .rotary_cos = arguments.optional_tensor(),
          .rotary_sin = arguments.optional_tensor(),
          .rotary_interleaved = arguments.boolean()};
}

void apply_new_tokens(const NewTokens& tokens, const Tensor& anchor, AttentionProblem& problem,
                      AttentionTensors& tensors) {
  add_operand("k_new", tokens.k_new, anchor, problem.k_new, tensors.k_new);
  add_operand("v_new", tokens.v_new, anchor, problem.v_new, tensors.v_new);
  add_operand("rotary_cos", tokens.rotary_cos, anchor, problem.rotary_cos, tensors.rotary_cos);
  add_operand("rotary_sin", tokens.rotary_sin, anchor, problem.rotary_sin, tensors.rotary_sin);
  problem.rotary_interleaved = tokens.rotary_interleaved;
}

/// (q, k_cache!, v_cache!, new tokens, options, want_lse) -> (out, lse)
void forward_append(StableIValue* stack, std::uint64_t, std::uint64_t) {
  ArgumentReader arguments(stack);
  Tensor q = arguments.tensor();
  const Tensor k = arguments.tensor();
  const Tensor v = arguments.tensor();
  const NewTokens tokens = read_new_tokens(arguments);
  const Options options = read_options(arguments);
  const bool want_lse = arguments.boolean();
  AttentionProblem problem;
  AttentionTensors tensors;
  apply_new_tokens(tokens, q, problem, tensors);
  const Forward results =
      run_forward(std::move(q), k, v, options, want_lse, false, problem, tensors);
  put_results(stack, results.out, results.lse);
}

/// (q?, k_cache!, v_cache!, new tokens, seqused_k, leftpad_k?, block_table?, cache_batch_idx?,
/// causal) -> q_rotated, without elements where there is no q
void append_kv(StableIValue* stack, std::uint64_t, std::uint64_t) {
  ArgumentReader arguments(stack);
  const OptionalTensor q = arguments.optional_tensor();
  const Tensor k = arguments.tensor();
  const Tensor v = arguments.tensor();
  const NewTokens tokens = read_new_tokens(arguments);
  Options options;
  options.seqused_k = arguments.tensor();
  options.leftpad_k = arguments.optional_tensor();
  options.block_table = arguments.optional_tensor();
  options.cache_batch_idx = arguments.optional_tensor();
  options.causal = arguments.boolean() ? Causal::kBottomRight : Causal::kNo;
  AttentionProblem problem{.pass = Pass::kAppend};
  AttentionTensors tensors;
  add_operand("k", k, k, problem.k, tensors.k);
  add_operand("v", v, k, problem.v, tensors.v);
  apply_new_tokens(tokens, k, problem, tensors);
  Tensor q_rotated = no_tensor(k);
  if (q) {
    add_operand("q", *q, k, problem.q, tensors.q);
    q_rotated = empty_operand(*q, problem.q);
    add_operand("q_rotated", q_rotated, k, problem.q_rotated, tensors.q_rotated);
  }
  apply_options(options, k, problem, tensors);
  launch(problem, tensors, k);
  put_results(stack, q_rotated);
}

/// The tensors that a backward pass reads.
struct BackwardInputs {
  Tensor dout;
  OptionalTensor dlse;
  Tensor q, k, v, out, lse;
};

BackwardInputs read_backward_inputs(ArgumentReader& arguments) {
  return {.dout = with_adjacent_elements(arguments.tensor()),
          .dlse = arguments.optional_tensor(),
          .q = with_adjacent_elements(arguments.tensor()),
          .k = with_adjacent_elements(arguments.tensor()),
          .v = with_adjacent_elements(arguments.tensor()),
          .out = arguments.tensor(),
          .lse = arguments.tensor()};
}

/// (dout, dlse?, q, k, v, out, lse, options, needs of dq, dk, dv, dbias, dsinks) ->
/// (dq, dk, dv, dbias, dsinks), those that are not needed without elements
void backward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  ArgumentReader arguments(stack);
  const BackwardInputs in = read_backward_inputs(arguments);
  const Options options = read_options(arguments);
  const Layout layout = options.layout;
  AttentionProblem problem{.pass = Pass::kBackward};
  AttentionTensors tensors;
  add_operand("q", in.q, in.q, problem.q, tensors.q, layout);
  add_operand("k", in.k, in.q, problem.k, tensors.k, layout);
  add_operand("v", in.v, in.q, problem.v, tensors.v, layout);
  add_operand("out", in.out, in.q, problem.out, tensors.out, layout);
  add_operand("lse", in.lse, in.q, problem.lse, tensors.lse);
  add_operand("dout", in.dout, in.q, problem.dout, tensors.dout, layout);
  add_operand("dlse", in.dlse, in.q, problem.dlse, tensors.dlse);

  const bool cut = drops_last_keys(options.causal, problem);
  const auto gradient = [&](const char* name, const Tensor& of, Layout order, bool zero,
                            TensorSpec& spec, void*& data) {
    if (!arguments.boolean()) return no_tensor(of, spec_of(name, of).dtype);
    Tensor result = empty_gradient(of);
    if (zero) torch::stable::zero_(result);
    add_operand(name, result, in.q, spec, data, order);
    return result;
  };
  const Layout own = Layout::kBshd;
  const Tensor& bias = options.bias ? *options.bias : in.q;
  const Tensor& sinks = options.sinks ? *options.sinks : in.q;
  const Tensor dq = gradient("dq", in.q, layout, false, problem.dq, tensors.dq);
  const Tensor dk = gradient("dk", in.k, layout, cut, problem.dk, tensors.dk);
  const Tensor dv = gradient("dv", in.v, layout, cut, problem.dv, tensors.dv);
  const Tensor dbias = gradient("dbias", bias, own, cut, problem.dbias, tensors.dbias);
  const Tensor dsinks = gradient("dsinks", sinks, own, false, problem.dsinks, tensors.dsinks);
  apply_options(options, in.q, problem, tensors);
  launch(problem, tensors, in.q);
  put_results(stack, dq, dk, dv, dbias, dsinks);
}

std::tuple<Tensor, Tensor> merge(Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b) {
  AttentionProblem problem{.pass = Pass::kMerge};
  AttentionTensors tensors;
  add_operand("out_a", out_a, out_a, problem.out_a, tensors.out_a);
  add_operand("lse_a", lse_a, out_a, problem.lse_a, tensors.lse_a);
  add_operand("out_b", out_b, out_a, problem.out_b, tensors.out_b);
  add_operand("lse_b", lse_b, out_a, problem.lse_b, tensors.lse_b);
  Tensor out = empty_operand(out_a, problem.out_a);
  Tensor lse = empty_operand(out_a, problem.lse_a);
  add_operand("out", out, out_a, problem.out, tensors.out);
  add_operand("lse", lse, out_a, problem.lse, tensors.lse);
  launch(problem, tensors, out_a);
  return {std::move(out), std::move(lse)};
}

#define FOVEAL_TORCH_NEW_TOKENS \
  "Tensor? k_new, Tensor? v_new, Tensor? rotary_cos, Tensor? rotary_sin, bool rotary_interleaved"

}  // namespace

STABLE_TORCH_LIBRARY(foveal, library) {
  library.def(
      "sdpa(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, "
      "float? scale, bool enable_gqa) -> Tensor");
  library.def("forward(Tensor q, Tensor k, Tensor v, " FOVEAL_TORCH_OPTIONS
              ", bool want_lse, bool fp32_out) -> (Tensor out, Tensor lse)");
  library.def(
      "backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor "
      "lse, " FOVEAL_TORCH_OPTIONS
      ", bool need_dq, bool need_dk, bool need_dv, bool need_dbias, bool need_dsinks) -> "
      "(Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dsinks)");
  library.def(
      "forward_append(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, " FOVEAL_TORCH_NEW_TOKENS
      ", " FOVEAL_TORCH_OPTIONS ", bool want_lse) -> (Tensor out, Tensor lse)");
  library.def(
      "append_kv(Tensor? q, Tensor(a!) k_cache, Tensor(b!) v_cache, " FOVEAL_TORCH_NEW_TOKENS
      ", Tensor seqused_k, Tensor? leftpad_k, Tensor? block_table, "
      "Tensor? cache_batch_idx, bool causal) -> Tensor");
  library.def(
      "merge(Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b) -> (Tensor out, Tensor lse)");
}

void register_kernels(torch::stable::detail::StableLibrary& library) {
  library.impl("sdpa", TORCH_BOX(&sdpa));
  library.impl("forward", &forward);
  library.impl("backward", &backward);
  library.impl("forward_append", &forward_append);
  library.impl("append_kv", &append_kv);
  library.impl("merge", TORCH_BOX(&merge));
}

STABLE_TORCH_LIBRARY_IMPL(foveal, CPU, library) { register_kernels(library); }
STABLE_TORCH_LIBRARY_IMPL(foveal, CUDA, library) { register_kernels(library); }

}  // namespace foveal::python
