// What `foveal run` tells, for people and for programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/plan_json.hpp"
#include "tools/result_check.hpp"
#include "tools/timed_pass.hpp"

namespace foveal::tools {

/// Of an oracle's value, since all of it is for a file.
struct ValueSummary {
  std::string result;
  std::vector<std::int64_t> shape;  ///< In the file's order.
  double frobenius = 0;             ///< Of the finite values, as min and max.
  double min = 0;
  double max = 0;
  std::vector<double> first;  ///< The first few in the problem's order.
};

ValueSummary summarize(const OracleValue& value);

struct RunReport {
  std::string path;
  std::vector<TimedPass> passes;        ///< None with --oracle.
  std::vector<ValueSummary> summaries;  ///< With --oracle.
  std::optional<std::vector<Comparison>> check;
  std::string output_path;  ///< Empty: nothing was written.
  std::vector<std::string> written;

  /// Whether nothing was found wrong.
  [[nodiscard]] bool passed() const;
};

std::string report_text(const RunReport& report);
OrderedJson report_json(const RunReport& report);

}  // namespace foveal::tools
