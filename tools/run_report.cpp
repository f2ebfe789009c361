#include "tools/run_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tools/message_text.hpp"
#include "tools/tensor_layout.hpp"
#include "tools/units_text.hpp"

namespace foveal::tools {
namespace {

constexpr std::size_t kFirstValues = 8;

std::string pass_text(const TimedPass& pass) {
  const Explanation& explanation = pass.plan.explanation();
  const double median = pass.median_us();
  const std::string flops = flops_rate_text(pass.work.flops, median);
  const std::string bytes = bytes_rate_text(pass.work.read_bytes + pass.work.written_bytes, median);
  std::string text = fmt::format(
      "{}\n"
      "  kernel     {}{}\n"
      "  workspace  {}\n"
      "  time       {}, median of {} ({} to {}); predicted {}\n"
      "  rate       {}, {}: {} bound\n",
      explanation.problem, explanation.kernel,
      explanation.configuration.empty() ? "" : " (" + explanation.configuration + ")",
      bytes_text(static_cast<double>(explanation.workspace_bytes)), time_text(median),
      pass.times_us.size(), time_text(pass.times_us.front()), time_text(pass.times_us.back()),
      time_text(explanation.predicted_time_us), flops, bytes,
      pass.memory_bound() ? "memory" : "compute");
  for (const std::string& note : explanation.notes) text += fmt::format("  note       {}\n", note);
  return text;
}

std::string summary_text(const ValueSummary& summary) {
  std::string first;
  for (const double value : summary.first) first += fmt::format(" {:.6g}", value);
  return fmt::format("  {:<6} {}  norm {:.6g}  from {:.6g} to {:.6g}  first{}\n", summary.result,
                     list_text(summary.shape), summary.frobenius, summary.min, summary.max, first);
}

std::string comparison_text(const Comparison& comparison) {
  const ErrorStats& stats = comparison.stats;
  const ErrorLimits& limits = comparison.limits;
  std::string text = fmt::format("  {:<4} {:<6} {:<8}  max {:.2e} (limit {:.2e})",
                                 comparison.passed ? "ok" : "FAIL", comparison.result,
                                 comparison.against, stats.max_abs, limits.max_abs);
  if (std::isfinite(limits.relative)) {
    text += fmt::format("  relative {:.2e} (limit {:.2e})", stats.relative, limits.relative);
  }
  if (stats.not_finite > 0) {
    text += fmt::format("  {} of {} differ in being finite", stats.not_finite, stats.compared);
  }
  if (!comparison.passed) text += fmt::format("  at {}", list_text(stats.worst));
  return text + "\n";
}

OrderedJson pass_json(const TimedPass& pass) {
  const double median = pass.median_us();
  const double bytes = pass.work.read_bytes + pass.work.written_bytes;
  OrderedJson json = to_json(pass.plan.explanation());
  json["pass"] = pass_name(pass.plan.problem().pass);
  json["time_us"] = {{"median", median},
                     {"min", pass.times_us.front()},
                     {"max", pass.times_us.back()},
                     {"repeats", pass.times_us.size()}};
  json["work_of_lengths"] = to_json(pass.work);
  json["gflops"] = pass.work.flops / median / 1e3;
  json["gbs"] = bytes / median / 1e3;
  return json;
}

OrderedJson comparison_json(const Comparison& comparison) {
  const ErrorStats& stats = comparison.stats;
  OrderedJson json{
      {"result", comparison.result},
      {"against", comparison.against},
      {"passed", comparison.passed},
      {"compared", stats.compared},
      {"max_abs", stats.max_abs},
      {"max_abs_limit", comparison.limits.max_abs},
      {"relative", stats.relative},
      {"relative_limit", comparison.limits.relative},
      {"max_reference", stats.max_reference},
      {"not_finite", stats.not_finite},
  };
  if (!stats.worst.empty()) json["worst"] = stats.worst;
  return json;
}

OrderedJson summary_json(const ValueSummary& summary) {
  return {
      {"result", summary.result}, {"shape", summary.shape}, {"frobenius", summary.frobenius},
      {"min", summary.min},       {"max", summary.max},     {"first", summary.first},
  };
}

}  // namespace

ValueSummary summarize(const OracleValue& value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  ValueSummary summary{.result = value.result->name,
                       .shape = file_shape(value.result->spec, value.result->heads_first),
                       .frobenius = 0,
                       .min = kInfinity,
                       .max = -kInfinity,
                       .first = {}};
  double squares = 0;
  for (const double element : value.values) {
    if (!std::isfinite(element)) continue;
    squares += element * element;
    summary.min = std::min(summary.min, element);
    summary.max = std::max(summary.max, element);
  }
  summary.frobenius = std::sqrt(squares);
  const std::size_t shown = std::min(kFirstValues, value.values.size());
  summary.first.assign(value.values.begin(), value.values.begin() + static_cast<long>(shown));
  return summary;
}

bool RunReport::passed() const {
  if (!check) return true;
  return std::all_of(check->begin(), check->end(),
                     [](const Comparison& comparison) { return comparison.passed; });
}

std::string report_text(const RunReport& report) {
  std::string text = report.path + "\n";
  for (const TimedPass& pass : report.passes) text += pass_text(pass);
  if (!report.summaries.empty()) text += "fp64 oracle\n";
  for (const ValueSummary& summary : report.summaries) text += summary_text(summary);
  if (report.check) {
    text += report.passed() ? "check passed\n" : "check FAILED\n";
    for (const Comparison& comparison : *report.check) text += comparison_text(comparison);
  }
  if (!report.output_path.empty()) {
    text += fmt::format("written    {}: {}\n", report.output_path, fmt::join(report.written, ", "));
  }
  return text;
}

OrderedJson report_json(const RunReport& report) {
  OrderedJson json{{"file", report.path}};
  json["passes"] = OrderedJson::array();
  for (const TimedPass& pass : report.passes) json["passes"].push_back(pass_json(pass));
  if (!report.summaries.empty()) {
    json["oracle"] = OrderedJson::array();
    for (const ValueSummary& summary : report.summaries) {
      json["oracle"].push_back(summary_json(summary));
    }
  }
  if (report.check) {
    json["check"] = {{"passed", report.passed()}, {"comparisons", OrderedJson::array()}};
    for (const Comparison& comparison : *report.check) {
      json["check"]["comparisons"].push_back(comparison_json(comparison));
    }
  }
  if (!report.output_path.empty()) {
    json["output"] = {{"path", report.output_path}, {"tensors", report.written}};
  }
  return json;
}

}  // namespace foveal::tools
