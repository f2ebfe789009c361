// The roles of the producer warpgroup's warps: one asks the copy engine for k, v, q and dout, one
// copies the rows' lse and delta, two have the copy engine add dq to its sums, in turn.
#pragma once

#include <cstdint>

#include "cuda/hopper/bwd/args.hpp"
#include "cuda/hopper/bwd/shared_memory.cuh"
#include "cuda/hopper/bwd/turns.cuh"
#include "cuda/hopper/bwd/work.cuh"
#include "cuda/ptx/bulk_reduce.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/grid_order.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/memory.cuh"
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

/// Calls `act` for every tile that the block takes, and then tells that the warp is done with it: a
/// whole warp comes together at the end of `act`.
template <class Shape, class Do>
FOVEAL_DEVICE void for_all_work(typename Shape::SharedMemory& smem, const Do& act) {
#pragma unroll 1
  for (std::uint32_t n = 0;; ++n) {
    const std::uint32_t slot = n % 2;
    ptx::mbarrier_wait(address_of(smem.work_full[slot]), n / 2 % 2);
    if (smem.work[slot].none) return;
    act(smem.work[slot]);
    arrive_once(smem.work_empty[slot]);
  }
}

template <class Shape>
FOVEAL_DEVICE void load_operands_of(const GradientArgs& args, typename Shape::SharedMemory& smem,
                                    const BlockWork& work) {
  constexpr PanelLayout kQ = Shape::kQLayout;
  constexpr PanelLayout kK = Shape::kKLayout;
  const auto& sequence = work.tile.sequence;
  const auto& lengths = args.backward.attention.lengths;
  const int q_sequence = lengths.cu_seqlens_q != nullptr ? 0 : sequence.b;
  const int k_sequence = lengths.cu_seqlens_k != nullptr ? 0 : sequence.b;
  const int key = sequence.k_begin + work.tile.first;
  RowTiles rows(work);
  RingPlace<Shape::kQStages> q = smem.loading.q;
  RingPlace<Shape::kDoutStages> dout = smem.loading.dout;
#pragma unroll 1
  for (int step = 0; step < work.steps; ++step) {
    const int first_row = rows.block * Shape::kTile.m;
    const int row = sequence.q_begin + first_row;
    ptx::mbarrier_wait(address_of(smem.q_empty[q.stage]), q.parity ^ 1);
    const bool masked = work.blocks.needs_mask(rows.block);
    const bool unseeing = first_row < work.rows.min || first_row + Shape::kTile.m > work.rows.max;
    const bool last = step + 1 == work.steps;
    smem.step[q.stage] = {first_row, (masked ? Step::kMasked : 0u) |
                                         (unseeing ? Step::kUnseeing : 0u) |
                                         (last ? Step::kLast : 0u)};
    load_tile<kQ>(args.q, address_of(smem.q[q.stage]), address_of(smem.q_full[q.stage]), row,
                  rows.head, q_sequence);
    // k comes where v of the tile before was, which is free before k is.
    if (step == 0) {
      ptx::mbarrier_wait(address_of(smem.v_empty), work.parity ^ 1);
      load_tile<kK>(args.k, address_of(smem.kv[work.parity]), address_of(smem.k_full), key,
                    work.tile.head, k_sequence);
    }
    ptx::mbarrier_wait(address_of(smem.dout_empty[dout.stage]), dout.parity ^ 1);
    load_tile<kQ>(args.dout, address_of(smem.dout[dout.stage]),
                  address_of(smem.dout_full[dout.stage]), row, rows.head, q_sequence);
    if (step == 0) {
      ptx::mbarrier_wait(address_of(smem.k_empty), work.parity ^ 1);
      load_tile<kK>(args.v, address_of(smem.kv[work.parity ^ 1]), address_of(smem.v_full), key,
                    work.tile.head, k_sequence);
    }
    rows.advance(work);
    q = q.next();
    dout = dout.next();
  }
  smem.loading.q = q;
  smem.loading.dout = dout;
  smem.loading.parity = work.parity ^ 1;
}

/// One thread calls it: takes tiles of keys for the block until there are no more, each when all
/// loads of the one before have been asked for. A block takes the tiles of its tickets in turn, so
/// that whoever waits for an earlier ticket waits for work that is under way.
template <class Shape>
FOVEAL_DEVICE void load_operands(const GradientArgs& args, typename Shape::SharedMemory& smem) {
  auto& at = smem.loading;
  at = {};
  ptx::wait_for_grid_before();
#pragma unroll 1
  for (;;) {
    ptx::mbarrier_wait(address_of(smem.work_empty[at.taken % 2]), at.taken / 2 % 2 ^ 1);
    BlockWork& work = smem.work[at.taken % 2];
    work.none = !take_work<Shape>(args, work);
    work.parity = at.parity;
    ptx::mbarrier_arrive(address_of(smem.work_full[at.taken % 2]));
    if (work.none) break;
    if (work.steps > 0) load_operands_of<Shape>(args, smem, work);
    ++at.taken;
  }
  ptx::start_grid_after();
}

