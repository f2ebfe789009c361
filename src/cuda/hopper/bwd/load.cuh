// The roles of the producer warpgroup's warps: one asks the copy engine for k, v, q and dout, one
// copies the rows' lse and delta, one has the copy engine add dq to its sums.
#pragma once

#include <cstdint>

#include "cuda/hopper/bwd/args.hpp"
#include "cuda/hopper/bwd/shared_memory.cuh"
#include "cuda/ptx/bulk_reduce.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"

namespace foveal::cuda::hopper::bwd {

/// A whole tile from row `row` on.
template <PanelLayout kLayout>
FOVEAL_DEVICE void load_tile(const TensorMap& map, std::uint32_t to, std::uint32_t full, int row,
                             int head, int sequence) {
  ptx::mbarrier_arrive_expect_tx(full, kLayout.bytes());
#pragma unroll
  for (int panel = 0; panel < kLayout.panels(); ++panel) {
    ptx::tma_load_4d(to + panel * kLayout.panel_bytes(), &map, full,
                     panel * kLayout.panel_columns(), row, head, sequence);
  }
}

/// One thread calls it.
template <class Shape>
FOVEAL_DEVICE void load_operands(const GradientArgs& args, typename Shape::SharedMemory& smem) {
  constexpr PanelLayout kQ = Shape::kQLayout;
  constexpr PanelLayout kK = Shape::kKLayout;
  const BlockWork& work = smem.work;
  const auto& sequence = work.tile.sequence;
  const auto& lengths = args.backward.attention.lengths;
  const int q_sequence = lengths.cu_seqlens_q != nullptr ? 0 : sequence.b;
  const int k_sequence = lengths.cu_seqlens_k != nullptr ? 0 : sequence.b;
  const int key = sequence.k_begin + work.tile.first;
  load_tile<kK>(args.k, address_of(smem.k), address_of(smem.k_full), key, work.tile.head,
                k_sequence);
  RowTiles rows(work);
  RingPlace<Shape::kQStages> q;
  RingPlace<Shape::kDoutStages> dout;
#pragma unroll 1
  for (int step = 0; step < work.steps; ++step) {
    const int first_row = rows.block * Shape::kTile.m;
    const int row = sequence.q_begin + first_row;
    ptx::mbarrier_wait(address_of(smem.q_empty[q.stage]), q.parity ^ 1);
    smem.step[q.stage] = {first_row, work.blocks.needs_mask(rows.block),
                          first_row < work.rows.min || first_row + Shape::kTile.m > work.rows.max,
                          step + 1 == work.steps};
    load_tile<kQ>(args.q, address_of(smem.q[q.stage]), address_of(smem.q_full[q.stage]), row,
                  rows.head, q_sequence);
    if (step == 0) {
      load_tile<kK>(args.v, address_of(smem.v), address_of(smem.v_full), key, work.tile.head,
                    k_sequence);
    }
    ptx::mbarrier_wait(address_of(smem.dout_empty[dout.stage]), dout.parity ^ 1);
    load_tile<kQ>(args.dout, address_of(smem.dout[dout.stage]),
                  address_of(smem.dout_full[dout.stage]), row, rows.head, q_sequence);
    rows.advance(work);
    q = q.next();
    dout = dout.next();
  }
}

/// All lanes of a warp call it. A row that meets nothing has lse +inf: its weights are 0.
template <class Shape>
FOVEAL_DEVICE void load_stats(const GradientArgs& args, typename Shape::SharedMemory& smem) {
  constexpr int kRows = Shape::kTile.m / 32;
  const BlockWork& work = smem.work;
  const auto& backward = args.backward;
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t first_row =
      backward.row_index(work.tile.sequence.b, work.tile.sequence.q_begin);
  RowTiles rows(work);
  RingPlace<Shape::kDoutStages> at;
#pragma unroll 1
  for (int step = 0; step < work.steps; ++step) {
    const float2* from = backward.stats + rows.head * backward.total_q + first_row;
    float2 stats[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = rows.block * Shape::kTile.m + 32 * i + lane;
      stats[i] = work.rows.contains(row) ? from[row] : float2{__int_as_float(0x7f800000), 0.0f};
    }
    ptx::mbarrier_wait(address_of(smem.dout_empty[at.stage]), at.parity ^ 1);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      smem.lse[at.stage][32 * i + lane] = stats[i].x;
      smem.delta[at.stage][32 * i + lane] = stats[i].y;
    }
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(address_of(smem.dout_full[at.stage]));
    rows.advance(work);
    at = at.next();
  }
}

/// One thread calls it.
template <class Shape>
FOVEAL_DEVICE void add_dq(const GradientArgs& args, typename Shape::SharedMemory& smem) {
  constexpr BackwardTile kTile = Shape::kTile;
  constexpr int kPieceFloats = kTile.dq_floats() / Shape::kConsumers;
  const BlockWork& work = smem.work;
  RowTiles rows(work);
#pragma unroll 1
  for (int step = 0; step < work.steps; ++step, rows.advance(work)) {
    const std::int64_t tile =
        static_cast<std::int64_t>(rows.head) * args.row_tiles + work.first_row_tile + rows.block;
    float* to = args.backward.dq_sums + tile * kTile.dq_floats();
#pragma unroll
    for (int piece = 0; piece < Shape::kConsumers; ++piece) {
      ptx::mbarrier_wait(address_of(smem.dq_full[piece]), step % 2);
      ptx::bulk_reduce_add(to + piece * kPieceFloats, address_of(smem.dq[piece]), 4 * kPieceFloats);
      ptx::bulk_commit();
    }
    ptx::bulk_wait_read<1>();
    ptx::mbarrier_arrive(address_of(smem.dq_empty[0]));
    ptx::bulk_wait_read<0>();
    ptx::mbarrier_arrive(address_of(smem.dq_empty[1]));
  }
}

}  // namespace foveal::cuda::hopper::bwd
