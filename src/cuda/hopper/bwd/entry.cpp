// The table entry of hopper_bwd.
#include "core/format.hpp"
#include "cuda/hopper/bwd/config.hpp"
#include "cuda/hopper/bwd/run.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cuda {
namespace {

/// wgmma is of compute capability 9.0 alone.
constexpr std::int32_t kHopperSm = 90;

Status usable(const DeviceInfo& device) {
  if (device.type != DeviceType::kCuda) {
    return Status::unsupported(
        concat(hopper::bwd::kName, " runs on GPUs; the device is ", device.name));
  }
  if (device.sm != kHopperSm) {
    return Status::unsupported(concat(hopper::bwd::kName, " runs on GPUs of sm_", kHopperSm,
                                      " alone; ", device.name, " is sm_", device.sm));
  }
  return Status::ok();
}

#if defined(FOVEAL_WITH_HOPPER)
constexpr auto* kRun = hopper::bwd::run;
#else
constexpr Status (*kRun)(const planner::LaunchContext&) = nullptr;
#endif

}  // namespace

const planner::KernelEntry kHopperBackward = {
    .name = hopper::bwd::kName,
    .summary =
        "gradients on the tensor cores and the copy engine of sm_90: fp16 and bf16, headdim to "
        "128, masks, sinks, packed",
    .pass = Pass::kBackward,
    .device = DeviceType::kCuda,
    .usable = usable,
    .supports = hopper::bwd::supports,
    .configure = hopper::bwd::configure,
    .predict = hopper::bwd::predict,
    .launch = kRun,
    .held_back = true,
};

}  // namespace foveal::cuda
