// The passes of a backward over single rows and tiles, which every family of its products shares.
#pragma once

#include <cstddef>
#include <type_traits>

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

/// Calls launch with the instance of the pass as a constant: StatsArgs::units().
template <class Launch>
[[nodiscard]] Status with_units(const StatsArgs& args, const Launch& launch) {
  switch (args.units()) {
    case DType::kFloat16: return launch(std::integral_constant<DType, DType::kFloat16>());
    case DType::kBFloat16: return launch(std::integral_constant<DType, DType::kBFloat16>());
    default: return launch(std::integral_constant<DType, DType::kNone>());
  }
}

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
