#include "plan/gpu_families.hpp"

#include <array>

#include "core/environment.hpp"
#include "core/integer.hpp"

namespace foveal::planner {
namespace {

constexpr const char* kDatasheet = "the vendor's data sheet";

// Shared memory a block may have: CUDA C++ Programming Guide, compute capabilities, less 1 KiB.
constexpr std::array<GpuFamily, 6> kFamilies = {{
    {80, "A100 (sm_80)", 108, 163 << 10, 52e3, 312e3, 2039, kDatasheet},
    {86, "RTX 3090 (sm_86)", 82, 99 << 10, 12e3, 71e3, 936, kDatasheet},
    {89, "RTX 4090 (sm_89)", 128, 99 << 10, 27e3, 165e3, 1008, kDatasheet},
    {90, "H200 (sm_90)", 132, 227 << 10, 130e3, 787e3, 4350, "measured on one H200"},
    {100, "B200 (sm_100)", 148, 227 << 10, 375e3, 2250e3, 7700, kDatasheet},
    {120, "RTX 5070 Ti (sm_120)", 70, 99 << 10, 15e3, 88e3, 896, kDatasheet},
}};

}  // namespace

std::span<const GpuFamily> gpu_families() { return kFamilies; }

void apply_max_smem(DeviceInfo& device) {
  if (const auto limit = environment_integer("FOVEAL_MAX_SMEM"); limit && *limit > 0) {
    device.smem_per_block_bytes = min_of(device.smem_per_block_bytes, *limit);
  }
}

DeviceInfo describe_gpu(const GpuFamily& family) {
  DeviceInfo info;
  info.type = DeviceType::kCuda;
  info.name = family.name;
  info.present = false;
  info.num_threads = 0;
  info.sm = family.sm;
  info.num_sms = family.num_sms;
  info.smem_per_block_bytes = family.smem_per_block_bytes;
  apply_max_smem(info);
  info.fp32_gflops = family.fp32_gflops;
  info.fp16_gflops = family.fp16_gflops;
  info.bf16_gflops = family.fp16_gflops;
  info.read_gbs = family.read_gbs;
  info.limits_source = family.limits_source;
  return info;
}

}  // namespace foveal::planner
