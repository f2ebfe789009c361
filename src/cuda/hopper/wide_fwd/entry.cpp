// The table entry of hopper_wide_fwd.
#include <array>
#include <cstdint>

#include "core/integer.hpp"
#include "cuda/hopper/device_rules.hpp"
#include "cuda/hopper/forward_launch.hpp"
#include "cuda/hopper/wide_fwd/config.hpp"
#include "cuda/hopper/wide_fwd/launch.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cuda::hopper::wide_fwd {
namespace {

Status usable(const DeviceInfo& device) { return require_hopper(kName, device); }

#if defined(FOVEAL_WITH_HOPPER)

struct Instance {
  WideTile tile;
  DType dtype;
  LaunchTiles launch;
};

template <class Config, DType kDType>
constexpr Instance instance() {
  return {Config::tile, kDType, launch_forward<Config, kDType>};
}

constexpr auto kInstances = std::to_array<Instance>({
    instance<WideHdim320, DType::kFloat16>(),
    instance<WideHdim384, DType::kFloat16>(),
    instance<WideHdim448, DType::kFloat16>(),
    instance<WideHdim512, DType::kFloat16>(),
    instance<WideHdim320, DType::kBFloat16>(),
    instance<WideHdim384, DType::kBFloat16>(),
    instance<WideHdim448, DType::kBFloat16>(),
    instance<WideHdim512, DType::kBFloat16>(),
});

constexpr LaunchTiles launch_of(const WideTile& tile, DType dtype) {
  for (const Instance& instance : kInstances) {
    if (instance.dtype == dtype && instance.tile == tile) return instance.launch;
  }
  return nullptr;
}

Status launch(const planner::LaunchContext& context) {
  const WideTile& tile = wide_tile(context.geometry);
  const auto keys = static_cast<std::int32_t>(keys_of_box(context.geometry));
  return launch_tiles(context, forward_schedule(context.problem, context.geometry),
                      {.q = {tile.q_layout().panel_columns(), tile.m},
                       .k = {tile.k_layout().panel_columns(), keys},
                       .v = {tile.v_layout().panel_columns(), min_of(keys, tile.v_layout().rows)}},
                      launch_of(tile, context.problem.q.dtype));
}

constexpr auto kLaunch = &launch;
#else
constexpr std::nullptr_t kLaunch = nullptr;
#endif

}  // namespace
}  // namespace foveal::cuda::hopper::wide_fwd

namespace foveal::cuda {

const planner::KernelEntry kHopperWideForward = {
    .name = hopper::wide_fwd::kName,
    .summary =
        "tensor cores and copy engine of sm_90, two multiprocessors a tile: prefill in fp16 and "
        "bf16, headdim 257 to 512, masks, softcap, sinks, packed and paged",
    .pass = Pass::kForward,
    .device = DeviceType::kCuda,
    .usable = hopper::wide_fwd::usable,
    .supports = hopper::wide_fwd::supports,
    .configure = hopper::wide_fwd::configure_forward,
    .predict = hopper::wide_fwd::predict_forward,
    .launch = hopper::wide_fwd::kLaunch,
};

}  // namespace foveal::cuda
