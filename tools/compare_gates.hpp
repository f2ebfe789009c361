// The gates between two results of `foveal bench` (or of a peer that writes the same JSON).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <foveal/status.hpp>

#include "tools/manifest.hpp"
#include "tools/plan_json.hpp"

namespace foveal::tools {

/// What compare reads of one workload of a result file.
struct MeasuredWorkload {
  std::string id;
  WorkloadRole role = WorkloadRole::kInfo;
  std::string problem;  ///< As explain words it; empty where the file has none.
  bool correct = false;
  std::optional<double> median_us;  ///< Absent where the result was wrong.
  double noise = 0;                 ///< Relative.
  double peak_bytes = 0;
};

struct MeasuredManifest {
  std::string implementation;
  std::string manifest;
  std::string machine;  ///< Name and threads of the device.
  Gates gates;
  std::vector<MeasuredWorkload> workloads;

  [[nodiscard]] const MeasuredWorkload* find(std::string_view id) const;
};

/// `source` begins each message.
Result<MeasuredManifest> parse_measured(std::string_view text, const std::string& source);

enum class GateOutcome : std::uint8_t { kPass, kFail, kShown };

/// One gate of one workload.
struct GateVerdict {
  std::string id;
  WorkloadRole role = WorkloadRole::kInfo;
  std::string gate;  ///< "correct", "latency", "memory"
  GateOutcome outcome = GateOutcome::kPass;
  std::optional<double> base;  ///< Microseconds or bytes.
  std::optional<double> candidate;
  double change = 0;     ///< candidate / base - 1
  double noise = 0;      ///< Relative; of both files together.
  std::string sentence;  ///< What was asked and by how much it was met or missed.
};

/// An id stands for one problem in both files, where both say which.
Status check_problems(const MeasuredManifest& base, const MeasuredManifest& candidate);

/// Every workload of the base must be in the candidate. Gates are the base's.
std::vector<GateVerdict> apply_gates(const MeasuredManifest& base,
                                     const MeasuredManifest& candidate);

[[nodiscard]] bool all_passed(const std::vector<GateVerdict>& verdicts);

std::string verdicts_text(const std::vector<GateVerdict>& verdicts);
OrderedJson verdicts_json(const std::vector<GateVerdict>& verdicts);

}  // namespace foveal::tools
