// plan/cuda_runtime.hpp over the CUDA runtime.
#include <cuda_runtime_api.h>

#include <mutex>
#include <optional>
#include <vector>

#include "core/environment.hpp"
#include "core/format.hpp"
#include "core/integer.hpp"
#include "cuda/runtime/runtime_error.hpp"
#include "plan/cuda_runtime.hpp"
#include "plan/gpu_families.hpp"

namespace foveal::cuda {
namespace {

/// Share of the memory's nominal rate that one kernel that only reads attains: 4.35 of 4.8 TB/s on
/// an H200 (bench/results/h200).
constexpr double kReadShare = 0.9;

Result<std::int32_t> attribute(cudaDeviceAttr name, std::int32_t index) {
  int value = 0;
  const cudaError_t error = cudaDeviceGetAttribute(&value, name, index);
  if (error != cudaSuccess) return to_status(error, "cudaDeviceGetAttribute");
  return value;
}

/// The described family that `sm` belongs to, or the newest before it.
const planner::GpuFamily& family_of(std::int32_t sm) {
  const planner::GpuFamily* found = &planner::gpu_families().front();
  for (const planner::GpuFamily& family : planner::gpu_families()) {
    if (family.sm <= sm && family.sm >= found->sm) found = &family;
  }
  return *found;
}

/// Rates of the family a multiprocessor, and the memory's from its clock.
Status add_limits(std::int32_t index, DeviceInfo& info) {
  const planner::GpuFamily& family = family_of(info.sm);
  const double share = static_cast<double>(info.num_sms) / family.num_sms;
  info.fp32_gflops = family.fp32_gflops * share;
  info.fp16_gflops = family.fp16_gflops * share;
  info.bf16_gflops = info.fp16_gflops;
  FOVEAL_ASSIGN_OR_RETURN(clock_khz, attribute(cudaDevAttrMemoryClockRate, index));
  FOVEAL_ASSIGN_OR_RETURN(bus_bits, attribute(cudaDevAttrGlobalMemoryBusWidth, index));
  // Two transfers a clock.
  info.read_gbs = kReadShare * 2.0 * clock_khz * 1e3 * bus_bits / 8 / 1e9;
  info.limits_source = concat("products: those of an ", family.name,
                              " a multiprocessor; reads: nine tenths of the memory's clock");
  return Status::ok();
}

Result<DeviceInfo> ask_driver(std::int32_t index) {
  cudaDeviceProp properties{};
  const cudaError_t error = cudaGetDeviceProperties(&properties, index);
  if (error != cudaSuccess) return to_status(error, "cudaGetDeviceProperties");
  DeviceInfo info;
  info.type = DeviceType::kCuda;
  info.index = index;
  info.name = properties.name;
  info.num_threads = 0;
  info.sm = 10 * properties.major + properties.minor;
  info.num_sms = properties.multiProcessorCount;
  info.smem_per_block_bytes = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin);
  FOVEAL_RETURN_IF_ERROR(add_limits(index, info));
  return info;
}

/// What the driver said, asked once a device. Never destroyed: plans may be made while a program
/// ends.
struct KnownDevices {
  std::mutex mutex;
  std::vector<std::optional<DeviceInfo>> devices;
};
KnownDevices& known_devices() {
  static auto* instance = new KnownDevices;
  return *instance;
}

Status no_device(std::int32_t index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();  // the next launch must not find it
  // The runtime says so also where there is no driver at all.
  if (error == cudaErrorInsufficientDriver) {
    return Status::unsupported(concat("device cuda:", index,
                                      ": no NVIDIA driver is loaded, or one older than CUDA ",
                                      CUDART_VERSION / 1000, " needs"));
  }
  if (error != cudaSuccess) {
    return Status::unsupported(concat("device cuda:", index, ": ", cudaGetErrorString(error)));
  }
  return Status::unsupported(concat("device cuda:", index, ": this machine has ", count,
                                    count == 1 ? " GPU" : " GPUs", ", counted from 0"));
}

/// Makes `index` current; `former` becomes the device to go back to, if that is another.
Status enter_device(std::int32_t index, std::int32_t& former) {
  int current = 0;
  cudaError_t error = cudaGetDevice(&current);
  if (error == cudaSuccess && current != index) {
    error = cudaSetDevice(index);
    if (error == cudaSuccess) former = current;
  }
  return to_status(error, "cudaSetDevice");
}

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

Status to_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status::ok();
  const std::string text = concat(what, ": ", cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) return Status::out_of_memory(text);
  if (error == cudaErrorNoKernelImageForDevice) {
    return Status::unsupported(concat(text, " (FOVEAL_CUDA_ARCHS names what a build contains)"));
  }
  return Status::internal(text);
}

Status launch_status(const char* kernel) { return to_status(cudaGetLastError(), kernel); }

std::int32_t device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

Result<DeviceInfo> describe_device(std::int32_t index) {
  KnownDevices& known = known_devices();
  const std::lock_guard lock(known.mutex);
  if (known.devices.empty()) known.devices.resize(static_cast<std::size_t>(device_count()));
  if (index < 0 || static_cast<std::size_t>(index) >= known.devices.size()) return no_device(index);
  std::optional<DeviceInfo>& device = known.devices[static_cast<std::size_t>(index)];
  if (!device) {
    FOVEAL_ASSIGN_OR_RETURN(info, ask_driver(index));
    device = std::move(info);
  }
  DeviceInfo info = *device;
  planner::apply_max_smem(info);
  return info;
}

DeviceScope::DeviceScope(std::int32_t index) : status_(enter_device(index, former_)) {}

DeviceScope::~DeviceScope() {
  if (former_ >= 0) cudaSetDevice(former_);
}

Result<void*> allocate(std::size_t bytes, void* stream) {
  void* memory = nullptr;
  const cudaError_t error = cudaMallocAsync(&memory, bytes, as_stream(stream));
  if (error != cudaSuccess) {
    cudaGetLastError();
    return to_status(error, "cudaMallocAsync");
  }
  return memory;
}

Status release(void* memory, void* stream) {
  return to_status(cudaFreeAsync(memory, as_stream(stream)), "cudaFreeAsync");
}

Result<bool> is_capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  FOVEAL_RETURN_IF_ERROR(
      to_status(cudaStreamIsCapturing(as_stream(stream), &status), "cudaStreamIsCapturing"));
  return status != cudaStreamCaptureStatusNone;
}

Status read_back(void* host, const void* device, std::size_t bytes, void* stream) {
  FOVEAL_RETURN_IF_ERROR(
      to_status(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDefault, as_stream(stream)),
                "cudaMemcpyAsync"));
  return to_status(cudaStreamSynchronize(as_stream(stream)), "cudaStreamSynchronize");
}

}  // namespace foveal::cuda
