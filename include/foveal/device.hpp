// Where a problem runs, and what is known about that place.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <foveal/export.h>
#include <foveal/status.hpp>
#include <foveal/tensor.hpp>

namespace foveal {

enum class DeviceType : std::int32_t { kCpu = 0, kCuda = 1 };

/// A device by type and index. On the CPU `num_threads` is how many workers a plan divides its
/// work over; 0 takes FOVEAL_NUM_THREADS, else OpenMP's own number.
struct Device {
  DeviceType type = DeviceType::kCpu;
  std::int32_t index = 0;
  std::int32_t num_threads = 0;

  static constexpr Device cpu(std::int32_t num_threads = 0) {
    return {.type = DeviceType::kCpu, .index = 0, .num_threads = num_threads};
  }
  static constexpr Device cuda(std::int32_t index) {
    return {.type = DeviceType::kCuda, .index = index, .num_threads = 0};
  }
  bool operator==(const Device&) const = default;
};

/// Everything the planner knows of a device: plain numbers that can be printed, compared and made
/// up, so that a plan for a device that is not here can be explained.
struct DeviceInfo {
  DeviceType type = DeviceType::kCpu;
  std::int32_t index = 0;
  std::string name;     ///< As the machine reports it: "AMD EPYC", "NVIDIA H200".
  bool present = true;  ///< False for a description by name alone (`sm_120`).

  // CPU
  std::int32_t num_threads = 1;
  std::string isa;            ///< The best instruction set: "avx512_bf16", "avx2", "neon", ...
  std::int64_t l2_bytes = 0;  ///< Of one core.

  // CUDA
  std::int32_t sm = 0;  ///< Compute capability as 10 * major + minor: 80, 90, 120.
  std::int32_t num_sms = 0;
  std::int64_t smem_per_block_bytes = 0;  ///< The opt-in limit, lowered by FOVEAL_MAX_SMEM.

  // Limits for the roofline
  double fp32_gflops = 0;  ///< Matrix products with fp32 inputs, all cores.
  double fp16_gflops = 0;
  double bf16_gflops = 0;
  double read_gbs = 0;        ///< Memory reads, all cores, GB/s (1e9 bytes).
  std::string limits_source;  ///< Where the four numbers come from, in words.

  [[nodiscard]] double gflops(DType dtype) const {
    switch (dtype) {
      case DType::kFloat16: return fp16_gflops;
      case DType::kBFloat16: return bf16_gflops;
      default: return fp32_gflops;
    }
  }
  bool operator==(const DeviceInfo&) const = default;
};

/// The description of a device of this machine. kUnsupported when there is none such.
[[nodiscard]] FOVEAL_API Result<DeviceInfo> device_info(const Device& device);

/// All devices of this machine, the CPU first.
[[nodiscard]] FOVEAL_API std::vector<DeviceInfo> devices();

/// A device by text: "cpu", "cpu:4" (threads), "cuda", "cuda:1" for those of this machine;
/// "sm_80", "sm_90", "sm_120", ... describe a typical GPU of that family (present = false).
[[nodiscard]] FOVEAL_API Result<DeviceInfo> device_from_name(std::string_view name);

}  // namespace foveal
