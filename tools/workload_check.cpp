#include "tools/workload_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include <foveal/experimental.hpp>

#include "tools/compare_results.hpp"
#include "tools/element_values.hpp"

namespace foveal::tools {
namespace {

/// FLOPs that the oracle spends on a workload at most, about ten seconds of a core.
constexpr double kOracleFlops = 2e10;

/// Which dimension of an operand counts query heads or KV heads.
enum class HeadKind : std::uint8_t { kQuery, kKey, kNone };

struct HeadAxis {
  HeadKind kind = HeadKind::kNone;
  std::size_t axis = 0;
};

HeadAxis head_axis(std::string_view name, const TensorSpec& spec) {
  const auto rank = static_cast<std::size_t>(spec.rank);
  for (const std::string_view rows : {"q", "out", "dout", "dq"}) {
    if (name == rows) return {HeadKind::kQuery, rank - 2};
  }
  for (const std::string_view keys : {"k", "v", "dk", "dv"}) {
    if (name == keys) return {HeadKind::kKey, rank - 2};
  }
  if (name == "lse") return {HeadKind::kQuery, rank - 2};
  if (name == "sinks" || name == "dsinks") return {HeadKind::kQuery, 0};
  return {};
}

/// A problem over one KV head and its query heads: heads don't see each other.
struct HeadSlice {
  AttentionProblem problem;
  AttentionTensors tensors;
};

HeadSlice slice_head(const AttentionProblem& problem, const AttentionTensors& tensors,
                     std::int64_t head_k) {
  HeadSlice slice{problem, tensors};
  const std::int64_t nheads_q = problem.q.shape[static_cast<std::size_t>(problem.q.rank - 2)];
  const std::int64_t nheads_k = problem.k.shape[static_cast<std::size_t>(problem.k.rank - 2)];
  const std::int64_t group = nheads_q / nheads_k;
  for (const OperandInfo& operand : operands()) {
    TensorSpec& spec = slice.problem.*operand.spec;
    if (!spec.present()) continue;
    const HeadAxis heads = head_axis(operand.name, spec);
    if (heads.kind == HeadKind::kNone) continue;
    const std::int64_t count = heads.kind == HeadKind::kQuery ? group : 1;
    const std::int64_t bytes = head_k * count * spec.strides[heads.axis] * dtype_bytes(spec.dtype);
    spec.shape[heads.axis] = count;
    if (operand.input != nullptr) {
      auto& pointer = slice.tensors.*operand.input;
      pointer = static_cast<const std::byte*>(pointer) + bytes;
    } else {
      auto& pointer = slice.tensors.*operand.output;
      pointer = static_cast<std::byte*>(pointer) + bytes;
    }
  }
  return slice;
}

/// Sums of squares over the parts of a result that were compared.
struct Accumulated {
  std::string result;
  double error_squares = 0;
  double reference_squares = 0;
  double max_abs = 0;
  std::int64_t compared = 0;
  std::int64_t not_finite = 0;
};

class Checker {
 public:
  Checker(const WorkloadInput& input, std::int32_t num_threads)
      : input_(input), num_threads_(num_threads) {}

  Result<WorkloadCheck> check(const AccuracyLimits& limits) {
    choose_coverage();
    const AttentionProblem& problem = input_.backward ? *input_.backward : input_.forward;
    for (const std::int64_t head : heads_) {
      const HeadSlice slice = slice_head(problem, input_.tensors, head);
      FOVEAL_RETURN_IF_ERROR(check_slice(slice));
    }
    WorkloadCheck check;
    check.coverage = coverage_;
    for (const Accumulated& sum : sums_) check.errors.push_back(judge(sum, limits));
    return check;
  }

