// Tiles of keys that add to a tile of dq's sums in turn, for the same bits in every run.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/ptx/bulk_reduce.cuh"
#include "cuda/ptx/memory.cuh"

namespace foveal::cuda::hopper::bwd {

/// Loads of a turn before it is given up, a second or more.
inline constexpr int kMaxLooks = 1 << 21;

/// Whether the turn came. It always does, but for cu_seqlens that contradict one another, give one
/// tile of rows to two sequences or list more tiles of keys than there is room for: dq is then
/// wrong anyway, and the launch must end. What the calling thread asks of the copy engine from here
/// on comes after what was added, and stored, in the turns before.
FOVEAL_DEVICE bool await_turn(const std::uint64_t* next_turn, int turn) {
#pragma unroll 1
  for (int look = 0; look < kMaxLooks; ++look) {
    if (ptx::load_acquire(next_turn) == static_cast<std::uint64_t>(turn)) {
      ptx::fence_proxy_async_global();
      return true;
    }
  }
  return false;
}

/// After bulk_wait(), which may have been another thread's of the block that has announced it
/// since; also where the turn was given up, for those that come next. It takes a microsecond:
/// bulk_wait() itself waits only until shared memory has been read (on sm_90 the machine code is
/// the same), and a turn that is passed without the release overtakes what was added and stored.
/// The next addition is then lost below the first one's store, or comes before the last.
FOVEAL_DEVICE void pass_turn(std::uint64_t* next_turn, int turn) {
  ptx::store_release(next_turn, static_cast<std::uint64_t>(turn) + 1);
}

}  // namespace foveal::cuda::hopper::bwd
