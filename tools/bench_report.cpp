#include "tools/bench_report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tools/units_text.hpp"

namespace foveal::tools {
namespace {

std::string rate_text(const BenchRow& row) {
  return row.memory_bound ? fmt::format("{:.1f} GB/s", row.gbs())
                          : fmt::format("{:.1f} GFLOP/s", row.gflops());
}

std::string error_text(const WorkloadCheck& check) {
  std::string text;
  for (const ResultError& error : check.errors) {
    if (error.passed) continue;
    text += fmt::format("  {}: relative {:.2e}, absolute {:.2e}{}\n", error.result,
                        error.rel_frobenius, error.max_abs, error.finite ? "" : ", not finite");
  }
  return text;
}

std::string heading(const BenchReport& report) {
  const DeviceInfo& device = report.device;
  if (device.type == DeviceType::kCuda) {
    return fmt::format(
        "{} on {}, {} SMs; ceilings: copies {:.0f} GB/s (measured), products {:.0f} GFLOP/s in "
        "fp16\n",
        report.manifest, device.name, device.num_sms, report.ceilings.read_gbs, device.fp16_gflops);
  }
  return fmt::format(
      "{} on {}, {} threads; measured ceilings: fp32 {:.0f} GFLOP/s, read {:.1f} GB/s\n",
      report.manifest, device.name, device.num_threads, report.ceilings.fp32_gflops,
      report.ceilings.read_gbs);
}

OrderedJson check_json(const WorkloadCheck& check) {
  OrderedJson json{
      {"passed", check.passed()}, {"coverage", check.coverage}, {"results", OrderedJson::array()}};
  for (const ResultError& error : check.errors) {
    json["results"].push_back({{"result", error.result},
                               {"passed", error.passed},
                               {"compared", error.compared},
                               {"finite", error.finite},
                               {"rel_frobenius", error.rel_frobenius},
                               {"max_abs", error.max_abs}});
  }
  return json;
}

OrderedJson row_json(const BenchReport& report, const BenchRow& row) {
  OrderedJson json{{"id", row.id},
                   {"role", role_name(row.role)},
                   {"pass", workload_pass_name(row.pass)},
                   {"problem", row.problem},
                   {"kernels", row.kernels},
                   {"configurations", row.configurations},
                   {"correct", check_json(row.check)},
                   {"peak_bytes", row.peak_bytes}};
  if (row.samples_us.empty()) return json;
  const TimingSummary& t = row.timing;
  json["time_us"] = {{"median", t.median_us},
                     {"min", t.min_us},
                     {"max", t.max_us},
                     {"quartile_1", t.quartile_1_us},
                     {"quartile_3", t.quartile_3_us},
                     {"samples", row.samples_us}};
  json["noise"] = t.noise;
  json["aa_us"] = {{"a", t.median_a_us}, {"b", t.median_b_us}};
  json["calls_per_sample"] = row.calls_per_sample;
  json["input_copies"] = row.copies;
  json["work"] = to_json(row.work);
  json["gflops"] = row.gflops();
  json["gbs"] = row.gbs();
  json["bound"] = row.memory_bound ? "memory" : "compute";
  json["percent_of_ceiling"] = report.percent_of_ceiling(row);
  return json;
}

}  // namespace

double BenchRow::gflops() const {
  return timing.median_us > 0 ? work.flops / timing.median_us / 1e3 : 0;
}

double BenchRow::gbs() const {
  return timing.median_us > 0 ? (work.read_bytes + work.written_bytes) / timing.median_us / 1e3 : 0;
}

bool BenchReport::all_right() const {
  return std::all_of(rows.begin(), rows.end(),
                     [](const BenchRow& row) { return row.check.passed(); });
}

double BenchReport::percent_of_ceiling(const BenchRow& row) const {
  // The CPU's kernels compute in fp32, whatever the dtype.
  const double products =
      device.type == DeviceType::kCuda ? device.gflops(row.dtype) : ceilings.fp32_gflops;
  const double ceiling = row.memory_bound ? ceilings.read_gbs : products;
  if (ceiling <= 0) return 0;
  return 100 * (row.memory_bound ? row.gbs() : row.gflops()) / ceiling;
}

std::string bench_text(const BenchReport& report) {
  std::string text = heading(report);
  std::size_t width = 8;
  for (const BenchRow& row : report.rows) width = std::max(width, row.id.size());
  text += fmt::format("{:<{}}  {:<9}  {:>10}  {:>7}  {:>10}  {:>16}  {:>7}  {}\n", "workload",
                      width, "role", "median", "noise", "peak", "rate", "ceiling", "right");
  for (const BenchRow& row : report.rows) {
    if (row.samples_us.empty()) {
      text += fmt::format("{:<{}}  {:<9}  WRONG, not timed ({})\n{}", row.id, width,
                          role_name(row.role), row.check.coverage, error_text(row.check));
      continue;
    }
    text += fmt::format("{:<{}}  {:<9}  {:>10}  {:>6.1f}%  {:>10}  {:>16}  {:>6.1f}%  {}\n", row.id,
                        width, role_name(row.role), time_text(row.timing.median_us),
                        100 * row.timing.noise, bytes_text(static_cast<double>(row.peak_bytes)),
                        rate_text(row), report.percent_of_ceiling(row), row.check.coverage);
  }
  return text;
}

OrderedJson bench_json(const BenchReport& report) {
  OrderedJson json{
      {"schema", kBenchSchema},
      {"implementation", "foveal"},
      {"version", report.version},
      {"date", report.date},
      {"manifest", report.manifest},
      {"gates",
       {{"improve", report.gates.improve},
        {"protected_latency", report.gates.protected_latency},
        {"protected_memory", report.gates.protected_memory}}},
      {"device", to_json(report.device)},
      {"ceilings",
       {{"fp32_gflops", report.ceilings.fp32_gflops},
        {"read_gbs", report.ceilings.read_gbs},
        {"num_threads", report.ceilings.num_threads},
        {"instruction_set", report.ceilings.instruction_set}}},
      {"settings",
       {{"rounds", report.settings.rounds}, {"min_sample_ms", report.settings.min_sample_ms}}},
      {"workloads", OrderedJson::array()}};
  for (const BenchRow& row : report.rows) json["workloads"].push_back(row_json(report, row));
  return json;
}

}  // namespace foveal::tools
