#include "tools/result_check.hpp"

#include <foveal/experimental.hpp>

#include <algorithm>
#include <utility>

#include "tools/element_values.hpp"

namespace foveal::tools {
namespace {

std::vector<double> take(OracleResult& forward, OracleResult& backward, std::string_view result) {
  if (result == "out") return std::move(forward.out);
  if (result == "lse") return std::move(forward.lse);
  if (result == "k") return std::move(forward.k_cache);
  if (result == "v") return std::move(forward.v_cache);
  if (result == "dq") return std::move(backward.dq);
  if (result == "dk") return std::move(backward.dk);
  if (result == "dv") return std::move(backward.dv);
  if (result == "dsinks") return std::move(backward.dsinks);
  if (result == "dbias") return std::move(backward.dbias);
  return {};
}

std::vector<bool> counted_rows(const std::vector<bool>& in_use, const ExpectedAnswer& answer) {
  if (!answer.rows) return in_use;
  std::vector<bool> counted(in_use.size(), false);
  for (const std::int64_t row : *answer.rows) {
    counted[static_cast<std::size_t>(row)] = in_use[static_cast<std::size_t>(row)];
  }
  return counted;
}

std::vector<double> computed_values(const ResultTensor& result) {
  return values_of(*to_file_dtype(result.spec.dtype), result.spec, result.buffer.data());
}

class Checker {
 public:
  Checker(const AttentionInput& input, const AttentionResults& results,
          const std::vector<OracleValue>& oracle, Checked checked)
      : input_(input),
        oracle_(oracle),
        checked_(checked),
        in_use_(rows_in_use(results.forward, results.tensors)),
        scales_(error_scales(results, oracle[0].values, oracle[1].values)) {}

  Comparison with_oracle(const OracleValue& value, std::span<const double> data) const {
    return judge(value, "oracle", compare(*value.result, data, value.values, in_use_));
  }

  Comparison with_expected(const ExpectedAnswer& answer) const {
    const OracleValue& value =
        *std::find_if(oracle_.begin(), oracle_.end(),
                      [&](const OracleValue& of) { return of.result->name == answer.result; });
    const std::vector<bool> rows = counted_rows(in_use_, answer);
    const ErrorStats of_oracle = compare(*value.result, value.values, answer.values, rows);
    if (checked_ == Checked::kOracle) return judge(value, "expected", of_oracle);
    Comparison comparison =
        judge(value, "expected",
              compare(*value.result, computed_values(*value.result), answer.values, rows));
    if (input_.rounded_from) {
      comparison.limits.max_abs += of_oracle.max_abs;
      comparison.limits.relative += of_oracle.relative;
      comparison.passed = within(comparison.stats, comparison.limits);
    }
    return comparison;
  }

 private:
  [[nodiscard]] Comparison judge(const OracleValue& value, const char* against,
                                 ErrorStats stats) const {
    const ErrorLimits limits =
        error_limits(value.result->name, input_.problem.q.dtype, scales_, stats.max_reference);
    const bool passed = within(stats, limits);
    return {.result = value.result->name,
            .against = against,
            .stats = std::move(stats),
            .limits = limits,
            .passed = passed};
  }

  const AttentionInput& input_;
  const std::vector<OracleValue>& oracle_;
  Checked checked_;
  std::vector<bool> in_use_;
  ErrorScales scales_;
};

}  // namespace

Result<std::vector<OracleValue>> oracle_values(const AttentionInput& input,
                                               const AttentionResults& results,
                                               std::int32_t num_threads, Progress& progress) {
  const OracleOptions options{
      .rows = {}, .use_given_out_and_lse = false, .num_threads = num_threads};
  progress.show("fp64 oracle: forward");
  FOVEAL_ASSIGN_OR_RETURN(forward, oracle(results.forward, input.tensors, options));
  OracleResult backward;
  if (results.backward) {
    progress.show("fp64 oracle: backward");
    FOVEAL_ASSIGN_OR_RETURN(gradients, oracle(*results.backward, input.tensors, options));
    backward = std::move(gradients);
  }
  std::vector<OracleValue> values;
  for (const ResultTensor& result : results.results) {
    values.push_back({.result = &result, .values = take(forward, backward, result.name)});
  }
  return values;
}

std::vector<Comparison> check_results(const AttentionInput& input, const AttentionResults& results,
                                      const std::vector<OracleValue>& oracle,
                                      const std::vector<ExpectedAnswer>& expected,
                                      Checked checked) {
  std::vector<Comparison> comparisons;
  const Checker checker(input, results, oracle, checked);
  if (checked == Checked::kResults) {
    for (const OracleValue& value : oracle) {
      comparisons.push_back(checker.with_oracle(value, computed_values(*value.result)));
    }
  }
  for (const ExpectedAnswer& answer : expected) {
    comparisons.push_back(checker.with_expected(answer));
  }
  return comparisons;
}

}  // namespace foveal::tools
