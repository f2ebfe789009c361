// What cpu_blocked_bwd decides before any data is there: tile, workers and the workspace.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/slab.hpp"
#include "cpu/tile_math.hpp"
#include "plan/kernel_entry.hpp"

namespace foveal::cpu {

/// Packed rows (the query heads of a KV head share a tile) and keys of a tile.
inline constexpr planner::TileShape kBackwardTile{.m = 64, .n = 64};

static_assert(kBackwardTile.m % kLane == 0 && kBackwardTile.n % kLane == 0);
static_assert(kBackwardTile.n % 4 == 0, "dropout draws four columns a call");

/// Rows of q over all heads that a plan takes: sizes in bytes then stay far below 2^63.
inline constexpr std::int64_t kMaxBackwardRows = std::int64_t{1} << 40;

/// Parts of the workspace, in KernelConfig::workspace's order.
enum class BackwardPart : std::size_t {
  kDelta = 0,     ///< float [total_q, nheads_q]: delta - dlse
  kRowTiles = 1,  ///< WorkTile: the tiles of dq
  kKeyTiles = 2,  ///< WorkTile: the tiles of dk and dv
  kQueues = 3,    ///< WorkQueue [kNumQueues]
  kScratch = 4,   ///< one BackwardScratch a worker
};

/// One queue a pass: delta; dk and dv; dq; dbias; dsinks.
inline constexpr std::int64_t kNumQueues = 5;

/// One worker's tiles, fp32 and row-major unless said otherwise.
struct BackwardScratch {
  BackwardScratch(Slab& slab, const planner::TileShape& tile, const AttentionGeometry& geometry);

  std::int64_t ld_d = 0;   ///< Leading dimension of tiles with headdim columns,
  std::int64_t ld_dv = 0;  ///< with headdim_v columns,
  std::int64_t ld_n = 0;   ///< and with tile.n columns.

  float* q = nullptr;         ///< (tile.m, headdim)
  float* dout = nullptr;      ///< (tile.m, headdim_v)
  float* lse = nullptr;       ///< (tile.m)
  float* delta = nullptr;     ///< (tile.m): delta - dlse
  float* k = nullptr;         ///< (tile.n, headdim)
  float* v = nullptr;         ///< (tile.n, headdim_v)
  float* k_packed = nullptr;  ///< k as a right operand, TileMath's layout
  float* v_packed = nullptr;

  float* p = nullptr;        ///< (tile.m, tile.n): scores, then weights
  float* ds = nullptr;       ///< (tile.m, tile.n): dp, then ds
  float* slope = nullptr;    ///< (tile.m, tile.n): softcap's derivative
  float* factors = nullptr;  ///< (tile.n): dropout's factors of one row
  float* row = nullptr;      ///< (headdim_v): one row of out

  // Sums. A worker is in one pass at a time, so those of different passes share storage.
  float* dk = nullptr;      ///< (tile.n, headdim)
  float* dv = nullptr;      ///< (tile.n, headdim_v)
  float* dq = nullptr;      ///< (tile.m, headdim), where dk is
  double* dbias = nullptr;  ///< (tile.m, tile.n): in double, for bias may repeat very often
};

[[nodiscard]] planner::KernelConfig configure_backward(const AttentionProblem& problem,
                                                       const AttentionGeometry& geometry,
                                                       const DeviceInfo& device);

[[nodiscard]] double predict_backward(const AttentionProblem& problem,
                                      const AttentionGeometry& geometry,
                                      const planner::KernelConfig& config,
                                      const DeviceInfo& device);

}  // namespace foveal::cpu
