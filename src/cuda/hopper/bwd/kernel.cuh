// hopper_bwd's products: a block holds a tile of keys and values and streams the rows that meet
// them past it, warp-specialised: one warpgroup loads and adds, the others compute.
#pragma once

#include <cstdint>

#include "cuda/hopper/bwd/args.hpp"
#include "cuda/hopper/bwd/epilogue.cuh"
#include "cuda/hopper/bwd/gradients.cuh"
#include "cuda/hopper/bwd/load.cuh"
#include "cuda/hopper/bwd/shared_memory.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/warpgroup.cuh"

namespace foveal::cuda::hopper::bwd {

/// One thread calls it.
template <class Shape>
FOVEAL_DEVICE void init_barriers(typename Shape::SharedMemory& smem) {
  constexpr unsigned kConsumerWarps = 4 * Shape::kConsumers;
  constexpr unsigned kConsumerThreads = 32 * kConsumerWarps;
  ptx::mbarrier_init(address_of(smem.k_full), 1);
  ptx::mbarrier_init(address_of(smem.v_full), 1);
  ptx::mbarrier_init(address_of(smem.k_empty), kConsumerWarps);
  ptx::mbarrier_init(address_of(smem.v_empty), kConsumerWarps);
  for (int i = 0; i < 2; ++i) {
    ptx::mbarrier_init(address_of(smem.ds_full[i]), kConsumerWarps);
    ptx::mbarrier_init(address_of(smem.ds_empty[i]), kConsumerWarps);
    ptx::mbarrier_init(address_of(smem.dq_begun[i]), 1);
    ptx::mbarrier_init(address_of(smem.work_full[i]), 1);
    ptx::mbarrier_init(address_of(smem.work_empty[i]), kConsumerWarps + 3);
  }
  for (int i = 0; i < Shape::kQStages; ++i) {
    ptx::mbarrier_init(address_of(smem.q_full[i]), 1);
    ptx::mbarrier_init(address_of(smem.q_empty[i]), kConsumerThreads);
  }
  for (int i = 0; i < Shape::kDoutStages; ++i) {
    ptx::mbarrier_init(address_of(smem.dout_full[i]), 1 + 32);  // dout; lse and delta
    ptx::mbarrier_init(address_of(smem.dout_empty[i]), kConsumerThreads + kConsumerWarps);
  }
  for (int i = 0; i < Shape::kConsumers; ++i) {
    ptx::mbarrier_init(address_of(smem.dq_full[0][i]), 4);
    ptx::mbarrier_init(address_of(smem.dq_full[1][i]), 4);
    ptx::mbarrier_init(address_of(smem.dq_empty[i]), 1);
  }
  ptx::fence_mbarrier_init();
}

template <class Shape>
FOVEAL_DEVICE void consume(const GradientArgs& args, typename Shape::SharedMemory& smem,
                           int group) {
  Consumer<Shape> consumer(args, smem, group);
  const cuda::bwd::BackwardArgs& backward = args.backward;
  const AttentionArgs& attention = backward.attention;
#pragma unroll 1
  for (; consumer.has_work(); consumer.finish_work()) {
    typename Consumer<Shape>::Sums dk;
    typename Consumer<Shape>::Sums dv;
#pragma unroll
    for (int i = 0; i < Consumer<Shape>::kSums; ++i) {
      dk[i] = 0.0f;
      dv[i] = 0.0f;
    }
    if (consumer.work().steps > 0) consumer.sum(dk, dv);
    const cuda::bwd::HeldTile& tile = consumer.work().tile;
    const int row = static_cast<int>(ptx::thread_index_anew() - kGroupThreads) / 32 * 16;
    store_gradient<typename Shape::Element>(
        {backward.dv, backward.dv_info, args.dv_in_units, tile, row, attention.headdim_v, 1.0f},
        consumer.scratch(), dv);
    store_gradient<typename Shape::Element>({backward.dk, backward.dk_info, args.dk_in_units, tile,
                                             row, attention.headdim, attention.score.softmax_scale},
                                            consumer.scratch(), dk);
  }
}

namespace {

template <class Config, DType kDType>
__global__ void __launch_bounds__(Config::tile.num_threads(), 1)
    hopper_bwd(const __grid_constant__ GradientArgs args) {
  using Shape = GradientShape<Config, kDType>;
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& smem = *reinterpret_cast<typename Shape::SharedMemory*>(shared);
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / kGroupThreads);
  if (threadIdx.x == 0) init_barriers<Shape>(smem);
  __syncthreads();
  if (warpgroup == 0) {
    ptx::set_max_registers_lower<Shape::kTile.producer_registers()>();
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
    if (warp == 0) {
      if (threadIdx.x % 32 == 0) load_operands<Shape>(args, smem);
    } else if (warp == 1) {
      load_stats<Shape>(args, smem);
    } else if (threadIdx.x % 32 == 0) {
      add_dq<Shape>(args, smem, static_cast<std::uint32_t>(warp - 2));
    }
  } else {
    ptx::set_max_registers_higher<Shape::kTile.consumer_registers()>();
    consume<Shape>(args, smem, warpgroup - 1);
  }
}

}  // namespace

}  // namespace foveal::cuda::hopper::bwd
