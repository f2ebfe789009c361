// What hopper_bwd decides before any data is there: the tile, the order of its tiles, the
// workspace.
#pragma once

#include <cstddef>
#include <cstdint>

#include <foveal/status.hpp>

#include "cuda/hopper/bwd/tile_config.hpp"
#include "plan/kernel_entry.hpp"

namespace foveal::cuda::hopper::bwd {

inline constexpr const char* kName = "hopper_bwd";

/// The widest head.
inline constexpr std::int64_t kMaxHeaddim = BackwardHdim256::tile.d;

/// Parts of the workspace, in KernelConfig::workspace's order.
enum class Part : std::size_t {
  kStats = 0,     ///< float2 [nheads_q, total_q]: lse in log2 units, delta - dlse
  kKeyTiles = 1,  ///< TileList of packed k
  kRowTiles = 2,  ///< TileList of packed q
  kCounters = 3,  ///< Counters: tickets; additions to the tiles of dq's sums, or turns to add
  kDqSums = 4,    ///< fp32 [nheads_q, row_tiles, m, d], within a tile by dq_place()
};

/// Counters are of 64 bits: the first two are the tickets' line; there follow sums_counters().
inline constexpr std::int64_t kFirstOfSums = 2;

/// The tile that takes a problem with heads up to kMaxHeaddim.
[[nodiscard]] const BackwardTile& backward_tile(const AttentionGeometry& geometry);

/// Tiles of dq's sums of a query head: every packed sequence begins with a tile of its own.
[[nodiscard]] std::int64_t row_tiles(const AttentionGeometry& geometry);

/// Counters of the tiles of dq's sums of all query heads: turns, of each block of a cluster, where
/// the order of additions matters; else additions, or none where heads are wide.
[[nodiscard]] std::int64_t sums_counters(const AttentionGeometry& geometry, bool deterministic);

/// Tiles of keys of a KV head, of all sequences: a bound when packed.
[[nodiscard]] std::int64_t key_tiles(const AttentionGeometry& geometry);

[[nodiscard]] KeyTileOrder key_tile_order(const AttentionGeometry& geometry, bool deterministic);

[[nodiscard]] Status supports(const AttentionProblem& problem, const AttentionGeometry& geometry,
                              const DeviceInfo& device);
[[nodiscard]] planner::KernelConfig configure(const AttentionProblem& problem,
                                              const AttentionGeometry& geometry,
                                              const DeviceInfo& device);
[[nodiscard]] double predict(const AttentionProblem& problem, const AttentionGeometry& geometry,
                             const planner::KernelConfig& config, const DeviceInfo& device);

}  // namespace foveal::cuda::hopper::bwd
