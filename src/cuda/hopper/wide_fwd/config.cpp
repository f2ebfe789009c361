#include "cuda/hopper/wide_fwd/config.hpp"

#include <array>
#include <numeric>

#include "core/format.hpp"
#include "core/integer.hpp"
#include "cuda/hopper/forward_rules.hpp"

namespace foveal::cuda::hopper::wide_fwd {
namespace {

using planner::KernelConfig;

constexpr std::array kTiles = {WideHdim320::tile, WideHdim384::tile, WideHdim448::tile,
                               WideHdim512::tile};
static_assert(kTiles.back().d == kMaxHeaddim);

/// Share of the device's matrix rate that a full machine attains, causal and 16K
/// (docs/kernels/hopper_hdim512.md).
constexpr double kComputeShare = 0.8;

std::int64_t width_of(const AttentionGeometry& geometry) {
  return max_of(geometry.headdim, geometry.headdim_v);
}

}  // namespace

const WideTile& wide_tile(const AttentionGeometry& geometry) {
  for (const WideTile& tile : kTiles) {
    if (tile.d >= width_of(geometry)) return tile;
  }
  return kTiles.back();
}

std::int64_t keys_of_box(const AttentionGeometry& geometry) {
  const std::int64_t keys = wide_tile(geometry).keys();
  return geometry.paged() ? std::gcd(keys, geometry.page_size) : keys;
}

ForwardSchedule forward_schedule(const AttentionProblem& problem,
                                 const AttentionGeometry& geometry) {
  return schedule_tiles(problem, geometry, wide_tile(geometry).m);
}

Status supports(const AttentionProblem& problem, const AttentionGeometry& geometry,
                const DeviceInfo& device) {
  const WideTile& tile = wide_tile(geometry);
  if (width_of(geometry) < kMinHeaddim) {
    return Status::unsupported(
        concat("headdim ", width_of(geometry), ": ", kName, " takes at least ", kMinHeaddim));
  }
  return check_forward({.kernel = kName,
                        .max_headdim = kMaxHeaddim,
                        .tile_m = tile.m,
                        .shared_bytes = tile.shared_bytes()},
                       problem, geometry, device);
}

KernelConfig configure_forward(const AttentionProblem& problem, const AttentionGeometry& geometry,
                               const DeviceInfo& device) {
  const WideTile& tile = wide_tile(geometry);
  const std::int64_t tiles = forward_schedule(problem, geometry).num_tiles;
  KernelConfig config;
  config.tile = {.m = tile.m, .n = tile.n};
  config.num_stages = tile.slots;
  config.num_threads = tile.num_threads();
  const std::int64_t clusters =
      min_of(tiles, max_of<std::int64_t>(device.num_sms / kClusterSize, 1));
  config.num_blocks = clusters * kClusterSize;
  config.cluster_size = kClusterSize;
  plan_stand_in(problem, geometry, device, config);
  if (tiles > clusters) config.workspace = {{"tiles begun", 8}};
  return config;
}

double predict_forward(const AttentionProblem& problem, const AttentionGeometry& geometry,
                       const KernelConfig& config, const DeviceInfo& device) {
  const WideTile& tile = wide_tile(geometry);
  return predict_tiles(problem, geometry,
                       {.m = tile.m,
                        .n = tile.n,
                        .d = tile.d,
                        .num_sms = kClusterSize,
                        .compute_share = kComputeShare},
                       forward_schedule(problem, geometry).num_tiles, config, device);
}

}  // namespace foveal::cuda::hopper::wide_fwd
