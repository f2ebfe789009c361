// hopper_bwd's products where heads are wider than 128: two blocks of a cluster hold a tile of keys
// and values, half of them each, and stream the rows that meet them past it. Warp-specialised: one
// warpgroup loads and adds, one computes scores, one sums dv, one dk.
#pragma once

#include <cstdint>

#include "cuda/hopper/bwd/args.hpp"
#include "cuda/hopper/bwd/epilogue.cuh"
#include "cuda/hopper/bwd/kernel.cuh"
#include "cuda/hopper/bwd/wide_load.cuh"
#include "cuda/hopper/bwd/wide_scores.cuh"
#include "cuda/hopper/bwd/wide_shared_memory.cuh"
#include "cuda/hopper/bwd/wide_sums.cuh"
#include "cuda/hopper/cluster_exit.cuh"

namespace foveal::cuda::hopper::bwd {

/// One thread calls it.
template <class Shape>
FOVEAL_DEVICE void init_wide_barriers(typename Shape::SharedMemory& smem) {
  constexpr unsigned kWarps = 4;  // of one consumer
  ptx::mbarrier_init(address_of(smem.k_full), 1);
  ptx::mbarrier_init(address_of(smem.v_full), 1);
  ptx::mbarrier_init(address_of(smem.part_full), 1);
  ptx::mbarrier_init(address_of(smem.ticket_full), 1);
  for (int i = 0; i < Shape::kQStages; ++i) {
    ptx::mbarrier_init(address_of(smem.q_full[i]), 1);
    ptx::mbarrier_init(address_of(smem.q_empty[i]), kGroupThreads + kWarps * Shape::kBlocks);
  }
  for (int i = 0; i < Shape::kDoutStages; ++i) {
    ptx::mbarrier_init(address_of(smem.dout_full[i]), 32);
    ptx::mbarrier_init(address_of(smem.dout_empty[i]), kGroupThreads + 2 * kWarps * Shape::kBlocks);
  }
  ptx::mbarrier_init(address_of(smem.p_full), kWarps);
  ptx::mbarrier_init(address_of(smem.p_empty), kWarps);
  ptx::mbarrier_init(address_of(smem.ds_full), kWarps);
  ptx::mbarrier_init(address_of(smem.ds_empty), 2 * kWarps);  // consumers of dv and dk
  ptx::mbarrier_init(address_of(smem.other_ds_full), 1);
  ptx::mbarrier_init(address_of(smem.scores_started), kWarps);
  ptx::mbarrier_init(address_of(smem.other_ds_empty), kWarps * Shape::kDqConsumers);
  ptx::mbarrier_init(address_of(smem.dq_added), Shape::kDqConsumers);
  ptx::mbarrier_init(address_of(smem.turn_passed), 1);
  for (int consumer = 0; consumer < Shape::kDqConsumers; ++consumer) {
    for (int i = 0; i < Shape::kDqBuffers; ++i) {
      ptx::mbarrier_init(address_of(smem.dq_full[consumer][i]), kWarps);
      ptx::mbarrier_init(address_of(smem.dq_empty[consumer][i]), 1);
    }
  }
  ptx::fence_mbarrier_init();
}

/// The cluster's ticket, of the block that takes it. Where tiles add to dq in turn, tickets are in
/// the order in which clusters begin, so that an earlier one's work is under way; else they are the
/// clusters' numbers.
template <class Shape>
FOVEAL_DEVICE std::uint32_t take_ticket(const GradientArgs& args, int rank) {
  if (args.turns == nullptr || rank > 0) return blockIdx.x / Shape::kBlocks;
  return static_cast<std::uint32_t>(
      atomicAdd(reinterpret_cast<unsigned long long*>(args.tickets), 1ull));
}
/// The same ticket for both blocks. One thread of each calls it when barriers are ready.
template <class Shape>
FOVEAL_DEVICE std::uint32_t share_ticket(const GradientArgs& args,
                                         typename Shape::SharedMemory& smem, int rank,
                                         std::uint32_t ticket) {
  static_assert(Shape::kBlocks == 2);
  if (args.turns == nullptr) return ticket;
  const std::uint32_t place = address_of(smem.ticket);
  const std::uint32_t full = address_of(smem.ticket_full);
  if (rank == 0) {
    ptx::st_async(ptx::mapa(place, 1), __uint_as_float(ticket), ptx::mapa(full, 1));
    return ticket;
  }
  ptx::mbarrier_arrive_expect_tx(full, sizeof smem.ticket);
  ptx::mbarrier_wait_cluster(full, 0);
  return *const_cast<const volatile std::uint32_t*>(&smem.ticket);
}

/// The producer warpgroup.
template <class Shape>
FOVEAL_DEVICE void produce(const GradientArgs& args, typename Shape::SharedMemory& smem, int rank) {
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  if (warp == 0) {
    if (smem.work.steps > 0) load_wide_operands<Shape>(args, smem, rank);
  } else if (threadIdx.x % 32 == 0) {
    if (warp == 1) {
      if (args.turns != nullptr) pass_turns<Shape>(args, smem, rank);
    } else if (warp == 2) {
      add_wide_dq<Shape, 0>(args, smem, rank);
    } else if constexpr (Shape::kDqConsumers > 1) {
      add_wide_dq<Shape, 1>(args, smem, rank);
    }
  }
  __syncwarp();
}

/// Where this warp's keys go.
FOVEAL_DEVICE int row_of_warp(int rank) {
  return rank * kGroupRows + static_cast<int>(threadIdx.x) % kGroupThreads / 32 * 16;
}

/// dv, or dk.
template <class Shape, Sum kSum>
FOVEAL_DEVICE void consume_sums(const GradientArgs& args, typename Shape::SharedMemory& smem,
                                int rank) {
  typename SumConsumer<Shape, kSum>::Sums sums;
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  SumConsumer<Shape, kSum>(smem, rank).run(sums);
  finish_exchange();
  const cuda::bwd::BackwardArgs& backward = args.backward;
  const AttentionArgs& attention = backward.attention;
  const cuda::bwd::HeldTile& tile = smem.work.tile;
  const int row = row_of_warp(rank);
  using Element = typename Shape::Element;
  if constexpr (kSum == Sum::kDv) {
    store_gradient<Element>(
        {backward.dv, backward.dv_info, args.dv_in_units, tile, row, attention.headdim_v, 1.0f},
        sums);
  } else {
    store_gradient<Element>({backward.dk, backward.dk_info, args.dk_in_units, tile, row,
                             attention.headdim, attention.score.softmax_scale},
                            sums);
  }
}

namespace {

template <class Config, DType kDType>
__global__ void __launch_bounds__(Config::tile.num_threads(), 1)
    hopper_bwd_wide(const __grid_constant__ GradientArgs args) {
  using Shape = WideShape<Config, kDType>;
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& smem = *reinterpret_cast<typename Shape::SharedMemory*>(shared);
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / kGroupThreads);
  const auto rank = static_cast<int>(blockIdx.x % Shape::kBlocks);
  std::uint32_t ticket = 0;
  if (threadIdx.x == 0) {
    ticket = take_ticket<Shape>(args, rank);
    init_wide_barriers<Shape>(smem);
  }
  __syncwarp();
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();  // both blocks' barriers are ready
  if (threadIdx.x == 0) {
    describe_work<Shape>(args, share_ticket<Shape>(args, smem, rank, ticket), smem.work);
  }
  __syncthreads();
  if (!smem.work.tile.present) return;  // nor in the other block
  if (warpgroup == 0) {
    ptx::set_max_registers_lower<Shape::kTile.producer_registers()>();
    produce<Shape>(args, smem, rank);
    finish_exchange();
  } else if (warpgroup == 1) {
    ptx::set_max_registers_lower<Shape::kTile.scores_registers()>();
    if (smem.work.steps > 0) ScoresConsumer<Shape>(args, smem, rank).run();
    finish_exchange();
  } else if (warpgroup == 2) {
    ptx::set_max_registers_higher<Shape::kTile.consumer_registers()>();
    consume_sums<Shape, Sum::kDv>(args, smem, rank);
  } else {
    ptx::set_max_registers_higher<Shape::kTile.consumer_registers()>();
    consume_sums<Shape, Sum::kDk>(args, smem, rank);
  }
  leave_cluster();
}

}  // namespace

}  // namespace foveal::cuda::hopper::bwd
