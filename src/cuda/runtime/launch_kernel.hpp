// One way to launch a kernel whose only parameter is a value: dynamic shared memory, clusters, the
// stream, and the error as Status.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

#include <foveal/status.hpp>

#include "cuda/runtime/runtime_error.hpp"

namespace foveal::cuda {

struct LaunchShape {
  std::int64_t num_blocks = 0;  ///< Along x.
  std::int64_t num_blocks_y = 1;
  std::int64_t num_blocks_z = 1;
  int num_threads = 0;
  int shared_bytes = 0;
  int cluster_size = 1;
  void* stream = nullptr;
  /// May begin while the launch before it in the stream still runs; the kernel waits for that
  /// itself (ptx/grid_order.cuh).
  bool overlaps_before = false;
};

/// Remembers on which devices a kernel may already have all of a block's shared memory. One a
/// kernel, with static lifetime.
class SharedMemoryGrant {
 public:
  /// Asks the runtime the first time on the current device.
  template <class Kernel>
  [[nodiscard]] Status ensure(const char* name, Kernel* kernel) {
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return to_status(error, name);
    const std::uint64_t bit = device < 64 ? std::uint64_t{1} << device : 0;
    if ((granted_.load(std::memory_order_acquire) & bit) != 0) return Status::ok();
    int limit = 0;
    error = cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess) return to_status(error, name);
    cudaFuncAttributes attributes{};
    error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return to_status(error, name);
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 limit - static_cast<int>(attributes.sharedSizeBytes));
    if (error != cudaSuccess) return to_status(error, name);
    granted_.fetch_or(bit, std::memory_order_release);
    return Status::ok();
  }

 private:
  std::atomic<std::uint64_t> granted_{0};
};

/// `name` is for the message of an error. A grid without blocks launches nothing.
template <class Args>
[[nodiscard]] Status launch_kernel(const char* name, void (*kernel)(Args), const Args& args,
                                   const LaunchShape& shape, SharedMemoryGrant& grant) {
  if (shape.num_blocks == 0 || shape.num_blocks_y == 0 || shape.num_blocks_z == 0) {
    return Status::ok();
  }
  FOVEAL_RETURN_IF_ERROR(grant.ensure(name, kernel));
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(shape.num_blocks), static_cast<unsigned>(shape.num_blocks_y),
           static_cast<unsigned>(shape.num_blocks_z));
  config.blockDim = dim3(static_cast<unsigned>(shape.num_threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shape.shared_bytes);
  config.stream = static_cast<cudaStream_t>(shape.stream);
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (shape.cluster_size > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(shape.cluster_size), 1, 1};
  }
  if (shape.overlaps_before) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, args);
  if (error != cudaSuccess) cudaGetLastError();  // the next launch must not find it
  return to_status(error, name);
}

}  // namespace foveal::cuda
