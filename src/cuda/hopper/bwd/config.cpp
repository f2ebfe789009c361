#include "cuda/hopper/bwd/config.hpp"

#include <array>

#include "core/format.hpp"
#include "core/integer.hpp"
#include "cuda/device_rules.hpp"
#include "cuda/hopper/backward_rules.hpp"
#include "cuda/portable/bwd/config.hpp"

namespace foveal::cuda::hopper::bwd {
namespace {

using planner::KernelConfig;

constexpr std::array kTiles = {BackwardHdim64::tile, BackwardHdim96::tile, BackwardHdim128::tile,
                               BackwardHdim192::tile, BackwardHdim256::tile};
static_assert(kTiles.back().d == kMaxHeaddim);

/// Tiles of a launch over all heads, and of dq's sums.
constexpr std::int64_t kMaxTiles = std::int64_t{1} << 30;
/// Bytes of L2 cache that q, dout and dq's sums of one section of heads may fill.
constexpr std::int64_t kSectionBytes = 40 << 20;

/// Pairs side by side where tiles add to dq in turn: of each, so many tiles run at a time as the
/// device has multiprocessors for it, and the last of those waits for all others once. In pairs of
/// many tiles that is little, and fewer pairs share the L2 cache better ("Measured" in
/// docs/kernels/hopper_bwd.md and hopper_bwd_wide.md).
constexpr std::int64_t kOrderedSection = 16;
constexpr std::int64_t kOrderedSectionOfLongPairs = 8;
constexpr std::int64_t kLongPairTiles = 128;
constexpr std::int64_t ordered_section(const BackwardTile& tile, std::int64_t tiles_of_pair) {
  const bool is_long = tiles_of_pair >= kLongPairTiles;
  return (is_long ? kOrderedSectionOfLongPairs : kOrderedSection) / tile.blocks;
}

/// Share of the device's rate that the products reach, causal and 16K (docs/kernels/hopper_bwd.md).
constexpr double kEfficiency = 0.62;

}  // namespace

const BackwardTile& backward_tile(const AttentionGeometry& geometry) {
  const std::int64_t width = max_of(geometry.headdim, geometry.headdim_v);
  for (const BackwardTile& tile : kTiles) {
    if (tile.d >= width) return tile;
  }
  return kTiles.back();
}

std::int64_t row_tiles(const AttentionGeometry& geometry) {
  const std::int64_t m = backward_tile(geometry).m;
  if (geometry.packed_q) return geometry.total_q / m + geometry.batch;
  return geometry.batch * ceil_div(geometry.seqlen_q, m);
}

std::int64_t counted_additions(const AttentionGeometry& geometry) {
  return backward_tile(geometry).is_wide() ? 0 : geometry.nheads_q * row_tiles(geometry);
}

std::int64_t key_tiles(const AttentionGeometry& geometry) {
  return cuda::bwd::max_tiles(geometry.batch, geometry.seqlen_k, geometry.total_k,
                              geometry.packed_k, backward_tile(geometry).n);
}

KeyTileOrder key_tile_order(const AttentionGeometry& geometry, bool deterministic) {
  const BackwardTile& tile = backward_tile(geometry);
  const std::int64_t batch = max_of<std::int64_t>(geometry.batch, 1);
  const std::int64_t pairs = (geometry.packed_k ? 1 : geometry.batch) * geometry.nheads_k;
  const std::int64_t rows = geometry.packed_q ? geometry.total_q / batch : geometry.seqlen_q;
  const std::int64_t keys = geometry.packed_k ? geometry.total_k / batch : geometry.seqlen_k;
  // q and dout in 16 bits, dq's sums in 32.
  const std::int64_t bytes = rows * geometry.qhead_per_khead * tile.d * 8;
  std::int64_t section = kSectionBytes / max_of<std::int64_t>(bytes, 1);
  // Tiles that add in turn have the same rows at the same time, which then are in the cache.
  if (deterministic) {
    section = max_of(section, ordered_section(tile, ceil_div<std::int64_t>(keys, tile.n)));
  }
  section = clamp_to<std::int64_t>(section, 1, max_of<std::int64_t>(pairs, 1));
  // All alike: a last section of few heads would end with long tiles on few multiprocessors.
  const std::int64_t sections = max_of<std::int64_t>(ceil_div(pairs, section), 1);
  const std::int64_t blocks =
      geometry.packed_k ? key_tiles(geometry) : ceil_div<std::int64_t>(geometry.seqlen_k, tile.n);
  return {.blocks = static_cast<std::int32_t>(blocks),
          .pairs = static_cast<std::int32_t>(pairs),
          .section = static_cast<std::int32_t>(max_of<std::int64_t>(ceil_div(pairs, sections), 1))};
}

Status supports(const AttentionProblem& problem, const AttentionGeometry& geometry,
                const DeviceInfo& device) {
  const BackwardTile& tile = backward_tile(geometry);
  FOVEAL_RETURN_IF_ERROR(check_backward({.kernel = kName,
                                         .max_headdim = kMaxHeaddim,
                                         .shared_bytes = tile.shared_bytes(),
                                         .tiles = max_of(key_tiles(geometry), row_tiles(geometry)),
                                         .max_tiles = kMaxTiles},
                                        problem, geometry, device));
  if (!problem.dq.present()) {
    return Status::unsupported(concat("dq is not wanted: ", kName, " computes it in any case"));
  }
  return Status::ok();
}

KernelConfig configure(const AttentionProblem& problem, const AttentionGeometry& geometry,
                       const DeviceInfo& device) {
  const BackwardTile& tile = backward_tile(geometry);
  KernelConfig config;
  config.tile = {.m = tile.m, .n = tile.n};
  config.num_stages = tile.dout_stages;
  config.num_threads = tile.num_threads();
  const std::int64_t blocks = key_tiles(geometry) * geometry.nheads_k;
  if (!tile.is_wide()) config.num_blocks = min_of<std::int64_t>(device.num_sms, blocks);
  const std::int64_t rows = row_tiles(geometry);
  const std::int64_t sums_tiles = geometry.nheads_q * rows;
  const std::int64_t turns = problem.deterministic ? sums_tiles * tile.num_adders() : 0;
  config.workspace = {
      {"lse and delta", 8 * geometry.total_q * geometry.nheads_q},
      {"key tiles", list_bytes(geometry.packed_k, key_tiles(geometry))},
      {"row tiles", list_bytes(geometry.packed_q, rows)},
      {"counters",
       8 * round_up<std::int64_t>(kFirstAddition + counted_additions(geometry) + turns, 2)},
      {"dq in fp32", 4 * sums_tiles * tile.dq_floats()},
  };
  plan_portable_backward(problem, geometry, device, config);
  return config;
}

double predict(const AttentionProblem& problem, const AttentionGeometry& geometry,
               const KernelConfig& config, const DeviceInfo& device) {
  AttentionWork work = attention_work(problem);
  const BackwardTile& tile = backward_tile(geometry);
  work.flops *= 2.0 * tile.d / static_cast<double>(geometry.headdim + geometry.headdim_v);
  for (const WorkspacePart& part : config.workspace) {
    work.read_bytes += static_cast<double>(part.bytes);
    work.written_bytes += static_cast<double>(part.bytes);
  }
  return roofline_us(work, problem.q.dtype, device, {.compute = kEfficiency});
}

}  // namespace foveal::cuda::hopper::bwd
