// What the backward kernels of this family take, and what they plan alike.
#pragma once

#include <cstdint>

#include <foveal/device.hpp>
#include <foveal/problem.hpp>
#include <foveal/status.hpp>

#include "plan/kernel_entry.hpp"

namespace foveal::cuda::hopper {

/// A kernel's name and limits, and what its tile for a problem comes to.
struct BackwardLimits {
  const char* kernel = "";
  std::int64_t min_headdim = 1;
  std::int64_t max_headdim = 0;
  std::int64_t shared_bytes = 0;  ///< Of a block.
  std::int64_t tiles = 0;         ///< Of a head: of keys or of rows, whichever are more.
  std::int64_t max_tiles = 0;     ///< Of all heads.
};

/// kUnsupported with the field, the limit and the kernel.
[[nodiscard]] Status check_backward(const BackwardLimits& limits, const AttentionProblem& problem,
                                    const AttentionGeometry& geometry, const DeviceInfo& device);

/// Bytes of a list of tiles: none where the side isn't packed.
[[nodiscard]] std::int64_t list_bytes(bool packed, std::int64_t tiles);

/// Plans portable_bwd for operands that do not begin at a multiple of 16 bytes, in the same
/// workspace, and says so.
void plan_portable_backward(const AttentionProblem& problem, const AttentionGeometry& geometry,
                            const DeviceInfo& device, planner::KernelConfig& config);

}  // namespace foveal::cuda::hopper
