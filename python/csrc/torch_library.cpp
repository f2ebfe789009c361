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
Tensor with_adjacent_elements(Tensor tensor, Layout) {
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
Forward run_forward(Tensor q, Tensor k, Tensor v, const Options& options, bool want_lse,
                    bool fp32_out, AttentionProblem& problem, AttentionTensors& tensors) {
  q = with_adjacent_elements(std::move(q), options.layout);
  problem.q = spec_of("q", q, options.layout);
  problem.k = spec_of("k", k, options.layout);
  problem.v = spec_of("v", v, options.layout);
  check_rank(problem.q);
  TensorSpec spec = out_spec(problem.q, problem.v);
  if (fp32_out) spec.dtype = DType::kFloat32;
  Tensor out = empty_operand(q, spec, options.layout);
  problem.out = spec_of("out", out, options.layout);
  Tensor lse = want_lse ? empty_operand(q, lse_spec(problem.q)) : no_tensor(q);
  tensors.q = q.data_ptr();
  tensors.k = k.data_ptr();
  tensors.v = v.data_ptr();
  tensors.out = out.data_ptr();
  if (want_lse) {
    problem.lse = spec_of("lse", lse);
    tensors.lse = lse.data_ptr();
  }
  apply_options(options, problem, tensors);
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
  k = with_adjacent_elements(std::move(k), options.layout);
  v = with_adjacent_elements(std::move(v), options.layout);
  const Forward results = run_forward(std::move(q), std::move(k), std::move(v), options, want_lse,
                                      fp32_out, problem, tensors);
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

void apply_new_tokens(const NewTokens& tokens, AttentionProblem& problem,
                      AttentionTensors& tensors) {
  problem.k_new = spec_of("k_new", tokens.k_new);
  problem.v_new = spec_of("v_new", tokens.v_new);
  problem.rotary_cos = spec_of("rotary_cos", tokens.rotary_cos);
  problem.rotary_sin = spec_of("rotary_sin", tokens.rotary_sin);
  problem.rotary_interleaved = tokens.rotary_interleaved;
  tensors.k_new = data_of(tokens.k_new);
  tensors.v_new = data_of(tokens.v_new);
  tensors.rotary_cos = data_of(tokens.rotary_cos);
  tensors.rotary_sin = data_of(tokens.rotary_sin);
}

/// (q, k_cache!, v_cache!, new tokens, options, want_lse) -> (out, lse)
void forward_append(StableIValue* stack, std::uint64_t, std::uint64_t) {
  ArgumentReader arguments(stack);
  Tensor q = arguments.tensor();
  Tensor k = arguments.tensor();
  Tensor v = arguments.tensor();
  const NewTokens tokens = read_new_tokens(arguments);
  const Options options = read_options(arguments);
  const bool want_lse = arguments.boolean();
  AttentionProblem problem;
  AttentionTensors tensors;
  apply_new_tokens(tokens, problem, tensors);
  const Forward results = run_forward(std::move(q), std::move(k), std::move(v), options, want_lse,
                                      false, problem, tensors);
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
  problem.k = spec_of("k", k);
  problem.v = spec_of("v", v);
  tensors.k = k.data_ptr();
  tensors.v = v.data_ptr();
  apply_new_tokens(tokens, problem, tensors);
  Tensor q_rotated = no_tensor(k);
  if (q) {
    problem.q = spec_of("q", *q);
    q_rotated = empty_operand(*q, problem.q);
    problem.q_rotated = spec_of("q_rotated", q_rotated);
    tensors.q = q->data_ptr();
    tensors.q_rotated = q_rotated.data_ptr();
  }
  apply_options(options, problem, tensors);
  launch(problem, tensors, k);
  put_results(stack, q_rotated);
}

/// (dout, dlse?, q, k, v, out, lse, options, needs of dq, dk, dv, dbias, dsinks) ->
/// (dq, dk, dv, dbias, dsinks), those that are not needed without elements
void backward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  ArgumentReader arguments(stack);
  Tensor dout = arguments.tensor();
  const OptionalTensor dlse = arguments.optional_tensor();
  Tensor q = arguments.tensor();
  Tensor k = arguments.tensor();
  Tensor v = arguments.tensor();
  const Tensor out = arguments.tensor();
  const Tensor lse = arguments.tensor();
  const Options options = read_options(arguments);
  const Layout layout = options.layout;
  for (Tensor* tensor : {&dout, &q, &k, &v}) {
    *tensor = with_adjacent_elements(std::move(*tensor), layout);
  }
  AttentionProblem problem{.pass = Pass::kBackward};
  AttentionTensors tensors;
  const auto read = [&](const char* name, const Tensor& tensor, Layout order, TensorSpec& spec,
                        auto& data) {
    spec = spec_of(name, tensor, order);
    data = tensor.data_ptr();
  };
  read("q", q, layout, problem.q, tensors.q);
  read("k", k, layout, problem.k, tensors.k);
  read("v", v, layout, problem.v, tensors.v);
  read("out", out, layout, problem.out, tensors.out);
  read("lse", lse, Layout::kBshd, problem.lse, tensors.lse);
  read("dout", dout, layout, problem.dout, tensors.dout);
  if (dlse) read("dlse", *dlse, Layout::kBshd, problem.dlse, tensors.dlse);

  const bool cut = drops_last_keys(options.causal, problem);
  const auto gradient = [&](const char* name, const Tensor& of, Layout order, bool zero,
                            TensorSpec& spec, void*& data) {
    if (!arguments.boolean()) return no_tensor(of, spec_of(name, of).dtype);
    Tensor result = empty_gradient(of);
    if (zero) torch::stable::zero_(result);
    read(name, result, order, spec, data);
    return result;
  };
  const Tensor dq = gradient("dq", q, layout, false, problem.dq, tensors.dq);
  const Tensor dk = gradient("dk", k, layout, cut, problem.dk, tensors.dk);
  const Tensor dv = gradient("dv", v, layout, cut, problem.dv, tensors.dv);
  const Tensor dbias = gradient("dbias", options.bias ? *options.bias : q, Layout::kBshd, cut,
                                problem.dbias, tensors.dbias);
  const Tensor dsinks = gradient("dsinks", options.sinks ? *options.sinks : q, Layout::kBshd, false,
                                 problem.dsinks, tensors.dsinks);
  apply_options(options, problem, tensors);
  launch(problem, tensors, q);
  put_results(stack, dq, dk, dv, dbias, dsinks);
}

std::tuple<Tensor, Tensor> merge(Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b) {
  AttentionProblem problem{.pass = Pass::kMerge};
  problem.out_a = spec_of("out_a", out_a);
  problem.out_b = spec_of("out_b", out_b);
  problem.lse_a = spec_of("lse_a", lse_a);
  problem.lse_b = spec_of("lse_b", lse_b);
  Tensor out = empty_operand(out_a, problem.out_a);
  Tensor lse = empty_operand(lse_a, problem.lse_a);
  problem.out = spec_of("out", out);
  problem.lse = spec_of("lse", lse);
  launch(problem,
         {.out = out.data_ptr(),
          .lse = lse.data_ptr(),
          .out_a = out_a.data_ptr(),
          .lse_a = lse_a.data_ptr(),
          .out_b = out_b.data_ptr(),
          .lse_b = lse_b.data_ptr()},
         out);
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
