// Typical GPUs by compute capability, for plans that are only explained.
#pragma once

#include <cstdint>
#include <span>

#include <foveal/device.hpp>

namespace foveal::planner {

struct GpuFamily {
  std::int32_t sm;  ///< 10 * major + minor
  const char* name;
  std::int32_t num_sms;
  std::int64_t smem_per_block_bytes;
  double fp32_gflops;  ///< fp32 inputs on tensor cores, as three TF32 products.
  double fp16_gflops;  ///< fp16 and bf16 with fp32 accumulation.
  double read_gbs;
  const char* limits_source;
};

[[nodiscard]] std::span<const GpuFamily> gpu_families();

/// Lowers a GPU's shared memory a block to FOVEAL_MAX_SMEM, where that is set.
void apply_max_smem(DeviceInfo& device);

/// The family's typical card as a device that is not present, with FOVEAL_MAX_SMEM applied.
[[nodiscard]] DeviceInfo describe_gpu(const GpuFamily& family);

}  // namespace foveal::planner
