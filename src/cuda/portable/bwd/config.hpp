// What portable_bwd and portable_bwd_fp32 decide before any data is there: tiles, which passes run
// and the workspace.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <foveal/tensor.hpp>

#include "core/host_device.hpp"
#include "core/integer.hpp"
#include "plan/kernel_entry.hpp"

namespace foveal::cuda::bwd {

/// A gradient kernel holds one tile of its own side and streams tiles of the other past it:
/// kKeys holds k and v and sums dk and dv; kRows holds q and dout and sums dq.
enum class Side : std::int32_t { kKeys, kRows };

/// Tile, warps and stages of one gradient kernel. Warps stand in a grid of held_warps x
/// column_warps: scores are shared out by held rows and streamed columns, sums by held rows and
/// columns of the head.
struct GradientTile {
  Side side = Side::kKeys;
  int headdim = 0;        ///< Columns of every tile; headdim and headdim_v are padded to it.
  int streamed = 0;       ///< Rows of a streamed tile.
  int stages = 1;         ///< Streamed tiles in shared memory.
  int row_blocks = 1;     ///< Of 16 held rows, a warp.
  int held_warps = 1;     ///< Along the held rows,
  int column_warps = 1;   ///< and along the columns.
  int blocks_per_sm = 1;  ///< What registers are limited for.
  int score_parts = 1;    ///< A warp's scores are computed so many columns' shares at a time.

  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int held() const {
    return 16 * row_blocks * held_warps;
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int threads() const {
    return 32 * held_warps * column_warps;
  }
  /// Warps along the streamed columns that compute scores: each has at least 8.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int score_warps() const {
    return min_of(column_warps, streamed / 8);
  }
  /// Whether weights reach the warps that need them through shared memory.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr bool exchanges() const { return column_warps > 1; }
  /// Copies of the streamed rows' lse and delta. Where weights are exchanged, all warps have read
  /// them by the barrier between weights and sums: then one does.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int stats_stages() const {
    return exchanges() ? 1 : 2;
  }
  bool operator==(const GradientTile&) const = default;
};

/// Room for the description of what a block does.
inline constexpr int kBlockWorkBytes = 320;

/// Where the parts of a block's shared memory begin, in bytes.
struct SharedMap {
  int held = 0;            ///< 2 x (held, headdim): k and v, or q and dout
  int streamed = 0;        ///< stages x 2 x (streamed, headdim)
  int ds = 0;              ///< (held, streamed)
  int p = 0;               ///< (held, streamed), where weights are exchanged
  int held_stats = 0;      ///< float2 (held): of rows
  int streamed_stats = 0;  ///< float2 (stats_stages, streamed): of rows
  int work = 0;            ///< BlockWork
  int bytes = 0;

  int held_tile_bytes = 0;
  int streamed_tile_bytes = 0;
};

[[nodiscard]] FOVEAL_HOST_DEVICE constexpr SharedMap shared_map(const GradientTile& tile,
                                                                int element_bytes) {
  SharedMap map;
  map.held_tile_bytes = tile.held() * tile.headdim * element_bytes;
  map.streamed_tile_bytes = tile.streamed * tile.headdim * element_bytes;
  const int weights = tile.held() * tile.streamed * element_bytes;
  const bool keys = tile.side == Side::kKeys;
  map.streamed = 2 * map.held_tile_bytes;
  map.ds = map.streamed + 2 * tile.stages * map.streamed_tile_bytes;
  map.p = map.ds + (keys || tile.exchanges() ? weights : 0);
  map.held_stats = map.p + (keys && tile.exchanges() ? weights : 0);
  map.streamed_stats = map.held_stats + (keys ? 0 : 8 * tile.held());
  map.work = map.streamed_stats + (keys ? 8 * tile.stats_stages() * tile.streamed : 0);
  map.bytes = map.work + kBlockWorkBytes;
  return map;
}

/// What every GPU from sm_80 on has for a block, and what the larger tiles need.
inline constexpr int kSmallSharedBytes = 99 << 10;
inline constexpr int kLargeSharedBytes = 227 << 10;

/// The kernels of one head size. `large` serves problems without softcap, bias, ALiBi and dropout
/// where a block has enough shared memory; `small` everything else.
struct HeaddimTiles {
  GradientTile keys_large;
  GradientTile keys_small;
  GradientTile rows_large;
  GradientTile rows_small;
};

