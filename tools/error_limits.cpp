#include "tools/error_limits.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tools/element_values.hpp"
#include "tools/tensor_walk.hpp"

namespace foveal::tools {
namespace {

constexpr double kFloat32Unit = 0x1p-24;

/// Largest relative error of one rounding.
double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return 0x1p-11;
    case DType::kBFloat16: return 0x1p-8;
    default: return kFloat32Unit;
  }
}

/// docs/numerics.md.
double relative_limit(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return 0.005;
    case DType::kBFloat16: return 0.01;
    default: return 1e-5;
  }
}

struct Magnitude {
  double element = 0;
  double row_norm = 0;
};

/// Over rows of the last dimension that are finite from end to end. `in_use` tells which rows of q
/// count; null: all.
Magnitude magnitude_of(const TensorSpec& spec, const void* data,
                       const std::vector<bool>* in_use = nullptr) {
  Magnitude largest;
  const std::optional<FileDType> dtype = to_file_dtype(spec.dtype);
  if (!dtype || spec.numel() == 0) return largest;
  const auto last = static_cast<std::size_t>(spec.rank - 1);
  const std::int64_t dim = spec.shape[last];
  const std::int64_t token = in_use != nullptr ? dim * spec.shape[last - 1] : 0;
  Magnitude row;
  for_each_element(spec, [&](std::int64_t index, std::int64_t offset) {
    const double value = element_value(*dtype, static_cast<const std::byte*>(data), offset);
    row.element = std::max(row.element, std::abs(value));
    row.row_norm += value * value;
    if ((index + 1) % dim != 0) return;
    const bool counts = in_use == nullptr || (*in_use)[static_cast<std::size_t>(index / token)];
    if (counts && std::isfinite(row.row_norm)) {
      largest.element = std::max(largest.element, row.element);
      largest.row_norm = std::max(largest.row_norm, std::sqrt(row.row_norm));
    }
    row = {};
  });
  return largest;
}

/// Largest sum over a row of |dout * out|.
double largest_delta(const AttentionProblem& problem, const AttentionTensors& tensors,
                     std::span<const double> out) {
  const TensorSpec& spec = problem.dout;
  const std::optional<FileDType> dtype = to_file_dtype(spec.dtype);
  if (!dtype || spec.numel() == 0) return 0;
  const std::int64_t dim = spec.shape[static_cast<std::size_t>(spec.rank - 1)];
  double largest = 0;
  double sum = 0;
  for_each_element(spec, [&](std::int64_t index, std::int64_t offset) {
    const double dout = element_value(*dtype, static_cast<const std::byte*>(tensors.dout), offset);
    sum += std::abs(dout * out[static_cast<std::size_t>(index)]);
    if ((index + 1) % dim != 0) return;
    if (std::isfinite(sum)) largest = std::max(largest, sum);
    sum = 0;
  });
  return largest;
}

double largest_finite(std::span<const double> values) {
  double largest = 0;
  for (const double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

double softmax_scale_of(const AttentionProblem& problem) {
  const std::int64_t headdim = problem.q.shape[static_cast<std::size_t>(problem.q.rank - 1)];
  return problem.softmax_scale ? std::abs(*problem.softmax_scale)
                               : 1 / std::sqrt(static_cast<double>(headdim));
}

/// What is added up to a result.
double terms_of(std::string_view result, const ErrorScales& scales) {
  if (result == "out") return scales.value;
  if (result == "dq") return scales.dq;
  if (result == "dk") return scales.dk;
  if (result == "dv") return scales.dout;
  if (result == "dsinks" || result == "dbias") return scales.ds;
  return 0;
}

/// Roundings that the largest value of a result may be off by. 16-bit: out is rounded once and its
/// weights once more; a gradient passes through p, ds and the rounded out. fp32: the errors of sums
/// and of exp, which grow with the scores.
double roundings_of(std::string_view result, DType dtype, const ErrorScales& scales) {
  const bool narrow = dtype != DType::kFloat32;
  if (result == "k" || result == "v") return 2;  // rotated, or copied
  if (result == "out") return narrow ? 1.85 : 18 + scales.score / 6;
  return narrow ? 8 : 64 + scales.score;
}

}  // namespace

const char* const kErrorRule =
    "--check compares every result with the fp64 oracle on the same inputs, and with the file's\n"
    "expected_* tensors. A result passes when it is finite where the reference is, and\n"
    "  ||result - reference|| / ||reference||  <=  1e-5 (fp32), 0.005 (fp16), 0.01 (bf16)\n"
    "  max |result - reference|                <=  roundings * u * max |reference|\n"
    "with u = 2^-24 (fp32), 2^-11 (fp16), 2^-8 (bf16), and 1.85 roundings for out in fp16 and "
    "bf16\n"
    "(18 + S/6 in fp32), 8 for a gradient (64 + S in fp32). S is the size of the scores: the\n"
    "larger of softmax_scale times the largest row norms of q and k, and of max |lse|. lse has "
    "the\n"
    "second limit alone, and it is 2^-24 * (16 + 4 max |lse| + S) for every dtype, since scores "
    "are\n"
    "summed in fp32. A reference that is nowhere above the rounding error of its own terms asks "
    "for\n"
    "no more of the result.\n"
    "Where --dtype rounds the inputs, the limits against expected_* grow by the error of the\n"
    "oracle on the rounded inputs. Rows past seqused_q are not compared.";

ErrorScales error_scales(const AttentionResults& results, std::span<const double> out,
                         std::span<const double> lse) {
  const AttentionProblem& forward = results.forward;
  const AttentionTensors& tensors = results.tensors;
  const double scale = softmax_scale_of(forward);
  const std::vector<bool> in_use = rows_in_use(forward, tensors);
  const Magnitude q = magnitude_of(forward.q, tensors.q, &in_use);
  const Magnitude k = magnitude_of(forward.k, tensors.k);
  ErrorScales scales;
  scales.score = std::max(scale * q.row_norm * k.row_norm, largest_finite(lse));
  scales.value = magnitude_of(forward.v, tensors.v).element;
  if (results.backward) {
    const AttentionProblem& backward = *results.backward;
    scales.dout = magnitude_of(backward.dout, tensors.dout).element;
    scales.ds =
        largest_delta(backward, tensors, out) + magnitude_of(backward.dlse, tensors.dlse).element;
    scales.dq = scale * scales.ds * k.element;
    scales.dk = scale * scales.ds * q.element;
  }
  return scales;
}

ErrorLimits error_limits(std::string_view result, DType dtype, const ErrorScales& scales,
                         double max_reference) {
  if (result == "lse") {
    return {.relative = std::numeric_limits<double>::infinity(),
            .max_abs = kFloat32Unit * (16 + 4 * max_reference + scales.score),
            .vanishing = 0};
  }
  const double roundings = roundings_of(result, dtype, scales);
  return {.relative = relative_limit(dtype),
          .max_abs = roundings * unit_roundoff(dtype) * max_reference,
          .vanishing = roundings * unit_roundoff(dtype) * terms_of(result, scales)};
}

bool within(const ErrorStats& stats, const ErrorLimits& limits) {
  if (stats.not_finite > 0) return false;
  if (stats.max_reference <= limits.vanishing && stats.max_abs <= limits.vanishing) return true;
  return stats.relative <= limits.relative && stats.max_abs <= limits.max_abs;
}

}  // namespace foveal::tools
