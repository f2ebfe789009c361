// foveal bench: a manifest's workloads, checked against the oracle and timed.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <utility>

#include <foveal/plan.hpp>

#include "tools/atomic_file.hpp"
#include "tools/bench_report.hpp"
#include "tools/commands.hpp"
#include "tools/device_flags.hpp"
#include "tools/gpu_session.hpp"
#include "tools/message_text.hpp"
#include "tools/progress.hpp"
#include "tools/workload_run.hpp"

namespace foveal::tools {
namespace {

struct BenchOptions {
  std::string manifest_path;
  std::string json_path;
  std::string only;  ///< Part of an id.
  DeviceFlags device;
  TimingSettings timing;

  /// `--json -` prints the JSON in place of the table.
  [[nodiscard]] bool prints_json() const { return json_path == "-"; }
  [[nodiscard]] bool writes_json() const { return !json_path.empty() && !prints_json(); }
};

Result<BenchRow> bench_workload(const Workload& workload, const Manifest& manifest,
                                const Device& device, const TimingSettings& settings,
                                Progress& progress) {
  progress.show(fmt::format("{}: inputs", workload.id));
  FOVEAL_ASSIGN_OR_RETURN(run, WorkloadRun::prepare(workload, device));
  FOVEAL_RETURN_IF_ERROR(run->run_all());
  progress.show(fmt::format("{}: oracle", workload.id));
  FOVEAL_ASSIGN_OR_RETURN(check, check_workload(run->input(), manifest.accuracy.of(workload.dtype),
                                                device.num_threads));
  if (!check.passed()) {
    BenchRow row = run->describe();
    row.check = std::move(check);
    return row;
  }
  FOVEAL_RETURN_IF_ERROR(run->prepare_timing());
  progress.show(fmt::format("{}: timing", workload.id));
  FOVEAL_ASSIGN_OR_RETURN(timing,
                          time_in_turn(settings, [&](std::int64_t first, std::int64_t calls) {
                            return run->sample_us(first, calls);
                          }));
  BenchRow row = run->describe();
  row.check = std::move(check);
  row.timing = summarize(timing);
  row.samples_us = timing.arm_a;
  row.samples_us.insert(row.samples_us.end(), timing.arm_b.begin(), timing.arm_b.end());
  row.calls_per_sample = timing.calls_per_sample;
  return row;
}

/// Of a GPU the memory's rate is measured, by a copy; products are held against its description.
Result<MachineRates> measure_ceilings(const DeviceInfo& device) {
  if (device.type == DeviceType::kCpu) return measure_machine(device.num_threads);
  FOVEAL_ASSIGN_OR_RETURN(session, GpuSession::open(device.index));
  FOVEAL_ASSIGN_OR_RETURN(copy_gbs, session->measure_copy_gbs());
  return MachineRates{.num_threads = 0,
                      .instruction_set = fmt::format("sm_{}", device.sm),
                      .fp32_gflops = device.fp32_gflops,
                      .read_gbs = copy_gbs};
}

Status write_json(const std::string& path, const std::string& text) {
  FOVEAL_ASSIGN_OR_RETURN(file, AtomicFile::create(path));
  FOVEAL_RETURN_IF_ERROR(file.write(text));
  return file.commit();
}

Result<int> bench(const BenchOptions& options) {
  FOVEAL_ASSIGN_OR_RETURN(manifest, load_manifest(options.manifest_path));
  if (options.writes_json()) {
    FOVEAL_RETURN_IF_ERROR(check_writable_beside(options.json_path, options.manifest_path));
  }
  FOVEAL_ASSIGN_OR_RETURN(device, device_of(options.device));
  const auto chosen = [&](const Workload& workload) {
    return workload.id.find(options.only) != std::string::npos;
  };
  if (std::none_of(manifest.workloads.begin(), manifest.workloads.end(), chosen)) {
    return Status::invalid_argument(fmt::format("--only {}: no workload of {} has this in its id",
                                                in_quotes(options.only), options.manifest_path));
  }

  BenchReport report;
  report.manifest = manifest.name;
  report.gates = manifest.gates;
  report.settings = options.timing;
  report.version = version();
  report.date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  FOVEAL_ASSIGN_OR_RETURN(info, device_info(device));
  report.device = info;
  {
    Progress progress;
    progress.show("measuring the machine");
    FOVEAL_ASSIGN_OR_RETURN(ceilings, measure_ceilings(report.device));
    report.ceilings = ceilings;
    for (const Workload& workload : manifest.workloads) {
      if (!chosen(workload)) continue;
      FOVEAL_ASSIGN_OR_RETURN(row,
                              bench_workload(workload, manifest, device, options.timing, progress));
      report.rows.push_back(std::move(row));
    }
  }
  const std::string json = json_text(bench_json(report));
  if (options.writes_json()) FOVEAL_RETURN_IF_ERROR(write_json(options.json_path, json));
  const std::string text = options.prints_json() ? json : bench_text(report);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return report.all_right() ? kExitOk : kExitCheckFailed;
}

const char* const kFooter =
    "Each workload is first checked against the fp64 oracle (a wrong one is reported, not timed),\n"
    "then timed as two arms in turn, A B B A ...: the difference between the arms is the noise\n"
    "that `foveal compare` allows for. Memory-bound workloads rotate over copies of their inputs,\n"
    "so that nothing stays in a cache. A GPU's calls are recorded in a graph and timed by its\n"
    "events. Peak memory is inputs, results and workspace.\n"
    "\nExamples:\n"
    "  foveal bench bench/manifests/foundation.json --json base.json\n"
    "  foveal bench bench/manifests/cpu.json --only decode --rounds 15\n"
    "  foveal bench bench/manifests/decode.json --device cuda:0\n"
    "\nExit codes: 0 done, 1 a result was wrong, 2 bad input or usage.";

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command = app.add_subcommand(
      "bench", "Checks and times the workloads of a manifest (bench/manifests).");
  command->footer(kFooter);
  command->add_option("MANIFEST", options->manifest_path, "The workloads, as JSON")
      ->required()
      ->type_name("");
  command
      ->add_option("--json", options->json_path,
                   "Also write the figures there, for foveal compare; -: print them, nothing else")
      ->type_name("FILE");
  command->add_option("--only", options->only, "Workloads whose id has this in it")
      ->type_name("TEXT");
  command->add_option("--rounds", options->timing.rounds, "Samples of each of the two arms")
      ->check(CLI::Range(std::int64_t{3}, std::int64_t{1000}))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--min-sample-ms", options->timing.min_sample_ms, "A sample's least time")
      ->check(CLI::Range(0.0, 1e5))
      ->type_name("MS")
      ->capture_default_str();
  add_device_flags(*command, options->device);
  command->callback([options, &exit_code] { exit_code = exit_code_of(bench(*options)); });
}

}  // namespace foveal::tools
