// How the threads of a cluster part, whose blocks store to one another and arrive at one another's
// barriers: no block leaves while another still may.
#pragma once

#include "core/host_device.hpp"
#include "cuda/ptx/cluster.cuh"

namespace foveal::cuda::hopper {

/// The calling thread stores to another block or arrives there no more. All lanes of a warp call
/// it, and later leave_cluster().
FOVEAL_DEVICE void finish_exchange() {
  __syncwarp();
  __threadfence();  // arrivals at other blocks' barriers come first
  ptx::cluster_arrive_relaxed();
}

/// Waits until all threads of all blocks have finished.
FOVEAL_DEVICE void leave_cluster() {
  __syncwarp();
  ptx::cluster_wait();
}

}  // namespace foveal::cuda::hopper
