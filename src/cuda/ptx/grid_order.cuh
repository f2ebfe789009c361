// Launches that may begin while the one before them in the stream still runs (sm_90 and newer).
// Where the launch does not allow it, neither does anything.
#pragma once

#include "core/host_device.hpp"

namespace foveal::cuda::ptx {

/// Waits until the launch before has ended, and sees what it wrote.
FOVEAL_DEVICE void wait_for_grid_before() { asm volatile("griddepcontrol.wait;\n" ::: "memory"); }

/// The launch after this one may begin once all blocks of this one have called it or ended.
FOVEAL_DEVICE void start_grid_after() { asm volatile("griddepcontrol.launch_dependents;\n"); }

}  // namespace foveal::cuda::ptx
