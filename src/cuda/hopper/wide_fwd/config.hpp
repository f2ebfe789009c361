// What hopper_wide_fwd decides before any data is there: the tile, the order of tiles, the
// workspace.
#pragma once

#include <cstdint>

#include "cuda/hopper/fwd/args.hpp"
#include "cuda/hopper/wide_fwd/tile_config.hpp"
#include "plan/kernel_entry.hpp"

namespace foveal::cuda::hopper::wide_fwd {

inline constexpr const char* kName = "hopper_wide_fwd";

/// Of the wider of headdim and headdim_v. Narrower heads are hopper_fwd's.
inline constexpr std::int64_t kMinHeaddim = 257;
inline constexpr std::int64_t kMaxHeaddim = 512;

/// The tile of a problem whose heads are narrow enough.
[[nodiscard]] const WideTile& wide_tile(const AttentionGeometry& geometry);

/// Keys that one copy of k brings: a cluster's half of a block, or as many as lie in one page of
/// it. A copy of v brings no more than a slot of the ring has.
[[nodiscard]] std::int64_t keys_of_box(const AttentionGeometry& geometry);

/// How the tiles of a launch are numbered.
[[nodiscard]] ForwardSchedule forward_schedule(const AttentionProblem& problem,
                                               const AttentionGeometry& geometry);

[[nodiscard]] Status supports(const AttentionProblem& problem, const AttentionGeometry& geometry,
                              const DeviceInfo& device);

[[nodiscard]] planner::KernelConfig configure_forward(const AttentionProblem& problem,
                                                      const AttentionGeometry& geometry,
                                                      const DeviceInfo& device);

[[nodiscard]] double predict_forward(const AttentionProblem& problem,
                                     const AttentionGeometry& geometry,
                                     const planner::KernelConfig& config, const DeviceInfo& device);

}  // namespace foveal::cuda::hopper::wide_fwd
