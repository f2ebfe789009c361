// What cpu_blocked_bwd decides before any data is there: tile, workers and the workspace.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/bwd/dq_sums.hpp"
#include "cpu/slab.hpp"
#include "cpu/tile_math.hpp"
#include "plan/kernel_entry.hpp"

namespace foveal::cpu {

/// Packed rows (the query heads of a KV head share a tile) and keys of a tile: whole blocks of rows
/// of every table both ways. A constant, so that the order of all sums is the problem's.
inline constexpr planner::TileShape kBackwardTile{.m = 96, .n = 144};

static_assert(kBackwardTile.m % kLane == 0 && kBackwardTile.n % kLane == 0);
static_assert(kBackwardTile.n % 4 == 0, "dropout draws four columns a call");

/// Rows of q over all heads that a plan takes: sizes in bytes then stay far below 2^63.
inline constexpr std::int64_t kMaxBackwardRows = std::int64_t{1} << 40;

/// Parts of the workspace, in KernelConfig::workspace's order.
enum class BackwardPart : std::size_t {
  kDelta = 0,    ///< float [total_q, nheads_q]: delta - dlse
  kIndex = 1,    ///< BackwardSequence [batch]
  kQueues = 2,   ///< WorkQueue [kNumQueues]
  kDqSums = 3,   ///< DqSums
  kScratch = 4,  ///< one BackwardScratch a worker
};

/// One queue a pass: delta; dq, dk and dv; dbias; dsinks.
inline constexpr std::int64_t kNumQueues = 4;

/// One worker's tiles. Operands of products are void: the table knows what they are made of. With
/// one term a slot the pairs of a tile are the tile itself.
struct BackwardScratch {
  BackwardScratch(Slab& slab, const TileMath& math, const planner::TileShape& tile,
                  const AttentionGeometry& geometry);

  // Leading dimensions in slots.
  std::int64_t ld_d = 0;    ///< Of tiles with headdim columns,
  std::int64_t ld_dv = 0;   ///< with headdim_v columns,
  std::int64_t ld_n = 0;    ///< with tile.n columns;
  std::int64_t ld_q = 0;    ///< of operands with headdim terms,
  std::int64_t ld_out = 0;  ///< with headdim_v terms,
  std::int64_t ld_w = 0;    ///< and with tile.n terms.

  void* q = nullptr;           ///< (tile.m, headdim)
  void* q_pairs = nullptr;     ///< rows are terms
  void* dout = nullptr;        ///< (tile.m, headdim_v)
  void* dout_pairs = nullptr;  ///< rows are terms
  float* lse = nullptr;        ///< (tile.m)
  float* delta = nullptr;      ///< (tile.m): delta - dlse
  void* k_pairs = nullptr;     ///< (tile.n, headdim): keys are terms
  void* k_packed = nullptr;    ///< k and v as right operands of multiply_packed
  void* v_packed = nullptr;

  float* p = nullptr;          ///< (tile.m, tile.n): scores, then weights
  float* ds = nullptr;         ///< (tile.m, tile.n): dp, then ds
  void* p_pairs = nullptr;     ///< rows are terms
  void* ds_pairs = nullptr;    ///< rows are terms
  void* ds_operand = nullptr;  ///< keys are terms
  float* slope = nullptr;      ///< (tile.m, tile.n): softcap's derivative
  float* factors = nullptr;    ///< (tile.n): dropout's factors of one row
  float* row = nullptr;        ///< (headdim_v): one row of out
  float* row_of_dout = nullptr;

  // While keys are loaded, before they are sums, dk and dv hold the rows as they come.
  float* dk = nullptr;      ///< (tile.n, headdim)
  float* dv = nullptr;      ///< (tile.n, headdim_v)
  double* dbias = nullptr;  ///< (tile.m, tile.n): in double, for bias may repeat very often
};

/// Accumulators of dq for the tile and workers that `config` has.
[[nodiscard]] DqSums::Extent dq_extent(const AttentionProblem& problem,
                                       const AttentionGeometry& geometry,
                                       const planner::KernelConfig& config);

[[nodiscard]] planner::KernelConfig configure_backward(const AttentionProblem& problem,
                                                       const AttentionGeometry& geometry,
                                                       const DeviceInfo& device);

[[nodiscard]] double predict_backward(const AttentionProblem& problem,
                                      const AttentionGeometry& geometry,
                                      const planner::KernelConfig& config,
                                      const DeviceInfo& device);

}  // namespace foveal::cpu
