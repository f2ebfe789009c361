#include "cuda/hopper/fwd/config.hpp"

#include <array>
#include <numeric>

#include "core/integer.hpp"
#include "cuda/device_rules.hpp"

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
constexpr double kReadShare = 0.7;

/// Bytes of L2 cache that the keys of one section of heads may fill.
constexpr std::int64_t kSectionBytes = 32 << 20;

/// Tiles of a sequence and head where all have the most rows.
std::int64_t m_blocks_of(const AttentionGeometry& geometry, const ForwardTile& tile) {
  return ceil_div<std::int64_t>(geometry.seqlen_q, tile.m);
}

/// Keys that a row sees at most, rounded up to blocks.
std::int64_t max_seen_keys(const AttentionGeometry& geometry, const ForwardTile& tile) {
  const algorithm::Window& window = geometry.window;
  const std::int64_t seen = min_of(geometry.seqlen_k, window.left + window.right + tile.m);
  return round_up<std::int64_t>(max_of<std::int64_t>(seen, 1), tile.n);
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

ForwardSchedule forward_schedule(const AttentionProblem& problem,
                                 const AttentionGeometry& geometry) {
  const ForwardTile& tile = forward_tile(geometry);
  ForwardSchedule schedule;
  schedule.tile_m = tile.m;
  schedule.packed = geometry.packed_q;
  if (geometry.packed_q) {
    // Every sequence may leave one tile partly filled.
    const std::int64_t m_blocks =
        geometry.total_q / tile.m + min_of(geometry.batch, geometry.total_q);
    schedule.num_tiles = static_cast<std::int32_t>(m_blocks * geometry.nheads_q);
    return schedule;
  }
  const std::int64_t pairs = geometry.batch * geometry.nheads_q;
  const std::int64_t bytes = geometry.seqlen_k * (geometry.headdim + geometry.headdim_v) *
                             dtype_bytes(problem.k.dtype) / geometry.qhead_per_khead;
  const std::int64_t sections = clamp_to<std::int64_t>(ceil_div(pairs * bytes, kSectionBytes), 1,
                                                       max_of<std::int64_t>(pairs, 1));
  schedule.m_blocks = static_cast<std::int32_t>(m_blocks_of(geometry, tile));
  schedule.section = static_cast<std::int32_t>(ceil_div(pairs, sections));
  schedule.num_tiles = static_cast<std::int32_t>(schedule.m_blocks * pairs);
  return schedule;
}

KernelConfig configure_forward(const AttentionProblem& problem, const AttentionGeometry& geometry,
                               const DeviceInfo& device) {
  const ForwardTile& tile = forward_tile(geometry);
  const std::int64_t tiles = forward_schedule(problem, geometry).num_tiles;
  KernelConfig config;
  config.tile = {.m = tile.m, .n = tile.n};
  config.num_stages = tile.num_stages;
  config.num_threads = tile.num_threads();
  config.num_blocks = min_of<std::int64_t>(tiles, device.num_sms);
  config.notes.push_back(
      "where q, k or v does not begin at a multiple of 16 bytes, portable_fwd runs in its place");
  if (tiles > config.num_blocks) config.workspace = {{"tiles begun", 8}};
  return config;
}

double predict_forward(const AttentionProblem& problem, const AttentionGeometry& geometry,
                       const KernelConfig& config, const DeviceInfo& device) {
  const ForwardTile& tile = forward_tile(geometry);
  AttentionWork work = attention_work(problem);
  // Rows and columns that only fill a tile cost as much as others.
  const double rows =
      static_cast<double>(geometry.total_q) * static_cast<double>(geometry.nheads_q);
  const double tiles = forward_schedule(problem, geometry).num_tiles;
  if (rows > 0) work.flops *= max_of(1.0, tiles * tile.m / rows);
  work.flops *= 2.0 * tile.d / static_cast<double>(geometry.headdim + geometry.headdim_v);
  Efficiency efficiency{.compute = compute_share(tile), .memory = kReadShare};
  // A launch takes as long as its longest tile on one multiprocessor.
  const double longest = 4.0 * tile.m * tile.d * static_cast<double>(max_seen_keys(geometry, tile));
  const double even = work.flops / static_cast<double>(device.num_sms);
  efficiency.compute *= clamp_to(even / longest, 1e-6, 1.0);
  efficiency.memory *=
      min_of(1.0, static_cast<double>(config.num_blocks) / static_cast<double>(device.num_sms));
  if (efficiency.memory <= 0) efficiency.memory = kReadShare;
  return roofline_us(work, problem.q.dtype, device, efficiency);
}

}  // namespace foveal::cuda::hopper
