#include "tools/device_flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <vector>

#include <foveal/plan.hpp>

#include "tools/message_text.hpp"

namespace foveal::tools {
namespace {

constexpr std::int32_t kMaxThreads = 1024;

/// The planner reads the variable when it plans.
Status force_kernel(const std::string& name) {
  std::vector<std::string> names;
  for (const KernelInfo& kernel : kernels()) names.push_back(kernel.name);
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    return Status::invalid_argument(
        fmt::format("--kernel {}: there is no such kernel; there are {}", in_quotes(name),
                    fmt::join(names, ", ")));
  }
  ::setenv("FOVEAL_FORCE_KERNEL", name.c_str(), /*overwrite=*/1);
  return Status::ok();
}

}  // namespace

void add_device_flags(CLI::App& command, DeviceFlags& flags) {
  command
      .add_option("--device", flags.device,
                  "cpu, cpu:THREADS, cuda, cuda:INDEX; to explain also sm_NN")
      ->type_name("NAME")
      ->capture_default_str();
  command.add_option("--threads", flags.threads, "Threads of the CPU; without it the machine's")
      ->check(CLI::Range(std::int32_t{1}, kMaxThreads).description(""))
      ->type_name("N");
  command
      .add_option("--kernel", flags.kernel,
                  "Force the kernel of its pass (foveal devices lists them)")
      ->type_name("NAME");
}

Result<DeviceInfo> device_info_of(const DeviceFlags& flags) {
  if (!flags.kernel.empty()) FOVEAL_RETURN_IF_ERROR(force_kernel(flags.kernel));
  FOVEAL_ASSIGN_OR_RETURN(info, device_from_name(flags.device));
  if (flags.threads == 0) return info;
  if (info.type != DeviceType::kCpu) {
    return Status::invalid_argument(
        fmt::format("--threads {}: only the CPU has them, not {}", flags.threads, flags.device));
  }
  return device_info(Device::cpu(flags.threads));
}

Result<Device> device_of(const DeviceFlags& flags) {
  FOVEAL_ASSIGN_OR_RETURN(info, device_info_of(flags));
  if (!info.present) {
    return Status::unsupported(
        fmt::format("--device {}: a description to explain plans for, not a device of this machine",
                    flags.device));
  }
  return Device{.type = info.type, .index = info.index, .num_threads = info.num_threads};
}

std::optional<DType> dtype_of(const std::string& name) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  return std::nullopt;
}

}  // namespace foveal::tools
