// Zeroes instead of rows that meet nothing and may hold anything: 0 times NaN is NaN.
#pragma once

#include <cstdint>

#include "cuda/hopper/bwd/scores.cuh"
#include "cuda/hopper/bwd/shared_memory.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warpgroup.cuh"

namespace foveal::cuda::hopper::bwd {

/// Zeroes those of an operand's rows that `kept` does not contain. A warpgroup calls it, whose
/// products may then read them; named barrier `barrier` is its own.
template <PanelLayout kLayout>
FOVEAL_DEVICE void clear_rows(unsigned char* operand, const IntRange& rows, const IntRange& kept,
                              int barrier) {
  constexpr int kUnits = kLayout.row_bytes() / 16;
  const std::uint32_t base = ptx::shared_address(operand);
#pragma unroll 1
  for (int unit = thread_of_group(); unit < (rows.max - rows.min) * kUnits; unit += kGroupThreads) {
    const int row = rows.min + unit / kUnits;
    if (kept.contains(row)) continue;
#pragma unroll
    for (int panel = 0; panel < kLayout.panels(); ++panel) {
      ptx::store_shared_16(
          base + panel * kLayout.panel_bytes() + row * kLayout.row_bytes() + unit % kUnits * 16,
          {0, 0, 0, 0});
    }
  }
  ptx::fence_proxy_async();
  ptx::named_barrier_sync(barrier, kGroupThreads);
}

}  // namespace foveal::cuda::hopper::bwd
