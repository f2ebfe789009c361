// The table entry of hopper_wide_bwd.
#include "cuda/hopper/device_rules.hpp"
#include "cuda/hopper/wide_bwd/config.hpp"
#include "cuda/hopper/wide_bwd/run.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cuda {
namespace {

Status usable(const DeviceInfo& device) {
  return hopper::require_hopper(hopper::wide_bwd::kName, device);
}

#if defined(FOVEAL_WITH_HOPPER)
constexpr auto* kRun = hopper::wide_bwd::run;
#else
constexpr Status (*kRun)(const planner::LaunchContext&) = nullptr;
#endif

}  // namespace

const planner::KernelEntry kHopperWideBackward = {
    .name = hopper::wide_bwd::kName,
    .summary =
        "gradients on sm_90 of headdim 257 to 512: fp16 and bf16, clusters of two blocks, masks, "
        "sinks, softcap, packed, deterministic",
    .pass = Pass::kBackward,
    .device = DeviceType::kCuda,
    .usable = usable,
    .supports = hopper::wide_bwd::supports,
    .configure = hopper::wide_bwd::configure,
    .predict = hopper::wide_bwd::predict,
    .launch = kRun,
};

}  // namespace foveal::cuda
