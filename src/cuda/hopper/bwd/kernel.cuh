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
#include "cuda/ptx/grid_order.cuh"
#include "cuda/ptx/warpgroup.cuh"

namespace foveal::cuda::hopper::bwd {

/// One thread calls it.
template <class Shape>
FOVEAL_DEVICE void init_barriers(typename Shape::SharedMemory& smem) {
  constexpr unsigned kConsumerWarps = 4 * Shape::kConsumers;
  ptx::mbarrier_init(address_of(smem.k_full), 1);
  ptx::mbarrier_init(address_of(smem.v_full), 1);
  for (int i = 0; i < Shape::kQStages; ++i) {
    ptx::mbarrier_init(address_of(smem.q_full[i]), 1);
    ptx::mbarrier_init(address_of(smem.q_empty[i]), kConsumerWarps);
  }
  for (int i = 0; i < Shape::kDoutStages; ++i) {
    ptx::mbarrier_init(address_of(smem.dout_full[i]), 2);  // dout; lse and delta
    ptx::mbarrier_init(address_of(smem.dout_empty[i]), kConsumerWarps);
  }
  for (int i = 0; i < Shape::kConsumers; ++i) {
    ptx::mbarrier_init(address_of(smem.dq_full[i]), 4);
    ptx::mbarrier_init(address_of(smem.dq_empty[i]), 1);
  }
  ptx::fence_mbarrier_init();
}

/// Which keys the block has, and of which head: entry.b is -1 for none.
struct KeyTile {
  cuda::bwd::TileEntry entry;
  int head;
};
FOVEAL_DEVICE KeyTile find_key_tile(const GradientArgs& args, std::uint32_t index) {
  const KeyTilePlace place = key_tile_place(args.order, index);
  const cuda::bwd::TileEntry* entries = args.backward.keys.entries;
  if (entries == nullptr) {
    const int heads = args.backward.attention.nheads_k;
    return {{place.pair / heads, place.block}, place.pair % heads};
  }
  if (place.block >= entries[0].b) return {{-1, 0}, 0};
  return {entries[1 + place.block], place.pair};
}

/// A side of the window in 32 bits: beyond any length it is unbounded.
FOVEAL_DEVICE std::int32_t narrow(std::int64_t side) {
  return static_cast<std::int32_t>(
      min_of<std::int64_t>(side, algorithm::kUnboundedOf<std::int32_t>));
}

/// One thread calls it.
template <class Shape>
FOVEAL_DEVICE void describe_work(const GradientArgs& args, std::uint32_t index, BlockWork& work) {
  constexpr BackwardTile kTile = Shape::kTile;
  constexpr auto kKeys = cuda::bwd::Side::kKeys;
  const cuda::bwd::BackwardArgs& backward = args.backward;
  const KeyTile key_tile = find_key_tile(args, index);
  work.tile.present = false;
  if (key_tile.entry.b < 0) return;
  work.tile = cuda::bwd::tile_of_entry<kKeys, kTile.n>(backward, key_tile.entry, key_tile.head);
  work.blocks = cuda::bwd::streamed_blocks<kKeys, kTile.n, kTile.m>(work.tile);
  work.rows = work.tile.sequence.seeing_rows();
  const algorithm::Mask& mask = work.tile.sequence.mask;
  work.mask = {static_cast<std::int32_t>(mask.seqlen_q),
               static_cast<std::int32_t>(mask.seqlen_k),
               {narrow(mask.window.left), narrow(mask.window.right)}};
  work.count = work.blocks.visit.max - work.blocks.visit.min;
  // Neighbouring tiles of keys never add to the same rows of dq at the same time.
  const int diagonal = work.tile.first / kTile.m - work.blocks.visit.min;
  work.start = work.count > 0 ? max_of(diagonal, 0) % work.count : 0;
  work.steps = work.count * backward.attention.qhead_per_khead;
  work.first_head = key_tile.head * backward.attention.qhead_per_khead;
  const int b = work.tile.sequence.b;
  const bool packed = backward.attention.lengths.cu_seqlens_q != nullptr;
  work.first_row_tile =
      packed ? packed_row_tile(kTile, work.tile.sequence.q_begin, b) : b * args.row_blocks;
}

template <class Shape>
FOVEAL_DEVICE void consume(const GradientArgs& args, typename Shape::SharedMemory& smem,
                           int group) {
  Consumer<Shape> consumer(args, smem, group);
  typename Consumer<Shape>::Sums dk;
  typename Consumer<Shape>::Sums dv;
#pragma unroll
  for (int i = 0; i < Consumer<Shape>::kSums; ++i) {
    dk[i] = 0.0f;
    dv[i] = 0.0f;
  }
  if (smem.work.steps > 0) consumer.sum(dk, dv);
  const cuda::bwd::BackwardArgs& backward = args.backward;
  const AttentionArgs& attention = backward.attention;
  const int row = group * kGroupRows + static_cast<int>(threadIdx.x) % kGroupThreads / 32 * 16;
  store_gradient<typename Shape::Element>({backward.dv, backward.dv_info, args.dv_in_units,
                                           smem.work.tile, row, attention.headdim_v, 1.0f},
                                          dv);
  store_gradient<typename Shape::Element>(
      {backward.dk, backward.dk_info, args.dk_in_units, smem.work.tile, row, attention.headdim,
       attention.score.softmax_scale},
      dk);
}

namespace {

template <class Config, DType kDType>
__global__ void __launch_bounds__(Config::tile.num_threads(), 1)
    hopper_bwd(const __grid_constant__ GradientArgs args) {
  using Shape = GradientShape<Config, kDType>;
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& smem = *reinterpret_cast<typename Shape::SharedMemory*>(shared);
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / kGroupThreads);
  if (threadIdx.x == 0) {
    init_barriers<Shape>(smem);
    ptx::start_grid_after();
    ptx::wait_for_grid_before();
    describe_work<Shape>(args, blockIdx.x, smem.work);
  }
  __syncthreads();
  if (!smem.work.tile.present) return;
  if (warpgroup == 0) {
    ptx::set_max_registers_lower<Shape::kTile.producer_registers()>();
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
    if (warp == 0) {
      if (threadIdx.x % 32 == 0 && smem.work.steps > 0) load_operands<Shape>(args, smem);
    } else if (warp == 1) {
      load_stats<Shape>(args, smem);
    } else if (warp == 2) {
      if (threadIdx.x % 32 == 0) add_dq<Shape>(args, smem);
    }
  } else {
    ptx::set_max_registers_higher<Shape::kTile.consumer_registers()>();
    consume<Shape>(args, smem, warpgroup - 1);
  }
}

}  // namespace

}  // namespace foveal::cuda::hopper::bwd
