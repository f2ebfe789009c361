// What hopper_fwd decides before any data is there: the tile, the order of tiles, the workspace.
#pragma once

#include <cstdint>

#include "cuda/hopper/fwd/args.hpp"
#include "cuda/hopper/fwd/tile_config.hpp"
#include "plan/kernel_entry.hpp"

namespace foveal::cuda::hopper {

/// Wider heads take another kernel.
inline constexpr std::int64_t kMaxHeaddim = 256;

/// The tile of a problem whose heads are narrow enough.
[[nodiscard]] const ForwardTile& forward_tile(const AttentionGeometry& geometry);

/// Keys that one copy brings: a block, or as many as lie in one page of it.
[[nodiscard]] std::int64_t keys_of_box(const AttentionGeometry& geometry);

/// How the tiles of a launch are numbered that as many blocks share, or one each if there are
/// fewer.
[[nodiscard]] ForwardSchedule forward_schedule(const AttentionProblem& problem,
                                               const AttentionGeometry& geometry,
                                               std::int64_t num_blocks);

[[nodiscard]] planner::KernelConfig configure_forward(const AttentionProblem& problem,
                                                      const AttentionGeometry& geometry,
                                                      const DeviceInfo& device);

[[nodiscard]] double predict_forward(const AttentionProblem& problem,
                                     const AttentionGeometry& geometry,
                                     const planner::KernelConfig& config, const DeviceInfo& device);

}  // namespace foveal::cuda::hopper