/// Head sizes that there are kernels for; others are padded to the next.
inline constexpr std::array<int, 7> kHeaddims = {32, 64, 96, 128, 192, 256, 512};
inline constexpr std::array<int, 4> kHeaddimsFp32 = {64, 128, 256, 512};

/// Tiles for 16-bit elements. Sums of dk and dv take 2 x 16 x row_blocks x headdim / column_warps
/// fp32 a warp, 128 registers a thread at most; scores and their gradients half of that.
[[nodiscard]] constexpr HeaddimTiles tiles_16_bit(int headdim) {
  constexpr Side kKeys = Side::kKeys;
  constexpr Side kRows = Side::kRows;
  switch (headdim) {
    case 32:
      return {{kKeys, 32, 32, 2, 2, 4, 1, 2},
              {kKeys, 32, 32, 2, 2, 4, 1, 2},
              {kRows, 32, 64, 2, 2, 4, 1, 2},
              {kRows, 32, 32, 2, 2, 4, 1, 2}};
    case 64:
      return {{kKeys, 64, 32, 2, 2, 4, 1, 2},
              {kKeys, 64, 32, 2, 1, 4, 1, 2},
              {kRows, 64, 64, 2, 2, 4, 1, 2},
              {kRows, 64, 32, 2, 2, 4, 1, 2}};
    case 96:
      return {{kKeys, 96, 64, 2, 2, 2, 2, 2},
              {kKeys, 96, 32, 2, 1, 4, 1, 2},
              {kRows, 96, 32, 2, 2, 4, 1, 2},
              {kRows, 96, 32, 2, 1, 4, 1, 2}};
    case 128:
      return {{kKeys, 128, 64, 2, 2, 4, 2, 1},
              {kKeys, 128, 32, 2, 1, 4, 1, 2},
              {kRows, 128, 32, 2, 2, 4, 1, 2},
              {kRows, 128, 32, 2, 1, 4, 1, 2}};
    case 192:
      return {{kKeys, 192, 64, 2, 2, 2, 4, 1},
              {kKeys, 192, 32, 1, 1, 4, 2, 1},
              {kRows, 192, 32, 2, 1, 4, 1, 2},
              {kRows, 192, 32, 2, 1, 4, 1, 2}};
    case 256:
      return {{kKeys, 256, 64, 2, 2, 2, 4, 1},
              {kKeys, 256, 32, 1, 2, 1, 4, 2},
              {kRows, 256, 32, 1, 1, 4, 1, 2},
              {kRows, 256, 32, 1, 1, 4, 1, 2}};
    default:
      return {{kKeys, 512, 64, 1, 1, 2, 4, 1},
              {kKeys, 512, 16, 1, 1, 2, 4, 1},
              {kRows, 512, 32, 1, 1, 4, 2, 1},
              {kRows, 512, 16, 1, 1, 2, 2, 2}};
  }
}

/// Tiles for fp32, whose products are three of TF32: one set for all problems and GPUs.
[[nodiscard]] constexpr HeaddimTiles tiles_32_bit(int headdim) {
  const auto both = [](GradientTile keys) {
    GradientTile rows = keys;
    rows.side = Side::kRows;
    return HeaddimTiles{keys, keys, rows, rows};
  };
  switch (headdim) {
    case 64: return both({Side::kKeys, 64, 32, 1, 1, 4, 1, 2});
    case 128: return both({Side::kKeys, 128, 32, 1, 1, 2, 2, 2});
    case 256: return both({Side::kKeys, 256, 16, 1, 1, 1, 4, 2});
    default: return both({Side::kKeys, 512, 8, 1, 1, 1, 8, 1});
  }
}

[[nodiscard]] constexpr HeaddimTiles tiles_of(int headdim, int element_bytes) {
  return element_bytes == 4 ? tiles_32_bit(headdim) : tiles_16_bit(headdim);
}

/// Which of HeaddimTiles.
enum class TileName : std::int32_t { kKeysLarge, kKeysSmall, kRowsLarge, kRowsSmall };

