// The whole backward of a plan.
#pragma once

#include <foveal/status.hpp>

#include "plan/kernel_entry.hpp"

namespace foveal::cuda::hopper::wide_bwd {

/// Launches its passes one after the other on the stream. In builds with sm_90a.
[[nodiscard]] Status run(const planner::LaunchContext& context);

}  // namespace foveal::cuda::hopper::wide_bwd
