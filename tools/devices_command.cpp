// foveal devices: the devices of this machine and the kernels that each can run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <foveal/device.hpp>
#include <foveal/plan.hpp>

#include "tools/commands.hpp"
#include "tools/gpu_session.hpp"
#include "tools/measure_machine.hpp"
#include "tools/plan_json.hpp"
#include "tools/progress.hpp"
#include "tools/units_text.hpp"

namespace foveal::tools {
namespace {

struct DevicesOptions {
  std::string device;  ///< Empty: all of this machine.
  bool measure = false;
  bool json = false;
};

struct DeviceReport {
  DeviceInfo info;
  std::vector<KernelVerdict> kernels;
  std::optional<MachineRates> measured;     ///< Of the CPU.
  std::optional<double> measured_copy_gbs;  ///< Of a GPU.
};

Result<std::vector<DeviceInfo>> chosen_devices(const DevicesOptions& options) {
  if (options.device.empty()) return devices();
  FOVEAL_ASSIGN_OR_RETURN(info, device_from_name(options.device));
  return std::vector<DeviceInfo>{info};
}

Result<std::vector<DeviceReport>> report_devices(const DevicesOptions& options) {
  FOVEAL_ASSIGN_OR_RETURN(infos, chosen_devices(options));
  std::vector<DeviceReport> reports;
  for (const DeviceInfo& info : infos) {
    DeviceReport report{.info = info,
                        .kernels = usable_kernels(info),
                        .measured = std::nullopt,
                        .measured_copy_gbs = std::nullopt};
    if (options.measure && info.type == DeviceType::kCpu) {
      Progress progress;
      progress.show("measuring " + info.name);
      FOVEAL_ASSIGN_OR_RETURN(rates, measure_machine(info.num_threads));
      report.measured = rates;
    }
    if (options.measure && info.type == DeviceType::kCuda && info.present) {
      FOVEAL_ASSIGN_OR_RETURN(session, GpuSession::open(info.index));
      FOVEAL_ASSIGN_OR_RETURN(copy_gbs, session->measure_copy_gbs());
      report.measured_copy_gbs = copy_gbs;
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

std::string title(const DeviceInfo& info) {
  if (info.type == DeviceType::kCpu) {
    return fmt::format("cpu  {}: {} threads, {}, {} of L2 a core", info.name, info.num_threads,
                       info.isa, bytes_text(static_cast<double>(info.l2_bytes)));
  }
  const std::string name = info.present ? fmt::format("cuda:{}", info.index) : "described";
  return fmt::format("{}  {}: sm_{}, {} SMs, {} of shared memory a block", name, info.name, info.sm,
                     info.num_sms, bytes_text(static_cast<double>(info.smem_per_block_bytes)));
}

std::string device_text(const DeviceReport& report) {
  const DeviceInfo& info = report.info;
  std::string text = title(info) + "\n";
  text += fmt::format(
      "  limits    fp32 {:.4g}, fp16 {:.4g}, bf16 {:.4g} GFLOP/s, read {:.4g} GB/s\n"
      "            {}\n",
      info.fp32_gflops, info.fp16_gflops, info.bf16_gflops, info.read_gbs, info.limits_source);
  if (report.measured) {
    text += fmt::format("  measured  fp32 {:.4g} GFLOP/s ({}), read {:.4g} GB/s, {} threads\n",
                        report.measured->fp32_gflops, report.measured->instruction_set,
                        report.measured->read_gbs, report.measured->num_threads);
  }
  if (report.measured_copy_gbs) {
    text += fmt::format("  measured  {:.4g} GB/s read and written by a copy within its memory\n",
                        *report.measured_copy_gbs);
  }
  text += "  kernels\n";
  for (const KernelVerdict& kernel : report.kernels) {
    const bool usable = kernel.outcome == KernelVerdict::Outcome::kChosen;
    text += fmt::format("    {:<3} {}: {}\n", usable ? "yes" : "no", kernel.name, kernel.reason);
  }
  return text;
}

OrderedJson device_json(const DeviceReport& report) {
  OrderedJson json = to_json(report.info);
  if (report.measured) {
    json["measured"] = {{"fp32_gflops", report.measured->fp32_gflops},
                        {"instruction_set", report.measured->instruction_set},
                        {"read_gbs", report.measured->read_gbs},
                        {"num_threads", report.measured->num_threads}};
  }
  if (report.measured_copy_gbs) json["measured"] = {{"copy_gbs", *report.measured_copy_gbs}};
  json["kernels"] = OrderedJson::array();
  for (const KernelVerdict& kernel : report.kernels) {
    json["kernels"].push_back({{"name", kernel.name},
                               {"usable", kernel.outcome == KernelVerdict::Outcome::kChosen},
                               {"reason", kernel.reason}});
  }
  return json;
}

Result<int> run(const DevicesOptions& options) {
  FOVEAL_ASSIGN_OR_RETURN(reports, report_devices(options));
  std::string text;
  if (options.json) {
    OrderedJson list = OrderedJson::array();
    for (const DeviceReport& report : reports) list.push_back(device_json(report));
    text = json_text({{"devices", list}});
  } else {
    for (const DeviceReport& report : reports) text += device_text(report);
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  return kExitOk;
}

const char* const kFooter =
    "Examples:\n"
    "  foveal devices\n"
    "  foveal devices --device cpu:1 --measure --json\n"
    "  foveal devices --device sm_90";

}  // namespace

void add_devices_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<DevicesOptions>();
  CLI::App* command = app.add_subcommand(
      "devices", "The devices of this machine, their limits, and the kernels that each can run.");
  command->footer(kFooter);
  command
      ->add_option("--device", options->device,
                   "One device: cpu, cpu:THREADS, cuda:INDEX, or sm_NN for a description")
      ->type_name("NAME");
  command->add_flag(
      "--measure", options->measure,
      "Measure the CPU's fp32 matrix rate and read bandwidth (a second or two), and a "
      "GPU's memory by a copy");
  command->add_flag("--json", options->json, "Print JSON alone");
  command->callback([options, &exit_code] { exit_code = exit_code_of(run(*options)); });
}

}  // namespace foveal::tools