/// A tile as a type, for kernels.
template <int kHeaddim, int kElementBytes, TileName kName>
struct TileOf {
  static constexpr HeaddimTiles kAll = tiles_of(kHeaddim, kElementBytes);
  static constexpr GradientTile tile = kName == TileName::kKeysLarge   ? kAll.keys_large
                                       : kName == TileName::kKeysSmall ? kAll.keys_small
                                       : kName == TileName::kRowsLarge ? kAll.rows_large
                                                                       : kAll.rows_small;
};

constexpr bool fits(const GradientTile& tile, int element_bytes, int shared_bytes) {
  const int head_columns = tile.headdim / tile.column_warps;
  return shared_map(tile, element_bytes).bytes <= shared_bytes && head_columns % 16 == 0 &&
         tile.streamed % (8 * tile.score_warps()) == 0 && tile.streamed <= tile.threads() &&
         tile.held() <= tile.threads() && (element_bytes == 4 || tile.streamed % 16 == 0);
}
constexpr bool all_fit(const HeaddimTiles& tiles, int element_bytes) {
  return fits(tiles.keys_large, element_bytes, kLargeSharedBytes) &&
         fits(tiles.rows_large, element_bytes, kLargeSharedBytes) &&
         fits(tiles.keys_small, element_bytes, kSmallSharedBytes) &&
         fits(tiles.rows_small, element_bytes, kSmallSharedBytes);
}
static_assert(
    [] {
      for (const int headdim : kHeaddims) {
        if (!all_fit(tiles_of(headdim, 2), 2)) return false;
      }
      for (const int headdim : kHeaddimsFp32) {
        if (!all_fit(tiles_of(headdim, 4), 4)) return false;
      }
      return true;
    }(),
    "shared memory of a block, mma's shapes, or more rows than threads to look after them");

/// What the products run in: q's dtype, and fp32 where dout has that, whose bits would be lost.
[[nodiscard]] DType product_dtype(const AttentionProblem& problem);

/// The head size of the kernels that take the problem.
[[nodiscard]] int tile_headdim(const AttentionGeometry& geometry, DType dtype);

/// Parts of the workspace, in KernelConfig::workspace's order.
enum class Part : std::size_t {
  kStats = 0,     ///< float2 [nheads_q, total_q]: lse in log2 units, delta - dlse
  kKeyTiles = 1,  ///< TileList of packed k
  kRowTiles = 2,  ///< TileList of packed q
  kDqSums = 3,    ///< fp32 [nheads_q, total_q, dq_columns]: where dq is summed by atomics; else 0
};

/// Widest tile whose dq is summed by atomics beside dk and dv.
inline constexpr int kMaxSummedHeaddim = 512;

/// Columns of a row of dq's sums.
[[nodiscard]] constexpr std::int64_t dq_columns(std::int64_t headdim) {
  return round_up<std::int64_t>(headdim, 16);
}

/// Whether scores need more than the scale and the mask.
[[nodiscard]] bool has_score_terms(const AttentionProblem& problem);

/// The kernels of a plan.
struct Choice {
  DType dtype = DType::kNone;  ///< product_dtype()
  int headdim = 0;
  bool large = false;      ///< The tiles of HeaddimTiles that are called so.
  bool keys_pass = false;  ///< dk and dv.
  bool rows_pass = false;  ///< dq by itself,
  bool sums_dq = false;    ///< or by atomics in the keys' pass.
  bool dbias_pass = false;
};
[[nodiscard]] Choice choose(const AttentionProblem& problem, const AttentionGeometry& geometry,
                            const DeviceInfo& device);

/// The same from what configure() wrote down.
[[nodiscard]] Choice chosen(const AttentionProblem& problem, const AttentionGeometry& geometry,
                            const planner::KernelConfig& config);

/// Tiles of `held` rows of all sequences together: a bound when packed.
[[nodiscard]] std::int64_t max_tiles(std::int64_t batch, std::int64_t rows, std::int64_t total,
                                     bool packed, std::int64_t held);

[[nodiscard]] Status supports(const AttentionProblem& problem, const AttentionGeometry& geometry,
                              const DeviceInfo& device);
[[nodiscard]] planner::KernelConfig configure(const AttentionProblem& problem,
                                              const AttentionGeometry& geometry,
                                              const DeviceInfo& device);
[[nodiscard]] double predict(const AttentionProblem& problem, const AttentionGeometry& geometry,
                             const planner::KernelConfig& config, const DeviceInfo& device);

}  // namespace foveal::cuda::bwd
