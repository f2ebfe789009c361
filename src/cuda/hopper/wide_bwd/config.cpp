#include "cuda/hopper/wide_bwd/config.hpp"

#include <array>

#include "core/integer.hpp"
#include "cuda/device_rules.hpp"
#include "cuda/hopper/backward_rules.hpp"

namespace foveal::cuda::hopper::wide_bwd {
namespace {

using planner::KernelConfig;

constexpr std::array kTiles = {WideHdim384::tile, WideHdim512::tile};
static_assert(kTiles.back().d == kMaxHeaddim);

/// Tiles of a launch over all heads: two blocks each.
constexpr std::int64_t kMaxTiles = std::int64_t{1} << 29;
/// Bytes of L2 cache that what streams past one section of heads may fill.
constexpr std::int64_t kSectionBytes = 36 << 20;

/// Share of the device's rate that five products reach, causal, 4K to 16K
/// (docs/kernels/hopper_hdim512_bwd.md).
constexpr double kEfficiency = 0.38;

/// Rows of a sequence, of the mean one where they are packed.
std::int64_t mean_rows(const AttentionGeometry& geometry, Side side) {
  const bool keys = side == Side::kKeys;
  if (!(keys ? geometry.packed_k : geometry.packed_q)) {
    return keys ? geometry.seqlen_k : geometry.seqlen_q;
  }
  return (keys ? geometry.total_k : geometry.total_q) / max_of<std::int64_t>(geometry.batch, 1);
}

}  // namespace

const WideTile& wide_tile(const AttentionGeometry& geometry) {
  const std::int64_t width = max_of(geometry.headdim, geometry.headdim_v);
  for (const WideTile& tile : kTiles) {
    if (tile.d >= width) return tile;
  }
  return kTiles.back();
}

std::int64_t num_tiles(const AttentionGeometry& geometry, Side side) {
  return side == Side::kKeys ? cuda::bwd::max_tiles(geometry.batch, geometry.seqlen_k,
                                                    geometry.total_k, geometry.packed_k, kTileRows)
                             : cuda::bwd::max_tiles(geometry.batch, geometry.seqlen_q,
                                                    geometry.total_q, geometry.packed_q, kTileRows);
}

TileOrder tile_order(const AttentionGeometry& geometry, Side side) {
  const bool keys = side == Side::kKeys;
  if (keys ? geometry.packed_k : geometry.packed_q) {
    return {.blocks = static_cast<std::int32_t>(num_tiles(geometry, side))};
  }
  const std::int64_t rows = keys ? geometry.seqlen_k : geometry.seqlen_q;
  const std::int64_t pairs = geometry.batch * (keys ? geometry.nheads_k : geometry.nheads_q);
  // Two operands in 16 bits: of a whole group of query heads, or of its one KV head.
  const std::int64_t group = max_of<std::int64_t>(geometry.qhead_per_khead, 1);
  const std::int64_t bytes = 4 * wide_tile(geometry).d * (keys ? group : 1) *
                             mean_rows(geometry, keys ? Side::kRows : Side::kKeys);
  const std::int64_t groups =
      max_of<std::int64_t>(kSectionBytes / max_of<std::int64_t>(bytes, 1), 1);
  const std::int64_t section =
      clamp_to<std::int64_t>(keys ? groups : groups * group, 1, max_of<std::int64_t>(pairs, 1));
  return {.blocks = static_cast<std::int32_t>(ceil_div<std::int64_t>(rows, kTileRows)),
          .pairs = static_cast<std::int32_t>(pairs),
          .section = static_cast<std::int32_t>(section)};
}

Status supports(const AttentionProblem& problem, const AttentionGeometry& geometry,
                const DeviceInfo& device) {
  const WideTile& tile = wide_tile(geometry);
  return check_backward(
      {.kernel = kName,
       .min_headdim = kMinHeaddim,
       .max_headdim = kMaxHeaddim,
       .shared_bytes = max_of(tile.shared_bytes(Side::kKeys), tile.shared_bytes(Side::kRows)),
       .tiles = max_of(num_tiles(geometry, Side::kKeys), num_tiles(geometry, Side::kRows)),
       .max_tiles = kMaxTiles},
      problem, geometry, device);
}

KernelConfig configure(const AttentionProblem& problem, const AttentionGeometry& geometry,
                       const DeviceInfo& device) {
  const WideTile& tile = wide_tile(geometry);
  KernelConfig config;
  config.tile = {.m = kTileRows, .n = kTileRows};
  config.num_stages = tile.keys.stages();
  config.num_threads = WideTile::num_threads(Side::kKeys);
  config.workspace = {
      {"lse and delta", 8 * geometry.total_q * geometry.nheads_q},
      {"key tiles", list_bytes(geometry.packed_k, num_tiles(geometry, Side::kKeys))},
      {"row tiles", list_bytes(geometry.packed_q, num_tiles(geometry, Side::kRows))},
  };
  plan_portable_backward(problem, geometry, device, config);
  return config;
}

double predict(const AttentionProblem& problem, const AttentionGeometry& geometry,
               const KernelConfig&, const DeviceInfo& device) {
  AttentionWork work = attention_work(problem);
  work.flops *=
      2.0 * wide_tile(geometry).d / static_cast<double>(geometry.headdim + geometry.headdim_v);
  return roofline_us(work, problem.q.dtype, device, {.compute = kEfficiency});
}

}  // namespace foveal::cuda::hopper::wide_bwd
