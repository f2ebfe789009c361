// The passes of a backward over single rows and tiles, which every family of its products shares.
#pragma once

#include <cstddef>

#include <foveal/status.hpp>

#include "cuda/portable/bwd/args.hpp"
#include "plan/kernel_entry.hpp"

namespace foveal::cuda::bwd {

/// What the passes read of a launch whose products run in `products`; without stats, sums of dq and
/// schedules, which lie in the workspace.
[[nodiscard]] BackwardArgs make_backward_args(const planner::LaunchContext& context,
                                              DType products);

/// What the pass over lse, out and dout reads, and its blocks.
[[nodiscard]] StatsArgs make_stats_args(const planner::LaunchContext& context,
                                        const BackwardArgs& args);
[[nodiscard]] std::int64_t stats_blocks(const planner::LaunchContext& context,
                                        const StatsArgs& args);

/// args.stats from lse, out and dout.
[[nodiscard]] Status compute_stats(const planner::LaunchContext& context, const BackwardArgs& args);

/// What the list of the tiles of `held` rows of one side needs: no entries where part `part` of the
/// workspace has no bytes.
[[nodiscard]] ListArgs make_list_args(const planner::LaunchContext& context,
                                      const BackwardArgs& args, Side side, int held,
                                      std::size_t part);

/// The tiles of `held` rows of one side into part `part` of the workspace, where that has bytes.
[[nodiscard]] Status list_tiles(const planner::LaunchContext& context, const BackwardArgs& args,
                                Side side, int held, std::size_t part);

/// dsinks from args.stats, where the problem has them.
[[nodiscard]] Status sum_dsinks(const planner::LaunchContext& context, const BackwardArgs& args);

}  // namespace foveal::cuda::bwd
