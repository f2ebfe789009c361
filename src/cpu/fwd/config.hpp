// What cpu_blocked_fwd decides before any data is there: tile, workers, splits of the keys, and the
// workspace.
#pragma once

#include <cstddef>
#include <cstdint>

#include "algorithm/online_softmax.hpp"
#include "cpu/slab.hpp"
#include "cpu/tile_load.hpp"
#include "cpu/tile_math.hpp"
#include "plan/kernel_entry.hpp"

namespace foveal::cpu {

/// Rows of a tile, the most first: whole blocks of rows of every table, and multiples of kLane. The
/// bits of a row don't depend on the tile that it is in.
inline constexpr std::int64_t kForwardRows[] = {384, 192, 96, 48};

/// Keys of a block: as many as one running sum of every table takes, so that the sums of weights *
/// v don't depend on which keys of the block a tile leaves out.
inline constexpr std::int64_t kForwardKeys = 128;

/// Keys of a split when batch_invariant: a constant, so that a sequence is cut the same way in any
/// batch and by any number of threads.
inline constexpr std::int64_t kInvariantSplitKeys = 1024;

/// Packed rows of a sequence that batch_invariant still splits: a tile of any size holds them.
inline constexpr std::int64_t kInvariantSplitRows = kForwardRows[3];

static_assert(kForwardKeys % kLane == 0 && kForwardKeys % 4 == 0,
              "blocks have no padding, and dropout draws four columns a call");
static_assert(kForwardKeys <= kDepthRun, "one running sum");
static_assert(kInvariantSplitKeys % kForwardKeys == 0, "a split is whole blocks");

/// A sequence of at most so many packed rows reads k and v where they lie, in their own dtype;
/// with more rows it pays to convert and pack them for the products
/// (docs/kernels/cpu_tile_math.md).
inline constexpr std::int64_t kMaxStreamedRows = 8;

/// Such a sequence does k, softmax and v of a turn of keys before it goes on to the next: as many
/// as have so many bytes of k or of v, so that both are read at once and what is asked for is used
/// soon (docs/kernels/cpu_blocked_fwd.md), but no fewer than 32. A power of two, since a block is
/// whole turns.
inline constexpr std::int64_t kTurnBytes = 16384;
[[nodiscard]] std::int64_t turn_keys(const RowLoader& k, const RowLoader& v);

/// Parts of the workspace, in KernelConfig::workspace's order.
enum class ForwardPart : std::size_t { kWorkIndex = 0, kScratch = 1, kPartials = 2 };

/// One worker's tiles. Operands of products are void: the table knows what they are made of.
struct ForwardScratch {
  std::int64_t ld_d = 0;   ///< Leading dimensions in slots: of operands with headdim terms,
  std::int64_t ld_dv = 0;  ///< of tiles with headdim_v columns,
  std::int64_t ld_n = 0;   ///< of tiles with tile.n columns,
  std::int64_t ld_w = 0;   ///< and of operands with tile.n terms.

  void* q = nullptr;                         ///< (tile.m, headdim)
  void* rows = nullptr;                      ///< (tile.n, headdim or headdim_v): k or v as loaded
  void* right = nullptr;                     ///< k packed; then the pairs of v
  float* scores = nullptr;                   ///< (tile.m, tile.n): products, scores, weights
  void* weights = nullptr;                   ///< (tile.m, tile.n): an operand; may be the scores
  float* acc = nullptr;                      ///< (tile.m, headdim_v): sum of weights * v
  float* factors = nullptr;                  ///< (tile.n): dropout of one row
  algorithm::SoftmaxState* state = nullptr;  ///< (tile.m)
  const std::byte** kv_rows = nullptr;       ///< (2, 2, keys of a turn): where rows of k and v lie

  /// From a slab; with a counting slab only its size is of use.
  ForwardScratch(Slab& slab, const TileMath& math, const planner::TileShape& tile,
                 const AttentionGeometry& geometry);

  /// The same tiles from row `first` on.
  [[nodiscard]] ForwardScratch rows_from(std::int64_t first) const;
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
void size_workspace(planner::KernelConfig& config, const TileMath& math,
                    const AttentionGeometry& geometry);

[[nodiscard]] planner::KernelConfig configure_forward(const AttentionProblem& problem,
                                                      const AttentionGeometry& geometry,
                                                      const DeviceInfo& device);

[[nodiscard]] double predict_forward(const AttentionProblem& problem,
                                     const AttentionGeometry& geometry,
                                     const planner::KernelConfig& config, const DeviceInfo& device);

}  // namespace foveal::cpu
