// The table entry of hopper_bwd.
#include "cuda/hopper/bwd/config.hpp"
#include "cuda/hopper/bwd/run.hpp"
#include "cuda/hopper/device_rules.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cuda {
namespace {

Status usable(const DeviceInfo& device) {
  return hopper::require_hopper(hopper::bwd::kName, device);
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
        "256, masks, softcap, sinks, packed",
    .pass = Pass::kBackward,
    .device = DeviceType::kCuda,
    .usable = usable,
    .supports = hopper::bwd::supports,
    .configure = hopper::bwd::configure,
    .predict = hopper::bwd::predict,
    .launch = kRun,
};

}  // namespace foveal::cuda
