#include "cuda/hopper/fwd/config.hpp"

#include <array>
#include <numeric>

#include "core/integer.hpp"
#include "cuda/hopper/forward_rules.hpp"

namespace foveal::cuda::hopper {
namespace {

using planner::KernelConfig;

constexpr std::array kTiles = {ForwardHdim64::tile, ForwardHdim96::tile, ForwardHdim128::tile,
                               ForwardHdim192::tile, ForwardHdim256::tile};
static_assert(kTiles.back().d == kMaxHeaddim);

/// Share of the device's matrix rate that a full machine attains, causal and 16K
/// (bench/results/h200/gpu_ratio-prefill-joint.json).
double compute_share(const ForwardTile& tile) {
  if (tile.d <= 64) return 0.67;
  if (tile.d <= 96) return 0.8;
  return tile.d <= 128 ? 0.88 : 0.96;
}

}  // namespace

const ForwardTile& forward_tile(const AttentionGeometry& geometry) {
  const std::int64_t width = max_of(geometry.headdim, geometry.headdim_v);
  for (const ForwardTile& tile : kTiles) {
    if (tile.d >= width) return tile;
  }
  return kTiles.back();
}

std::int64_t keys_of_box(const AttentionGeometry& geometry) {
  const std::int64_t n = forward_tile(geometry).n;
  return geometry.paged() ? std::gcd(n, geometry.page_size) : n;
}

ForwardSchedule forward_schedule(const AttentionProblem& problem, const AttentionGeometry& geometry,
                                 std::int64_t num_blocks) {
  ForwardSchedule schedule = schedule_tiles(problem, geometry, forward_tile(geometry).m);
  // Where each tile has a block of its own, the longest ends last: with all its rows from the end
  // of a causal sequence it is twice as long as others.
  const algorithm::Window& window = geometry.window;
  const bool later_rows_see_more =
      window.left >= geometry.seqlen_k && window.right < geometry.seqlen_k;
  schedule.spread = !schedule.packed && schedule.m_blocks > 1 && schedule.num_tiles <= num_blocks &&
                    later_rows_see_more;
  return schedule;
}

KernelConfig configure_forward(const AttentionProblem& problem, const AttentionGeometry& geometry,
                               const DeviceInfo& device) {
  const ForwardTile& tile = forward_tile(geometry);
  const std::int64_t tiles = forward_schedule(problem, geometry, device.num_sms).num_tiles;
  KernelConfig config;
  config.tile = {.m = tile.m, .n = tile.n};
  config.num_stages = tile.num_stages;
  config.num_threads = tile.num_threads();
  config.num_blocks = min_of<std::int64_t>(tiles, device.num_sms);
  plan_stand_in(problem, geometry, device, config);
  if (tiles > config.num_blocks) config.workspace = {{"tiles begun", 8}};
  return config;
}

double predict_forward(const AttentionProblem& problem, const AttentionGeometry& geometry,
                       const KernelConfig& config, const DeviceInfo& device) {
  const ForwardTile& tile = forward_tile(geometry);
  return predict_tiles(
      problem, geometry,
      {.m = tile.m, .n = tile.n, .d = tile.d, .compute_share = compute_share(tile)},
      forward_schedule(problem, geometry, device.num_sms).num_tiles, config, device);
}

}  // namespace foveal::cuda::hopper
