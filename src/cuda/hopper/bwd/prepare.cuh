// The pass before the products: lse and delta of the rows, lists of packed tiles, and zeroes where
// the products count and, of wide heads without an order, where they add.
#pragma once

#include <cstdint>

#include "cuda/portable/bwd/row_passes.cuh"
#include "cuda/ptx/grid_order.cuh"

namespace foveal::cuda::hopper::bwd {

/// Whole units of 16 bytes.
struct ClearedPart {
  uint4* data = nullptr;
  std::int64_t units = 0;
};

struct PrepareArgs {
  cuda::bwd::StatsArgs stats;
  cuda::bwd::ListArgs keys;  ///< Without entries: k is not packed.
  cuda::bwd::ListArgs rows;
  ClearedPart counters;  ///< Tickets; additions or turns.
  ClearedPart dq_sums;
};

/// All threads of all blocks call it.
FOVEAL_DEVICE void clear(const ClearedPart& part) {
  const std::int64_t step = gridDim.x * std::int64_t{cuda::bwd::kRowThreads};
  for (std::int64_t i = blockIdx.x * std::int64_t{cuda::bwd::kRowThreads} + threadIdx.x;
       i < part.units; i += step) {
    part.data[i] = {0, 0, 0, 0};
  }
}

template <DType kUnits>
static __global__ void __launch_bounds__(cuda::bwd::kRowThreads, cuda::bwd::kStatsBlocks)
    prepare_kernel(const __grid_constant__ PrepareArgs args) {
  ptx::start_grid_after();
  if (blockIdx.x == 0 && args.keys.entries != nullptr) list_tiles(args.keys);
  if (blockIdx.x == gridDim.x - 1 && args.rows.entries != nullptr) list_tiles(args.rows);
  clear(args.counters);
  clear(args.dq_sums);
  cuda::bwd::compute_stats<kUnits>(args.stats);
}

}  // namespace foveal::cuda::hopper::bwd
