// `foveal run --check`: the results against the fp64 oracle and against the file's own answers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <foveal/status.hpp>

#include "tools/attention_input.hpp"
#include "tools/attention_results.hpp"
#include "tools/compare_results.hpp"
#include "tools/error_limits.hpp"
#include "tools/expected_answers.hpp"
#include "tools/progress.hpp"

namespace foveal::tools {

/// What the oracle says of one result: row-major in its shape, in the problem's order.
struct OracleValue {
  const ResultTensor* result;
  std::vector<double> values;
};

/// One for each result, in their order: out, lse, ... Reads the input's own tensors, not those that
/// an append has written to.
Result<std::vector<OracleValue>> oracle_values(const AttentionInput& input,
                                               const AttentionResults& results,
                                               std::int32_t num_threads, Progress& progress);

struct Comparison {
  std::string result;
  const char* against = "";  ///< "oracle" or "expected".
  ErrorStats stats;
  ErrorLimits limits;
  bool passed = false;
};

/// Which values are compared.
enum class Checked : std::uint8_t {
  kResults,  ///< The kernels', with the oracle and with `expected`.
  kOracle,   ///< The oracle's own, with `expected`.
};

std::vector<Comparison> check_results(const AttentionInput& input, const AttentionResults& results,
                                      const std::vector<OracleValue>& oracle,
                                      const std::vector<ExpectedAnswer>& expected, Checked checked);

}  // namespace foveal::tools
