#include "cpu/device_rules.hpp"

#include "core/format.hpp"
#include "core/integer.hpp"

namespace foveal::cpu {
namespace {

// A parallel region costs about 10 us; a core does about 20 GFLOP/s or 10 GB/s meanwhile.
constexpr double kMinWorkerFlops = 200e3;
constexpr double kMinWorkerBytes = 100e3;

/// What a launch costs by itself.
constexpr double kStartUs = 1.0;

}  // namespace

Status require_cpu(const char* kernel, const DeviceInfo& device) {
  if (device.type == DeviceType::kCpu) return Status::ok();
  return Status::unsupported(concat(kernel, " runs on the CPU; the device is ", device.name));
}

std::int64_t worth_workers(const AttentionWork& work, const DeviceInfo& device) {
  const double bytes = work.read_bytes + work.written_bytes;
  const double wanted = work.flops / kMinWorkerFlops + bytes / kMinWorkerBytes;
  const std::int64_t available = max_of<std::int64_t>(device.num_threads, 1);
  return wanted >= static_cast<double>(available)
             ? available
             : max_of<std::int64_t>(static_cast<std::int64_t>(wanted), 1);
}

double roofline_us(const AttentionWork& work, std::int64_t workers, const DeviceInfo& device,
                   std::int64_t slot_terms) {
  const double share =
      static_cast<double>(workers) / static_cast<double>(max_of(device.num_threads, 1));
  const double flops_per_us = device.fp32_gflops * 1e3 * static_cast<double>(slot_terms) * share;
  const double bytes_per_us = device.read_gbs * 1e3 * share;
  const double compute_us = flops_per_us > 0 ? work.flops / flops_per_us : 0;
  const double memory_us =
      bytes_per_us > 0 ? (work.read_bytes + work.written_bytes) / bytes_per_us : 0;
  return kStartUs + max_of(compute_us, memory_us);
}

void note_strided_rows(const char* name, const TensorSpec& spec, const char* consequence,
                       std::vector<std::string>& notes) {
  if (!spec.present()) return;
  const auto last = static_cast<std::size_t>(spec.rank - 1);
  if (spec.strides[last] == 1 || spec.shape[last] == 1) return;
  notes.push_back(
      concat(name, ": its last dimension has stride ", spec.strides[last], "; ", consequence));
}

}  // namespace foveal::cpu
