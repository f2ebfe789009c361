// What cpu_blocked_fwd decides before any data is there: tile, workers, splits of the keys, and the
// workspace.
#pragma once

#include <cstddef>
#include <cstdint>

#include "algorithm/online_softmax.hpp"
#include "cpu/slab.hpp"
#include "cpu/tile_math.hpp"
#include "plan/kernel_entry.hpp"

namespace foveal::cpu {

/// Rows and keys of a tile; both multiples of kLane, and a full block of keys has no padding.
inline constexpr planner::TileShape kForwardTile{.m = 64, .n = 64};

/// Keys of a split when batch_invariant: a constant, so that a sequence is cut the same way in any
/// batch and by any number of threads.
inline constexpr std::int64_t kInvariantSplitKeys = 1024;

static_assert(kForwardTile.m % kLane == 0 && kForwardTile.n % kLane == 0);
static_assert(kForwardTile.n % 4 == 0, "dropout draws four columns a call");
static_assert(kInvariantSplitKeys % kForwardTile.n == 0, "a split is whole blocks");

/// A sequence of at most so many packed rows reads k and v where they lie, in their own dtype;
/// with more rows it pays to convert and pack them for the products
/// (docs/kernels/cpu_tile_math.md).
inline constexpr std::int64_t kMaxStreamedRows = 8;

/// Parts of the workspace, in KernelConfig::workspace's order.
enum class ForwardPart : std::size_t { kWorkIndex = 0, kScratch = 1, kPartials = 2 };

/// One worker's tiles.
struct ForwardScratch {
  float* q = nullptr;                        ///< (tile.m, headdim)
  float* kv = nullptr;                       ///< (tile.n, headdim), then (tile.n, headdim_v)
  float* packed = nullptr;                   ///< k as the right operand of multiply_packed
  float* scores = nullptr;                   ///< (tile.m, tile.n): products, scores, weights
  float* acc = nullptr;                      ///< (tile.m, headdim_v): sum of weights * v
  float* factors = nullptr;                  ///< (tile.n): dropout of one row
  algorithm::SoftmaxState* state = nullptr;  ///< (tile.m)
  const std::byte** key_rows = nullptr;      ///< (tile.n): where rows of k or v lie,
  const std::byte** next_rows = nullptr;     ///< (tile.n) and those read after them

  /// From a slab; with a counting slab only its size is of use.
  ForwardScratch(Slab& slab, const planner::TileShape& tile, const AttentionGeometry& geometry);
};

/// The results of splits, which the last worker to finish one merges in the order of the splits. A
/// slot is one (sequence, m_block, head_k, split).
struct ForwardPartials {
  float* out = nullptr;             ///< (slot, row, ld): finished rows of the split
  float* lse = nullptr;             ///< (slot, row)
  std::int32_t* arrived = nullptr;  ///< (slot): at a tile's first slot, splits that are done
  std::int64_t rows = 0;
  std::int64_t ld = 0;
  std::int64_t num_slots = 0;

  ForwardPartials(Slab& slab, std::int64_t num_slots, const planner::TileShape& tile,
                  const AttentionGeometry& geometry);

  [[nodiscard]] float* out_row(std::int64_t slot, std::int64_t row) const {
    return out + (slot * rows + row) * ld;
  }
  [[nodiscard]] float& lse_row(std::int64_t slot, std::int64_t row) const {
    return lse[slot * rows + row];
  }
};

/// Slots that the plan's splits can need, from capacities alone; 0 when nothing is split.
[[nodiscard]] std::int64_t partial_slots(const planner::KernelConfig& config,
                                         const AttentionGeometry& geometry);

/// The workspace for the tile, splits and workers that `config` has.
void size_workspace(planner::KernelConfig& config, const AttentionGeometry& geometry);

[[nodiscard]] planner::KernelConfig configure_forward(const AttentionProblem& problem,
                                                      const AttentionGeometry& geometry,
                                                      const DeviceInfo& device);

[[nodiscard]] double predict_forward(const AttentionProblem& problem,
                                     const AttentionGeometry& geometry,
                                     const planner::KernelConfig& config, const DeviceInfo& device);

}  // namespace foveal::cpu
