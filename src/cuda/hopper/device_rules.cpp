#include "cuda/hopper/device_rules.hpp"

#include <cstddef>
#include <cstdint>

#include "core/format.hpp"

namespace foveal::cuda::hopper {
namespace {

constexpr std::int32_t kHopperSm = 90;

/// Elements between rows, heads and sequences: the copy engine counts in 16 bytes, up to 2^40.
constexpr std::int64_t kStrideUnit = 8;
constexpr std::int64_t kMaxStride = std::int64_t{1} << 38;

}  // namespace

Status require_hopper(const char* kernel, const DeviceInfo& device) {
  if (device.type != DeviceType::kCuda) {
    return Status::unsupported(concat(kernel, " runs on GPUs; the device is ", device.name));
  }
  if (device.sm != kHopperSm) {
    return Status::unsupported(concat(kernel, " runs on GPUs of sm_", kHopperSm, " alone; ",
                                      device.name, " is sm_", device.sm));
  }
  return Status::ok();
}

Status check_strides(const char* kernel, const char* operand, const TensorSpec& spec) {
  const auto last = static_cast<std::size_t>(spec.rank - 1);
  bool fits = spec.shape[last] == 1 || spec.strides[last] == 1;
  for (std::size_t axis = 0; axis < last; ++axis) {
    const std::int64_t stride = spec.strides[axis];
    fits &=
        spec.shape[axis] <= 1 || (stride > 0 && stride < kMaxStride && stride % kStrideUnit == 0);
  }
  if (fits) return Status::ok();
  return Status::unsupported(concat(operand, " ", spec.to_string(), ": ", kernel,
                                    " takes adjacent elements and other strides that are positive "
                                    "multiples of ",
                                    kStrideUnit));
}

}  // namespace foveal::cuda::hopper
