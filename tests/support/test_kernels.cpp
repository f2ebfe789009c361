#include "support/test_kernels.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "support/device_memory.hpp"

namespace foveal::test {
namespace {

std::vector<std::string> split_list(std::string_view list) {
  std::vector<std::string> names;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    names.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return names;
}

bool is_kernel(std::string_view name) {
  const std::vector<KernelInfo> all = kernels();
  return std::any_of(all.begin(), all.end(),
                     [&](const KernelInfo& kernel) { return kernel.name == name; });
}

/// The names of FOVEAL_TEST_KERNELS; absent: all kernels. A wrong name would test nothing and pass.
const std::optional<std::vector<std::string>>& wanted_kernels() {
  static const auto wanted = []() -> std::optional<std::vector<std::string>> {
    const char* list = std::getenv("FOVEAL_TEST_KERNELS");
    if (list == nullptr || *list == '\0') return std::nullopt;
    std::vector<std::string> names = split_list(list);
    for (const std::string& name : names) {
      if (is_kernel(name)) continue;
      std::fprintf(stderr, "FOVEAL_TEST_KERNELS: no kernel is called %s\n", name.c_str());
      std::exit(2);
    }
    return names;
  }();
  return wanted;
}

bool is_wanted(const std::string& kernel) {
  const auto& wanted = wanted_kernels();
  return !wanted || std::find(wanted->begin(), wanted->end(), kernel) != wanted->end();
}

/// Empty where the device can run the kernel.
std::string refusal(const std::string& kernel, const DeviceInfo& device) {
  for (const KernelVerdict& verdict : usable_kernels(device)) {
    if (verdict.name != kernel) continue;
    return verdict.outcome == KernelVerdict::Outcome::kUnsupported ? verdict.reason : "";
  }
  return "there is no kernel of this name";
}

std::vector<std::string> find_usable(Pass pass, DeviceType type) {
  std::vector<std::string> names;
  if (type == DeviceType::kCuda && !no_gpu_reason().empty()) return names;
  const Result<DeviceInfo> device =
      device_info(type == DeviceType::kCuda ? kTestGpu : Device::cpu());
  for (const KernelInfo& kernel : kernels()) {
    const bool fits = kernel.pass == pass && kernel.device == type && is_wanted(kernel.name);
    if (device && fits && refusal(kernel.name, *device).empty()) names.push_back(kernel.name);
  }
  return names;
}

}  // namespace

DeviceType device_type_of(std::string_view kernel) {
  if (kernel == kAnyGpuKernel) return DeviceType::kCuda;
  for (const KernelInfo& info : kernels()) {
    if (info.name == kernel) return info.device;
  }
  return DeviceType::kCpu;
}

std::vector<std::string> usable_kernels_of(Pass pass, DeviceType type) {
  // Asked for each of thousands of cases; what a machine can run does not change meanwhile.
  static const auto all = [] {
    std::array<std::array<std::vector<std::string>, 2>, 4> lists;
    for (std::size_t p = 0; p < lists.size(); ++p) {
      for (const DeviceType one : {DeviceType::kCpu, DeviceType::kCuda}) {
        lists[p][static_cast<std::size_t>(one)] = find_usable(static_cast<Pass>(p), one);
      }
    }
    return lists;
  }();
  return all[static_cast<std::size_t>(pass)][static_cast<std::size_t>(type)];
}

std::vector<std::string> usable_kernels_of(Pass pass) {
  std::vector<std::string> names = usable_kernels_of(pass, DeviceType::kCpu);
  for (const std::string& name : usable_kernels_of(pass, DeviceType::kCuda)) names.push_back(name);
  return names;
}

bool kernels_are_filtered() { return wanted_kernels().has_value(); }

bool shared_memory_is_limited() { return std::getenv("FOVEAL_MAX_SMEM") != nullptr; }

std::vector<KernelInfo> cuda_kernels() {
  std::vector<KernelInfo> list;
  for (const KernelInfo& kernel : kernels()) {
    if (kernel.device == DeviceType::kCuda && is_wanted(kernel.name)) list.push_back(kernel);
  }
  return list;
}

std::string cuda_refusal(const std::string& kernel) {
  if (const std::string reason = no_gpu_reason(); !reason.empty()) return reason;
  return refusal(kernel, *device_info(kTestGpu));
}

}  // namespace foveal::test
