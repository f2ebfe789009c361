// The table entry of hopper_fwd.
#include <array>
#include <cstdint>

#include "cuda/hopper/device_rules.hpp"
#include "cuda/hopper/forward_launch.hpp"
#include "cuda/hopper/forward_rules.hpp"
#include "cuda/hopper/fwd/config.hpp"
#include "cuda/hopper/fwd/launch.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cuda::hopper {
namespace {

constexpr const char* kName = "hopper_fwd";

Status usable(const DeviceInfo& device) { return require_hopper(kName, device); }

Status supports(const AttentionProblem& problem, const AttentionGeometry& geometry,
                const DeviceInfo& device) {
  const ForwardTile& tile = forward_tile(geometry);
  return check_forward({.kernel = kName,
                        .max_headdim = kMaxHeaddim,
                        .tile_m = tile.m,
                        .shared_bytes = tile.shared_bytes()},
                       problem, geometry, device);
}

#if defined(FOVEAL_WITH_HOPPER)

struct Instance {
  ForwardTile tile;
  DType dtype;
  LaunchTiles launch;
};

template <class Config, DType kDType>
constexpr Instance instance() {
  return {Config::tile, kDType, launch_forward<Config, kDType>};
}

constexpr auto kInstances = std::to_array<Instance>({
    instance<ForwardHdim64, DType::kFloat16>(),
    instance<ForwardHdim96, DType::kFloat16>(),
    instance<ForwardHdim128, DType::kFloat16>(),
    instance<ForwardHdim192, DType::kFloat16>(),
    instance<ForwardHdim256, DType::kFloat16>(),
    instance<ForwardHdim64, DType::kBFloat16>(),
    instance<ForwardHdim96, DType::kBFloat16>(),
    instance<ForwardHdim128, DType::kBFloat16>(),
    instance<ForwardHdim192, DType::kBFloat16>(),
    instance<ForwardHdim256, DType::kBFloat16>(),
    instance<ForwardCapped<ForwardHdim64>, DType::kFloat16>(),
    instance<ForwardCapped<ForwardHdim96>, DType::kFloat16>(),
    instance<ForwardCapped<ForwardHdim128>, DType::kFloat16>(),
    instance<ForwardCapped<ForwardHdim192>, DType::kFloat16>(),
    instance<ForwardCapped<ForwardHdim256>, DType::kFloat16>(),
    instance<ForwardCapped<ForwardHdim64>, DType::kBFloat16>(),
    instance<ForwardCapped<ForwardHdim96>, DType::kBFloat16>(),
    instance<ForwardCapped<ForwardHdim128>, DType::kBFloat16>(),
    instance<ForwardCapped<ForwardHdim192>, DType::kBFloat16>(),
    instance<ForwardCapped<ForwardHdim256>, DType::kBFloat16>(),
});

constexpr LaunchTiles launch_of(const ForwardTile& tile, DType dtype) {
  for (const Instance& instance : kInstances) {
    if (instance.dtype == dtype && instance.tile == tile) return instance.launch;
  }
  return nullptr;
}

Status launch(const planner::LaunchContext& context) {
  ForwardTile tile = forward_tile(context.geometry);
  tile.capped = scales_first(context.problem, context.geometry);
  const CopyBox keys{tile.k_layout().panel_columns(),
                     static_cast<std::int32_t>(keys_of_box(context.geometry))};
  return launch_tiles(
      context, forward_schedule(context.problem, context.geometry, context.config.num_blocks),
      {.q = {tile.q_layout().panel_columns(), kWarpgroupRows}, .k = keys, .v = keys},
      launch_of(tile, context.problem.q.dtype));
}

constexpr auto kLaunch = &launch;
#else
constexpr std::nullptr_t kLaunch = nullptr;
#endif

}  // namespace
}  // namespace foveal::cuda::hopper

namespace foveal::cuda {

const planner::KernelEntry kHopperForward = {
    .name = hopper::kName,
    .summary =
        "tensor cores and copy engine of sm_90: prefill in fp16 and bf16, headdim to 256, masks, "
        "softcap, sinks, packed and paged",
    .pass = Pass::kForward,
    .device = DeviceType::kCuda,
    .usable = hopper::usable,
    .supports = hopper::supports,
    .configure = hopper::configure_forward,
    .predict = hopper::predict_forward,
    .launch = hopper::kLaunch,
};

}  // namespace foveal::cuda
