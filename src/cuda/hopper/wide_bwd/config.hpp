// What hopper_wide_bwd decides before any data is there: the tile, the order of its tiles, the
// workspace.
#pragma once

#include <cstddef>
#include <cstdint>

#include <foveal/status.hpp>

#include "cuda/hopper/wide_bwd/tile_config.hpp"
#include "plan/kernel_entry.hpp"

namespace foveal::cuda::hopper::wide_bwd {

inline constexpr const char* kName = "hopper_wide_bwd";

/// The widest head, and the narrowest that fills more than half of it.
inline constexpr std::int64_t kMaxHeaddim = WideHdim512::tile.d;
inline constexpr std::int64_t kMinHeaddim = kMaxHeaddim / 2 + 1;

/// Parts of the workspace, in KernelConfig::workspace's order.
enum class Part : std::size_t {
  kStats = 0,     ///< float2 [nheads_q, total_q]: lse in log2 units, delta - dlse
  kKeyTiles = 1,  ///< TileList of packed k
  kRowTiles = 2,  ///< TileList of packed q
};

/// The tile that takes a problem with heads up to kMaxHeaddim.
[[nodiscard]] const WideTile& wide_tile(const AttentionGeometry& geometry);

/// Tiles of a head's keys or rows, of all sequences: a bound when packed.
[[nodiscard]] std::int64_t num_tiles(const AttentionGeometry& geometry, Side side);

[[nodiscard]] TileOrder tile_order(const AttentionGeometry& geometry, Side side);

[[nodiscard]] Status supports(const AttentionProblem& problem, const AttentionGeometry& geometry,
                              const DeviceInfo& device);
[[nodiscard]] planner::KernelConfig configure(const AttentionProblem& problem,
                                              const AttentionGeometry& geometry,
                                              const DeviceInfo& device);
[[nodiscard]] double predict(const AttentionProblem& problem, const AttentionGeometry& geometry,
                             const planner::KernelConfig& config, const DeviceInfo& device);

}  // namespace foveal::cuda::hopper::wide_bwd