 private:
  void choose_coverage() {
    const TensorSpec& k = input_.forward.k;
    const std::int64_t nheads_k = k.shape[static_cast<std::size_t>(k.rank - 2)];
    const AttentionProblem& problem = input_.backward ? *input_.backward : input_.forward;
    double flops = attention_work(problem, &input_.tensors).flops;
    coverage_ = "everything";
    for (std::int64_t head = 0; head < nheads_k; ++head) heads_.push_back(head);
    if (flops <= kOracleFlops) return;
    if (nheads_k > 2) {
      heads_ = {0, nheads_k - 1};
      flops *= 2.0 / static_cast<double>(nheads_k);
      coverage_ = fmt::format("kv heads 0 and {}", nheads_k - 1);
    }
    if (flops <= kOracleFlops || input_.backward) return;
    const TensorSpec& q = input_.forward.q;
    const std::int64_t rows = q.rank == 3 ? q.shape[0] : q.shape[0] * q.shape[1];
    // An odd step meets all positions within tiles.
    const auto step = static_cast<std::int64_t>(std::ceil(flops / kOracleFlops)) | 1;
    for (std::int64_t row = 0; row < rows; row += step) rows_.push_back(row);
    if (rows_.back() != rows - 1) rows_.push_back(rows - 1);
    coverage_ += fmt::format(", every {}th row", step);
  }

  Status check_slice(const HeadSlice& slice) {
    OracleOptions options;
    options.rows = rows_;
    options.num_threads = num_threads_;
    FOVEAL_ASSIGN_OR_RETURN(oracle, foveal::oracle(slice.problem, slice.tensors, options));
    const AttentionProblem& p = slice.problem;
    const AttentionTensors& t = slice.tensors;
    if (!input_.backward) {
      add("out", p.out, t.out, oracle.out);
      return Status::ok();
    }
    add("dq", p.dq, t.dq, oracle.dq);
    add("dk", p.dk, t.dk, oracle.dk);
    add("dv", p.dv, t.dv, oracle.dv);
    if (p.dsinks.present()) add("dsinks", p.dsinks, t.dsinks, oracle.dsinks);
    // out and lse are results of the forward that went before.
    AttentionProblem forward = slice_head(input_.forward, input_.tensors, 0).problem;
    FOVEAL_ASSIGN_OR_RETURN(forward_oracle, foveal::oracle(forward, t, options));
    add("out", p.out, t.out, forward_oracle.out);
    add("lse", p.lse, t.lse, forward_oracle.lse);
    return Status::ok();
  }

  /// Elements that the oracle left out (NaN) aren't compared.
  void add(const char* name, const TensorSpec& spec, const void* data,
           const std::vector<double>& reference) {
    Accumulated& sum = sum_of(name);
    const std::vector<double> values = values_of(*to_file_dtype(spec.dtype), spec, data);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(reference[i])) continue;
      ++sum.compared;
      if (!std::isfinite(values[i]) || !std::isfinite(reference[i])) {
        sum.not_finite += values[i] != reference[i];  // lse of an empty row is -inf in both
        continue;
      }
      const double error = std::abs(values[i] - reference[i]);
      sum.error_squares += error * error;
      sum.reference_squares += reference[i] * reference[i];
      sum.max_abs = std::max(sum.max_abs, error);
    }
  }

  Accumulated& sum_of(const char* name) {
    for (Accumulated& sum : sums_) {
      if (sum.result == name) return sum;
    }
    sums_.push_back({});
    sums_.back().result = name;
    return sums_.back();
  }

  static ResultError judge(const Accumulated& sum, const AccuracyLimits& limits) {
    ResultError error;
    error.result = sum.result;
    error.compared = sum.compared;
    error.finite = sum.not_finite == 0;
    error.max_abs = sum.max_abs;
    error.rel_frobenius =
        sum.error_squares == 0
            ? 0
            : std::sqrt(sum.error_squares / std::max(sum.reference_squares, 1e-300));
    error.passed = error.finite && error.rel_frobenius <= limits.rel_frobenius &&
                   error.max_abs <= limits.max_abs && error.compared > 0;
    return error;
  }

  const WorkloadInput& input_;
  std::int32_t num_threads_;
  std::vector<std::int64_t> heads_;
  std::vector<std::int64_t> rows_;
  std::string coverage_;
  std::vector<Accumulated> sums_;
};

}  // namespace

bool WorkloadCheck::passed() const {
  return !errors.empty() && std::all_of(errors.begin(), errors.end(),
                                        [](const ResultError& error) { return error.passed; });
}

Result<WorkloadCheck> check_workload(const WorkloadInput& input, const AccuracyLimits& limits,
                                     std::int32_t num_threads) {
  return Checker(input, num_threads).check(limits);
}

}  // namespace foveal::tools
