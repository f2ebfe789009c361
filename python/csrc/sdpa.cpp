#include "sdpa.hpp"

#include <cstdint>
#include <stdexcept>
#include <utility>

#include <torch/csrc/stable/ops.h>

#include "errors.hpp"
#include "launch.hpp"
#include "options.hpp"

namespace foveal::python {
namespace {

constexpr std::int64_t kMaxHeaddim = 512;

bool is_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

std::int32_t torch_dtype(const Tensor& tensor) {
  std::int32_t dtype = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
  return dtype;
}

/// fp32, bf16 or fp16 by torch's number, without raising for the others.
bool has_float_dtype(const Tensor& tensor) {
  const std::int32_t dtype = torch_dtype(tensor);
  return dtype == aoti_torch_dtype_float32() || dtype == aoti_torch_dtype_bfloat16() ||
         dtype == aoti_torch_dtype_float16();
}

bool is_mask_dtype(const Tensor& mask) {
  return has_float_dtype(mask) || torch_dtype(mask) == aoti_torch_dtype_bool();
}

bool broadcasts(const TensorSpec& bias, const TensorSpec& q, const TensorSpec& k) {
  const std::int64_t full[] = {q.shape[0], q.shape[2], q.shape[1], k.shape[1]};
  for (std::size_t axis = 0; axis < 4; ++axis) {
    if (bias.shape[axis] != 1 && bias.shape[axis] != full[axis]) return false;
  }
  return bias.dtype == DType::kBool || bias.dtype == DType::kFloat32 || bias.dtype == q.dtype;
}

bool heads_match(const TensorSpec& q, const TensorSpec& k, bool enable_gqa) {
  if (q.shape[2] == k.shape[2]) return true;
  return enable_gqa && k.shape[2] > 0 && q.shape[2] % k.shape[2] == 0;
}

/// Where PyTorch's own function means something else than the engine does, or nothing.
bool taken(const AttentionProblem& problem, bool is_causal, bool enable_gqa) {
  const TensorSpec& q = problem.q;
  const TensorSpec& k = problem.k;
  const TensorSpec& v = problem.v;
  const std::int64_t headdim = q.shape[3];
  const bool mask_fits = !problem.bias.present() ||
                         (!is_causal && problem.bias.rank == 4 && broadcasts(problem.bias, q, k));
  return is_float(q.dtype) && q.dtype == k.dtype && q.dtype == v.dtype && headdim >= 1 &&
         headdim <= kMaxHeaddim && k.shape == v.shape && k.shape[3] == headdim &&
         q.shape[0] == k.shape[0] && heads_match(q, k, enable_gqa) && mask_fits;
}

[[noreturn]] void not_taken() { throw std::runtime_error("foveal.NotTaken: "); }

}  // namespace

Tensor sdpa(Tensor query, Tensor key, Tensor value, OptionalTensor attn_mask, bool is_causal,
            std::optional<double> scale, bool enable_gqa) {
  for (Tensor* tensor : {&query, &key, &value}) {
    if (tensor->dim() != 4 || !has_float_dtype(*tensor)) not_taken();
    if (!same_device(*tensor, query)) not_taken();
    if (!tensor->is_cpu() && tensor->stride(3) != 1) *tensor = torch::stable::contiguous(*tensor);
  }
  AttentionProblem problem;
  problem.q = spec_of("query", query, Layout::kBhsd);
  problem.k = spec_of("key", key, Layout::kBhsd);
  problem.v = spec_of("value", value, Layout::kBhsd);
  AttentionTensors tensors{.q = query.data_ptr(), .k = key.data_ptr(), .v = value.data_ptr()};
  Options options{.bias = std::move(attn_mask),
                  .softmax_scale = scale,
                  .causal = is_causal ? Causal::kTopLeft : Causal::kNo};
  if (options.bias) {
    if (options.bias->dim() > 4 || !is_mask_dtype(*options.bias)) not_taken();
    if (!same_device(*options.bias, query)) not_taken();
    while (options.bias->dim() < 4) options.bias = torch::stable::unsqueeze(*options.bias, 0);
    problem.bias = spec_of("attn_mask", *options.bias);
  }
  if (!taken(problem, is_causal, enable_gqa)) not_taken();
  Tensor out = empty_operand(query, problem.q, Layout::kBhsd);
  problem.out = spec_of("out", out, Layout::kBhsd);
  tensors.out = out.data_ptr();
  apply_options(options, query, problem, tensors);
  launch(problem, tensors, query);
  return out;
}

}  // namespace foveal::python
