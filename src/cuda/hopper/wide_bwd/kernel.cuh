// hopper_wide_bwd's products: a cluster of two blocks holds a tile of one side and streams what
// meets it past it. Each block has a warpgroup that loads, one that computes scores or their
// gradients, and one a gradient that sums.
#pragma once

#include <cstdint>

#include "cuda/hopper/cluster_exit.cuh"
#include "cuda/hopper/wide_bwd/load.cuh"
#include "cuda/hopper/wide_bwd/scores.cuh"
#include "cuda/hopper/wide_bwd/shared_memory.cuh"
#include "cuda/hopper/wide_bwd/sums.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/warpgroup.cuh"

namespace foveal::cuda::hopper::wide_bwd {

/// One thread calls it.
template <class Shape>
FOVEAL_DEVICE void init_barriers(typename Shape::SharedMemory& smem, int role) {
  ptx::mbarrier_init(address_of(smem.held_full), 1);
  for (int half = 0; half < kHalves; ++half) {
    for (int i = 0; i < Shape::halves().places(half); ++i) {
      const int stage = Shape::halves().place(half, i).stage;
      ptx::mbarrier_init(address_of(smem.streamed_full[stage]), 1);
      ptx::mbarrier_init(address_of(smem.streamed_empty[stage]), kGroupThreads);
    }
  }
  ptx::mbarrier_init(address_of(smem.weights_in_full), 1);  // and the bytes
  ptx::mbarrier_init(address_of(smem.weights_in_empty), kGroupThreads / kLanes);
  ptx::mbarrier_init(address_of(smem.weights_full), kGroupThreads);
  ptx::mbarrier_init(address_of(smem.weights_empty), kGroupThreads);
  ptx::mbarrier_init(address_of(smem.gradients_full), role == 0 ? 1 : kGroupThreads);
  ptx::mbarrier_init(address_of(smem.gradients_empty), 2 * kGroupThreads);
  ptx::fence_mbarrier_init();
}

/// Which tile the cluster has, and of which head: entry.b is -1 for none.
struct ScheduledTile {
  cuda::bwd::TileEntry entry;
  int head;
};
template <Side kSide>
FOVEAL_DEVICE ScheduledTile scheduled_tile(const WideArgs& args, std::uint32_t index) {
  constexpr bool kKeys = kSide == Side::kKeys;
  const TileOrder& order = kKeys ? args.keys : args.rows;
  const auto& backward = args.backward;
  const cuda::bwd::TileEntry* entries = kKeys ? backward.keys.entries : backward.rows.entries;
  if (entries != nullptr) {
    const auto blocks = static_cast<std::uint32_t>(order.blocks);
    const bool listed = index % blocks < static_cast<std::uint32_t>(entries[0].b);
    return {listed ? entries[1 + index % blocks] : cuda::bwd::TileEntry{-1, 0},
            static_cast<int>(index / blocks)};
  }
  const DenseTile tile = dense_tile(order, index);
  const int heads = kKeys ? backward.attention.nheads_k : backward.attention.nheads_q;
  return {{tile.pair / heads, kKeys ? tile.block : order.blocks - 1 - tile.block},
          tile.pair % heads};
}

/// One thread calls it.
template <class Shape>
FOVEAL_DEVICE void describe_work(const WideArgs& args, TileWork& work) {
  constexpr Side kSide = Shape::kSide;
  constexpr bool kKeys = kSide == Side::kKeys;
  const cuda::bwd::BackwardArgs& backward = args.backward;
  const ScheduledTile scheduled = scheduled_tile<kSide>(args, blockIdx.x / kClusterSize);
  work.tile.present = false;
  if (scheduled.entry.b < 0) return;
  work.tile = cuda::bwd::tile_of_entry<kSide, kTileRows>(backward, scheduled.entry, scheduled.head);
  work.blocks = cuda::bwd::streamed_blocks<kSide, kTileRows, kTileRows>(work.tile);
  work.readable = kKeys ? work.tile.sequence.seeing_rows() : work.tile.sequence.seen_keys();
  const int group = backward.attention.qhead_per_khead;
  work.steps = (work.blocks.visit.max - work.blocks.visit.min) * (kKeys ? group : 1);
  work.first_head = kKeys ? scheduled.head * group : scheduled.head / group;
}

template <class Shape>
FOVEAL_DEVICE void sum_gradient(const WideArgs& args, typename Shape::SharedMemory& smem, int role,
                                int index) {
  using cuda::bwd::key_rows;
  typename Sum<Shape>::Sums sums;
#pragma unroll
  for (int i = 0; i < Sum<Shape>::kPieces * Sum<Shape>::kPiece / 2; ++i) {
    sums[i / (Sum<Shape>::kPiece / 2)][i % (Sum<Shape>::kPiece / 2)] = 0.0f;
  }
  Sum<Shape>(smem, role, index).add(sums);
  finish_exchange();
  const cuda::bwd::BackwardArgs& backward = args.backward;
  const AttentionArgs& attention = backward.attention;
  const cuda::bwd::HeldTile& tile = smem.work.tile;
  const int column = role * Shape::kTile.half();
  const float scale = index == 0 ? attention.score.softmax_scale : 1.0f;
  if constexpr (Shape::kSide == Side::kRows) {
    const auto dq =
        cuda::bwd::query_rows(backward.dq, {}, attention.headdim, tile.sequence, tile.head);
    store_gradient<Shape>({dq, backward.dq_info, tile, column, scale}, sums);
  } else {
    const bool keys = index == 0;
    const auto rows =
        key_rows(keys ? backward.dk : backward.dv, {},
                 keys ? attention.headdim : attention.headdim_v, tile.sequence, tile.head);
    store_gradient<Shape>({rows, keys ? backward.dk_info : backward.dv_info, tile, column, scale},
                          sums);
  }
}

/// From what a block begins with to kRegisters a thread.
template <Side kSide, int kRegisters>
FOVEAL_DEVICE void set_registers() {
  if constexpr (kRegisters < WideTile::launch_registers(kSide)) {
    ptx::set_max_registers_lower<kRegisters>();
  } else {
    ptx::set_max_registers_higher<kRegisters>();
  }
}

namespace {

template <class Config, DType kDType, Side kSide>
__global__ void __launch_bounds__(WideTile::num_threads(kSide), 1)
    hopper_wide_bwd(const __grid_constant__ WideArgs args) {
  using Shape = WideShape<Config, kDType, kSide>;
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& smem = *reinterpret_cast<typename Shape::SharedMemory*>(shared);
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / kGroupThreads);
  const auto role = static_cast<int>(ptx::cluster_ctarank());
  if (threadIdx.x == 0) {
    init_barriers<Shape>(smem, role);
    describe_work<Shape>(args, smem.work);
  }
  __syncthreads();
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();
  if (!smem.work.tile.present) return;
  if (warpgroup == 0) {
    set_registers<kSide, WideTile::producer_registers()>();
    if (threadIdx.x == 0 && smem.work.steps > 0) {
      if (role == 0) {
        load_operands<Shape, 0>(args, smem);
      } else {
        load_operands<Shape, 1>(args, smem);
      }
    }
    finish_exchange();
    leave_cluster();
  } else if (warpgroup == 1) {
    set_registers<kSide, Shape::kPlan.score_registers>();
    if (smem.work.steps > 0) {
      if (role == 0) {
        Scores<Shape, 0>(args, smem).compute();
      } else {
        Scores<Shape, 1>(args, smem).compute();
      }
    }
    finish_exchange();
    leave_cluster();
  } else {
    set_registers<kSide, Shape::kPlan.sum_registers>();
    sum_gradient<Shape>(args, smem, role, kSide == Side::kRows ? 0 : warpgroup - 2);
    leave_cluster();
  }
}

}  // namespace

}  // namespace foveal::cuda::hopper::wide_bwd
