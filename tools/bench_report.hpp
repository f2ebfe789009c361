// What `foveal bench` found, for people and as the JSON that `foveal compare` reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <foveal/device.hpp>
#include <foveal/problem.hpp>

#include "tools/manifest.hpp"
#include "tools/measure_machine.hpp"
#include "tools/paired_timing.hpp"
#include "tools/plan_json.hpp"
#include "tools/workload_check.hpp"

namespace foveal::tools {

inline constexpr const char* kBenchSchema = "foveal-bench-1";

struct BenchRow {
  std::string id;
  WorkloadRole role = WorkloadRole::kInfo;
  WorkloadPass pass = WorkloadPass::kForward;
  DType dtype = DType::kNone;
  std::string problem;               ///< to_string of the forward (or backward) problem.
  std::vector<std::string> kernels;  ///< One for each pass that is timed.
  std::vector<std::string> configurations;
  WorkloadCheck check;
  TimingSummary timing;  ///< Of a right result only.
  std::vector<double> samples_us;
  std::int64_t calls_per_sample = 0;
  std::int64_t copies = 1;      ///< Sets of inputs that the calls rotate over.
  std::int64_t peak_bytes = 0;  ///< Inputs, results and workspace of one call.
  AttentionWork work;           ///< Of all that is timed.
  bool memory_bound = false;

  [[nodiscard]] double gflops() const;
  [[nodiscard]] double gbs() const;
};

struct BenchReport {
  std::string manifest;
  Gates gates;
  DeviceInfo device;
  MachineRates ceilings;
  TimingSettings settings;
  std::string version;
  std::string date;  ///< ISO 8601, UTC.
  std::vector<BenchRow> rows;

  [[nodiscard]] bool all_right() const;
  /// Of the ceiling that bounds the row: measured, but for a GPU's products, which are held against
  /// the rate of its description.
  [[nodiscard]] double percent_of_ceiling(const BenchRow& row) const;
};

std::string bench_text(const BenchReport& report);
OrderedJson bench_json(const BenchReport& report);

}  // namespace foveal::tools