/// All lanes of a warp call it. A row that meets nothing has lse +inf: its weights are 0.
template <class Shape>
FOVEAL_DEVICE void load_stats(const GradientArgs& args, typename Shape::SharedMemory& smem) {
  constexpr int kRows = Shape::kTile.m / 32;
  const auto& backward = args.backward;
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  RingPlace<Shape::kDoutStages> at;
  for_all_work<Shape>(smem, [&](const BlockWork& work) {
    const std::int64_t first_row =
        backward.row_index(work.tile.sequence.b, work.tile.sequence.q_begin);
    RowTiles rows(work);
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
      arrive_each(smem.dout_full[at.stage]);
      rows.advance(work);
      at = at.next();
    }
    __syncwarp();
  });
}

/// Begins an addition without an order: true for the first to a tile of dq's sums, which stores;
/// the others wait until that has happened. Who has begun never waits for another block: the steps
/// before have begun, see add_dq().
FOVEAL_DEVICE bool begin_addition(std::uint64_t* additions) {
  std::uint64_t count = ptx::add_acquire(additions, kBegun);
  if (count == 0) return true;
  while (static_cast<std::uint32_t>(count) == 0) count = ptx::load_acquire(additions);
  ptx::fence_proxy_async_global();
  return false;
}

/// One thread of each of two warps calls it, each for every second step. Nobody clears dq's sums:
/// the first to add to a tile of them stores. In turn, it waits until all tiles of keys that come
/// before this one have added to the same rows: they have earlier tickets, and never wait for a
/// later one.
/// Without an order, an addition begins when that of the step before has, long before its sums are
/// there.
template <class Shape>
FOVEAL_DEVICE void add_dq(const GradientArgs& args, typename Shape::SharedMemory& smem,
                          std::uint32_t adder) {
  constexpr BackwardTile kTile = Shape::kTile;
  constexpr int kPieceFloats = kTile.dq_piece_floats();
  std::uint32_t count = 0;
  bool in_turn = args.turns != nullptr;
  for_all_work<Shape>(smem, [&](const BlockWork& work) {
    RowTiles rows(work);
#pragma unroll 1
    for (int step = 0; step < work.steps; ++step, ++count, rows.advance(work)) {
      if (count % 2 != adder) continue;
      const int tile = sums_tile<int>(args, work, rows);
      int turn = 0;
      bool first;
      if (args.turns != nullptr) {
        turn = dq_turn(kTile, work.turns, work.row_step, rows.block * kTile.m);
        first = turn == 0;
        if (in_turn) in_turn = await_turn(args.turns + tile, turn);
      } else {
        if (count > 0) {
          ptx::mbarrier_wait(address_of(smem.dq_begun[1 - adder]), (count - 1) / 2 % 2);
        }
        first = begin_addition(args.additions + tile);
        ptx::mbarrier_arrive(address_of(smem.dq_begun[adder]));
      }
      float* to = args.backward.dq_sums + static_cast<std::int64_t>(tile) * kTile.dq_floats();
#pragma unroll
      for (int piece = 0; piece < Shape::kConsumers; ++piece) {
        const std::uint32_t from = address_of(smem.dq[piece]);
        ptx::mbarrier_wait(address_of(smem.dq_full[adder][piece]), count / 2 % 2);
        if (first) {
          ptx::bulk_store(to + piece * kPieceFloats, from, 4 * kPieceFloats);
        } else {
          ptx::bulk_reduce_add(to + piece * kPieceFloats, from, 4 * kPieceFloats);
        }
        ptx::bulk_commit();
      }
      ptx::bulk_wait_read<1>();
      ptx::mbarrier_arrive(address_of(smem.dq_empty[0]));
      ptx::bulk_wait_read<0>();
      ptx::mbarrier_arrive(address_of(smem.dq_empty[1]));
      ptx::bulk_wait<0>();
      if (args.turns == nullptr) {
        ptx::add_release(args.additions + tile, 1);
      } else {
        pass_turn(args.turns + tile, turn);
      }
    }
  });
}

}  // namespace foveal::cuda::hopper::bwd
