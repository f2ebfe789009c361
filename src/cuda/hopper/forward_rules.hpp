// What the forward kernels of this family take, and the order of tiles that they share.
#pragma once

#include <cstdint>

#include <foveal/device.hpp>
#include <foveal/problem.hpp>
#include <foveal/status.hpp>

#include "cuda/hopper/fwd/args.hpp"
#include "plan/kernel_entry.hpp"

namespace foveal::cuda::hopper {

/// A kernel's name and limits, and the tile that it has for a problem.
struct ForwardLimits {
  const char* kernel = "";
  std::int64_t max_headdim = 0;
  int tile_m = 0;
  int shared_bytes = 0;  ///< Of a block.
};

/// kUnsupported with the field, the limit and the kernel.
[[nodiscard]] Status check_forward(const ForwardLimits& limits, const AttentionProblem& problem,
                                   const AttentionGeometry& geometry, const DeviceInfo& device);

/// Plans portable_fwd, in one launch and without a workspace, for operands that do not begin at a
/// multiple of 16 bytes, and says so.
void plan_stand_in(const AttentionProblem& problem, const AttentionGeometry& geometry,
                   const DeviceInfo& device, planner::KernelConfig& config);

/// How tiles of `tile_m` rows are numbered.
[[nodiscard]] ForwardSchedule schedule_tiles(const AttentionProblem& problem,
                                             const AttentionGeometry& geometry, int tile_m);

/// Whether scores are scaled before the softmax: the scale can't be taken into its exponent where
/// there is a softcap, or where it is not > 0.
[[nodiscard]] bool scales_first(const AttentionProblem& problem, const AttentionGeometry& geometry);

/// A tile, and how fast multiprocessors go through it.
struct TileRate {
  int m = 0;
  int n = 0;
  int d = 0;
  int num_sms = 1;           ///< Multiprocessors that share a tile.
  double compute_share = 1;  ///< Of the device's matrix rate, by a full machine.
};

/// Microseconds for `num_tiles` tiles.
[[nodiscard]] double predict_tiles(const AttentionProblem& problem,
                                   const AttentionGeometry& geometry, const TileRate& tile,
                                   std::int64_t num_tiles, const planner::KernelConfig& config,
                                   const DeviceInfo& device);

}  // namespace foveal::cuda::hopper
