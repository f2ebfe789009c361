// Tiles of keys that add to a tile of dq's sums in turn, for the same bits in every run.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/ptx/memory.cuh"

namespace foveal::cuda::hopper::bwd {

/// Loads of a turn before it is given up, a second or more.
inline constexpr int kMaxLooks = 1 << 21;

/// Whether the turn came. It always does, but for cu_seqlens that contradict one another, give one
/// tile of rows to two sequences or list more tiles of keys than there is room for: dq is then
/// wrong anyway, and the launch must end.
///
/// Turns are loaded and stored without an order, which PTX then does not give to the additions, and
/// the first one's store, either: it is the L2 cache's, the one place where they are made, and
/// bulk_wait has seen those before done there. A release would wait for more, a microsecond in
/// every step, and whoever's turn it is with it. Nobody reads the sums by a turn: the conversion
/// has its own count.
FOVEAL_DEVICE bool await_turn(const std::uint64_t* next_turn, int turn) {
  for (int look = 0; look < kMaxLooks; ++look) {
    if (ptx::load_relaxed(next_turn) == static_cast<std::uint64_t>(turn)) return true;
  }
  return false;
}

/// After bulk_wait().
FOVEAL_DEVICE void pass_turn(std::uint64_t* next_turn, int turn) {
  ptx::store_relaxed(next_turn, static_cast<std::uint64_t>(turn) + 1);
}

}  // namespace foveal::cuda::hopper::bwd
