// Devices of this machine, and descriptions of those that are elsewhere.
#include <foveal/device.hpp>

#include <charconv>
#include <thread>

#include "core/environment.hpp"
#include "core/format.hpp"
#include "plan/cpu_features.hpp"
#include "plan/cuda_runtime.hpp"
#include "plan/gpu_families.hpp"
#include "plan/plan_cache.hpp"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace foveal {
namespace {

constexpr std::int32_t kMaxThreads = 1024;

Result<std::int32_t> default_num_threads() {
  if (const auto wanted = environment_text("FOVEAL_NUM_THREADS")) {
    const auto number = environment_integer("FOVEAL_NUM_THREADS");
    if (!number || *number < 1 || *number > kMaxThreads) {
      return Status::invalid_argument(
          concat("FOVEAL_NUM_THREADS=", *wanted, ": a whole number from 1 to ", kMaxThreads));
    }
    return static_cast<std::int32_t>(*number);
  }
#if defined(_OPENMP)
  return omp_get_max_threads();
#else
  const unsigned count = std::thread::hardware_concurrency();
  return count > 0 ? static_cast<std::int32_t>(count) : 1;
#endif
}

Status check_max_smem() {
  const auto wanted = environment_text("FOVEAL_MAX_SMEM");
  if (!wanted) return Status::ok();
  const auto bytes = environment_integer("FOVEAL_MAX_SMEM");
  if (bytes && *bytes > 0) return Status::ok();
  return Status::invalid_argument(
      concat("FOVEAL_MAX_SMEM=", *wanted, ": a number of bytes above 0"));
}

/// The number after a prefix such as "cuda:"; false when the text isn't that.
bool number_after(std::string_view text, std::string_view prefix, std::int32_t& number) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size();
}

Result<DeviceInfo> gpu_family(std::int32_t sm) {
  FOVEAL_RETURN_IF_ERROR(check_max_smem());
  std::string known;
  for (const planner::GpuFamily& family : planner::gpu_families()) {
    if (family.sm == sm) return planner::describe_gpu(family);
    known += concat(known.empty() ? "" : ", ", "sm_", family.sm);
  }
  return Status::invalid_argument(concat("device sm_", sm, ": described are ", known));
}

}  // namespace

namespace planner {

Status resolve_device(Device& device) {
  if (device.type != DeviceType::kCpu) return Status::ok();
  if (device.num_threads < 0 || device.num_threads > kMaxThreads) {
    return Status::invalid_argument(
        concat("num_threads ", device.num_threads, ": between 0 and ", kMaxThreads));
  }
  if (device.num_threads > 0) return Status::ok();
  FOVEAL_ASSIGN_OR_RETURN(threads, default_num_threads());
  device.num_threads = threads;
  return Status::ok();
}

}  // namespace planner

Result<DeviceInfo> device_info(const Device& device) {
  if (device.type == DeviceType::kCuda) {
    FOVEAL_RETURN_IF_ERROR(check_max_smem());
    return cuda::describe_device(device.index);
  }
  Device resolved = device;
  FOVEAL_RETURN_IF_ERROR(planner::resolve_device(resolved));
  return planner::describe_cpu(resolved.num_threads, environment_text("FOVEAL_CPU_ISA"));
}

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> list;
  if (auto cpu = device_info(Device::cpu())) list.push_back(*std::move(cpu));
  const std::int32_t num_gpus = cuda::device_count();
  for (std::int32_t index = 0; index < num_gpus; ++index) {
    if (auto gpu = device_info(Device::cuda(index))) list.push_back(*std::move(gpu));
  }
  return list;
}

Result<DeviceInfo> device_from_name(std::string_view name) {
  std::int32_t number = 0;
  if (name == "cpu") return device_info(Device::cpu());
  if (number_after(name, "cpu:", number) && number >= 1) return device_info(Device::cpu(number));
  if (name == "cuda") return device_info(Device::cuda(0));
  if (number_after(name, "cuda:", number) && number >= 0) return device_info(Device::cuda(number));
  if (number_after(name, "sm_", number)) return gpu_family(number);
  return Status::invalid_argument(
      concat("device ", name, ": cpu, cpu:THREADS, cuda, cuda:INDEX or sm_NN"));
}

}  // namespace foveal
