// From a plan's context to a forward kernel's arguments; not there in builds without sm_90a.
#pragma once

#include <cstdint>

#include <foveal/status.hpp>

#include "cuda/hopper/copy_box.hpp"
#include "cuda/hopper/fwd/args.hpp"
#include "plan/kernel_entry.hpp"

namespace foveal::cuda::hopper {

struct OperandBoxes {
  CopyBox q;
  CopyBox k;
  CopyBox v;
};

/// An instance: `num_blocks` blocks share the tiles.
using LaunchTiles = Status (*)(const ForwardArgs& args, std::int64_t num_blocks, void* stream);

/// Launches an instance, or portable_fwd where an operand does not begin at a multiple of 16 bytes.
[[nodiscard]] Status launch_tiles(const planner::LaunchContext& context,
                                  const ForwardSchedule& schedule, const OperandBoxes& boxes,
                                  LaunchTiles launch_instance);

}  // namespace foveal::cuda::hopper
