#include "tools/compare_results.hpp"

#include <cmath>
#include <limits>

namespace foveal::tools {
namespace {

/// The flat row of q that an element belongs to, from its row-major index.
class RowOfElement {
 public:
  RowOfElement(const TensorSpec& spec, RowAxes axes) : axes_(axes) {
    const auto rank = static_cast<std::size_t>(spec.rank);
    if (axes == RowAxes::kLeading) {
      inner_ = spec.shape[rank - 2] * spec.shape[rank - 1];
    } else if (axes == RowAxes::kTrailing) {
      seqlen_ = spec.shape[rank - 1];
      inner_ = spec.shape[rank - 2] * seqlen_;
    }
  }

  [[nodiscard]] std::size_t operator()(std::int64_t index) const {
    switch (axes_) {
      case RowAxes::kLeading: return static_cast<std::size_t>(index / inner_);
      case RowAxes::kTrailing:
        return static_cast<std::size_t>(index / inner_ * seqlen_ + index % seqlen_);
      default: return 0;
    }
  }

 private:
  RowAxes axes_;
  std::int64_t inner_ = 1;
  std::int64_t seqlen_ = 1;
};

std::vector<std::int64_t> coordinates(const TensorSpec& spec, std::int64_t index) {
  std::vector<std::int64_t> at(static_cast<std::size_t>(spec.rank));
  for (std::size_t axis = at.size(); axis-- > 0;) {
    at[axis] = index % spec.shape[axis];
    index /= spec.shape[axis];
  }
  return at;
}

double ratio(double error, double reference) {
  if (error == 0) return 0;
  return reference == 0 ? std::numeric_limits<double>::infinity() : error / reference;
}

bool same_without_a_value(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (std::isinf(a) && a == b);
}

}  // namespace

std::vector<bool> rows_in_use(const AttentionProblem& problem, const AttentionTensors& tensors) {
  const bool packed = problem.q.rank == 3;
  const std::int64_t seqlen = packed ? 0 : problem.q.shape[1];
  const std::int64_t rows = packed ? problem.q.shape[0] : problem.q.shape[0] * seqlen;
  std::vector<bool> in_use(static_cast<std::size_t>(rows), true);
  if (!problem.seqused_q.present()) return in_use;

  const auto* used = static_cast<const std::int32_t*>(tensors.seqused_q);
  const auto* cu_seqlens = static_cast<const std::int32_t*>(tensors.cu_seqlens_q);
  for (std::int64_t b = 0; b < problem.seqused_q.shape[0]; ++b) {
    const std::int64_t begin = packed ? cu_seqlens[b] : b * seqlen;
    const std::int64_t end = packed ? cu_seqlens[b + 1] : begin + seqlen;
    for (std::int64_t row = begin + used[b]; row < end; ++row) {
      in_use[static_cast<std::size_t>(row)] = false;
    }
  }
  return in_use;
}

ErrorStats compare(const ResultTensor& result, std::span<const double> data,
                   std::span<const double> reference, const std::vector<bool>& rows) {
  ErrorStats stats;
  const RowOfElement row_of(result.spec, result.rows);
  double error_squares = 0;
  double reference_squares = 0;
  std::int64_t worst = -1;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(reference.size()); ++i) {
    if (result.rows != RowAxes::kNone && !rows[row_of(i)]) continue;
    ++stats.compared;
    const double value = data[static_cast<std::size_t>(i)];
    const double wanted = reference[static_cast<std::size_t>(i)];
    if (same_without_a_value(value, wanted)) continue;
    if (!std::isfinite(value) || !std::isfinite(wanted)) {
      if (stats.not_finite++ == 0) worst = i;
      continue;
    }
    const double error = std::abs(value - wanted);
    error_squares += error * error;
    reference_squares += wanted * wanted;
    stats.max_reference = std::max(stats.max_reference, std::abs(wanted));
    if (error > stats.max_abs) {
      stats.max_abs = error;
      if (stats.not_finite == 0) worst = i;
    }
  }
  stats.relative = ratio(std::sqrt(error_squares), std::sqrt(reference_squares));
  if (worst >= 0) stats.worst = coordinates(result.spec, worst);
  return stats;
}

}  // namespace foveal::tools
