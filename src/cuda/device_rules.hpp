// What every CUDA kernel tells the planner alike.
#pragma once

#include <cstdint>

#include <foveal/device.hpp>
#include <foveal/problem.hpp>
#include <foveal/status.hpp>

namespace foveal::cuda {

/// The oldest GPUs that the kernels of portable/ run on: cp.async and bf16 products begin there.
inline constexpr std::int32_t kPortableSm = 80;

/// A GPU of compute capability `min_sm` (10 * major + minor) or later, present or described; else
/// kUnsupported, naming the kernel and the device.
[[nodiscard]] Status require_gpu(const char* kernel, const DeviceInfo& device, std::int32_t min_sm);

/// kUnsupported where a block may not have the `needed` bytes that the smallest tile of a headdim
/// takes.
[[nodiscard]] Status require_shared_memory(const DeviceInfo& device, std::int64_t headdim,
                                           std::int64_t needed);

/// The part of the roofline that a kernel attains, measured: 1 is the device's own rate.
struct Efficiency {
  double compute = 1;
  double memory = 1;
};

/// Microseconds by the roofline: a launch, and the longer of the products in `dtype` and the
/// traffic.
[[nodiscard]] double roofline_us(const AttentionWork& work, DType dtype, const DeviceInfo& device,
                                 const Efficiency& efficiency);

/// How many of `pairs` of a sequence and a head, whose keys and values are `bytes` each, a forward
/// begins side by side, at least 1: as many as share the L2 cache, in sections that are alike,
/// since a last one of few would end with long tiles on few multiprocessors.
[[nodiscard]] std::int64_t forward_section(std::int64_t pairs, std::int64_t bytes);

/// Whether the operand can be moved 16 bytes at a time: the elements of a row are adjacent, and
/// every row begins at a multiple of 16 bytes. Says nothing of how long a row is.
[[nodiscard]] bool has_aligned_rows(const TensorSpec& spec, const void* data);

}  // namespace foveal::cuda
