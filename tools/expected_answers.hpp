// Known answers that a file holds beside its inputs: expected_out, expected_lse, ...
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <foveal/status.hpp>

#include "tools/attention_results.hpp"
#include "tools/safetensors.hpp"

namespace foveal::tools {

struct ExpectedAnswer {
  std::string result;          ///< The result's name: "out".
  std::vector<double> values;  ///< Row-major in the result's shape and the problem's order.
  /// Flat rows of q that `values` holds, the others being NaN; absent: all.
  std::optional<std::vector<std::int64_t>> rows;
};

/// Whether the name begins with `expected_`.
bool is_expected_name(std::string_view name);

/// The file's answers, their shapes checked against the results. An answer whose result isn't
/// computed is refused.
Result<std::vector<ExpectedAnswer>> load_expected(const SafetensorsFile& file,
                                                  const AttentionResults& results);

}  // namespace foveal::tools
