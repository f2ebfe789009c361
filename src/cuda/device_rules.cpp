#include "cuda/device_rules.hpp"

#include "core/format.hpp"
#include "core/integer.hpp"

namespace foveal::cuda {
namespace {

/// What a launch costs by itself, in a graph too.
constexpr double kStartUs = 2.0;
/// Bytes of L2 cache that the keys and values of one section may fill.
constexpr std::int64_t kSectionBytes = 32 << 20;

}  // namespace

Status require_gpu(const char* kernel, const DeviceInfo& device, std::int32_t min_sm) {
  if (device.type != DeviceType::kCuda) {
    return Status::unsupported(concat(kernel, " runs on GPUs; the device is ", device.name));
  }
  if (device.sm < min_sm) {
    return Status::unsupported(concat(kernel, " runs on GPUs from sm_", min_sm, " on; ",
                                      device.name, " is sm_", device.sm));
  }
  return Status::ok();
}

Status require_shared_memory(const DeviceInfo& device, std::int64_t headdim, std::int64_t needed) {
  if (device.smem_per_block_bytes >= needed) return Status::ok();
  return Status::unsupported(concat("a block may have ", device.smem_per_block_bytes,
                                    " bytes of shared memory: headdim ", headdim, " needs ",
                                    needed));
}

double roofline_us(const AttentionWork& work, DType dtype, const DeviceInfo& device,
                   const Efficiency& efficiency) {
  const double flops_per_us = device.gflops(dtype) * 1e3 * efficiency.compute;
  const double bytes_per_us = device.read_gbs * 1e3 * efficiency.memory;
  const double compute_us = flops_per_us > 0 ? work.flops / flops_per_us : 0;
  const double memory_us =
      bytes_per_us > 0 ? (work.read_bytes + work.written_bytes) / bytes_per_us : 0;
  return kStartUs + max_of(compute_us, memory_us);
}

std::int64_t forward_section(std::int64_t pairs, std::int64_t bytes) {
  pairs = max_of<std::int64_t>(pairs, 1);
  const std::int64_t sections =
      clamp_to<std::int64_t>(ceil_div(pairs * bytes, kSectionBytes), 1, pairs);
  return ceil_div(pairs, sections);
}

bool has_aligned_rows(const TensorSpec& spec, const void* data) {
  constexpr std::int64_t kUnitBytes = 16;
  if (reinterpret_cast<std::uintptr_t>(data) % kUnitBytes != 0) return false;
  const auto last = static_cast<std::size_t>(spec.rank - 1);
  if (spec.strides[last] != 1) return false;
  for (std::size_t axis = 0; axis < last; ++axis) {
    const std::int64_t bytes = spec.strides[axis] * dtype_bytes(spec.dtype);
    if (spec.shape[axis] > 1 && bytes % kUnitBytes != 0) return false;
  }
  return true;
}

}  // namespace foveal::cuda
