#include "support/baseline_c.h"

#include <cmath>

#include "support/baseline.hpp"
#include "support/element.hpp"

namespace foveal::test {
namespace {

bool is_sound(const foveal_baseline_args* args) {
  if (args == nullptr || args->struct_size != sizeof(foveal_baseline_args)) return false;
  if (args->dtype < FOVEAL_BASELINE_FP16 || args->dtype > FOVEAL_BASELINE_FP32) return false;
  if (args->batch < 0 || args->seqlen_q < 0 || args->seqlen_k < 0) return false;
  if (args->headdim < 1 || args->headdim_v < 1 || args->nheads_k < 1) return false;
  return args->nheads_q >= 1 && args->nheads_q % args->nheads_k == 0 && args->q != nullptr &&
         args->k != nullptr && args->v != nullptr;
}

DType dtype_of(const foveal_baseline_args& args) {
  if (args.dtype == FOVEAL_BASELINE_FP16) return DType::kFloat16;
  return args.dtype == FOVEAL_BASELINE_BF16 ? DType::kBFloat16 : DType::kFloat32;
}

std::vector<float> load(DType dtype, const void* data, std::int64_t begin, std::int64_t count) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(load_element(dtype, data, begin + i)));
  }
  return values;
}

void store(DType dtype, void* data, std::int64_t begin, const std::vector<float>& values) {
  if (data == nullptr) return;
  for (const float value : values) {
    store_element(dtype, data, begin++, static_cast<double>(value));
  }
}

bool is_visible(const foveal_baseline_args& args, std::int64_t i, std::int64_t j) {
  const std::int64_t diagonal = i + args.seqlen_k - args.seqlen_q;
  return (args.causal == 0 || j <= diagonal) &&
         (args.window_size_left < 0 || j >= diagonal - args.window_size_left) &&
         (args.window_size_right < 0 || j <= diagonal + args.window_size_right);
}

BaselineInput gather(const foveal_baseline_args& args, std::int64_t b) {
  const DType dtype = dtype_of(args);
  BaselineInput input;
  input.dtype = dtype;
  input.n_q = args.seqlen_q;
  input.n_k = args.seqlen_k;
  input.nheads_q = args.nheads_q;
  input.nheads_k = args.nheads_k;
  input.headdim = args.headdim;
  input.headdim_v = args.headdim_v;
  input.scale = args.softmax_scale != 0
                    ? args.softmax_scale
                    : static_cast<float>(1 / std::sqrt(static_cast<double>(args.headdim)));
  input.softcap = args.softcap;
  input.keep_scale = args.keep_scale;
  const auto rows = [&](const void* data, std::int64_t count) {
    return load(dtype, data, b * count, count);
  };
  const std::int64_t rows_q = args.seqlen_q * args.nheads_q;
  const std::int64_t rows_k = args.seqlen_k * args.nheads_k;
  const std::int64_t pairs = rows_q * args.seqlen_k;
  input.q = rows(args.q, rows_q * args.headdim);
  input.k = rows(args.k, rows_k * args.headdim);
  input.v = rows(args.v, rows_k * args.headdim_v);
  if (args.dout != nullptr) input.dout = rows(args.dout, rows_q * args.headdim_v);
  for (std::int64_t i = 0; i < args.seqlen_q; ++i) {
    for (std::int64_t j = 0; j < args.seqlen_k; ++j) {
      input.visible.push_back(is_visible(args, i, j) ? 1 : 0);
    }
  }
  if (args.bias != nullptr) input.bias.assign(args.bias + b * pairs, args.bias + (b + 1) * pairs);
  if (args.keep != nullptr) input.keep.assign(args.keep + b * pairs, args.keep + (b + 1) * pairs);
  if (args.dlse != nullptr) input.dlse.assign(args.dlse + b * rows_q, args.dlse + (b + 1) * rows_q);
  if (args.sinks != nullptr) input.sinks.assign(args.sinks, args.sinks + args.nheads_q);
  return input;
}

void run_sequence(const foveal_baseline_args& args, std::int64_t b) {
  const BaselineInput input = gather(args, b);
  const BaselineForward forward = baseline_forward(input);
  const std::int64_t rows_q = args.seqlen_q * args.nheads_q;
  const std::int64_t rows_k = args.seqlen_k * args.nheads_k;
  store(input.dtype, args.out, b * rows_q * args.headdim_v, forward.out);
  store(DType::kFloat32, args.lse, b * rows_q, forward.lse);
  if (args.dout == nullptr) return;
  const BaselineBackward backward = baseline_backward(input, forward);
  store(input.dtype, args.dq, b * rows_q * args.headdim, backward.dq);
  store(input.dtype, args.dk, b * rows_k * args.headdim, backward.dk);
  store(input.dtype, args.dv, b * rows_k * args.headdim_v, backward.dv);
  store(DType::kFloat32, args.dbias, b * rows_q * args.seqlen_k, backward.dbias);
  for (std::int64_t h = 0; args.dsinks != nullptr && h < args.nheads_q; ++h) {
    args.dsinks[h] += backward.dsinks[static_cast<std::size_t>(h)];
  }
}

}  // namespace
}  // namespace foveal::test

__attribute__((visibility("default"))) int foveal_baseline(const foveal_baseline_args* args) {
  if (!foveal::test::is_sound(args)) return 1;
  for (std::int64_t h = 0; args->dsinks != nullptr && h < args->nheads_q; ++h) args->dsinks[h] = 0;
  for (std::int64_t b = 0; b < args->batch; ++b) foveal::test::run_sequence(*args, b);
  return 0;
}
