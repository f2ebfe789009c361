// The roles of the producer warpgroup's warps where heads are wider than 128: one asks the copy
// engine for k, v, q and dout and copies the rows' lse and delta, two have the copy engine add dq
// to its sums, one passes on the turns to do so.
#pragma once

#include <cstdint>

#include "cuda/hopper/bwd/args.hpp"
#include "cuda/hopper/bwd/shared_memory.cuh"
#include "cuda/hopper/bwd/turns.cuh"
#include "cuda/hopper/bwd/wide_shared_memory.cuh"
#include "cuda/hopper/bwd/work.cuh"
#include "cuda/ptx/bulk_reduce.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/tma_multicast.cuh"

namespace foveal::cuda::hopper::bwd {

/// Where keys lie for the copy engine.
struct KeyPlace {
  int row;
  int head;
  int sequence;
};

/// A block's keys of k or v, from key `at.row` on.
template <class Shape>
FOVEAL_DEVICE void load_keys(const TensorMap& map, std::uint32_t to, std::uint32_t full,
                             const KeyPlace& at) {
  constexpr PanelLayout kK = Shape::kKLayout;
  ptx::mbarrier_arrive_expect_tx(full, kK.bytes());
#pragma unroll
  for (int panel = 0; panel < kK.panels(); ++panel) {
    ptx::tma_load_4d(to + panel * kK.panel_bytes(), &map, full, panel * kK.panel_columns(), at.row,
                     at.head, at.sequence);
  }
}

/// Of the keys of the blocks that k_part has, the columns of dq that this block has.
template <class Shape>
FOVEAL_DEVICE void load_parts(const GradientArgs& args, typename Shape::SharedMemory& smem,
                              const KeyPlace& keys, int rank) {
  constexpr PanelLayout kPart = Shape::kPartLayout;
  const std::uint32_t full = address_of(smem.part_full);
  ptx::mbarrier_arrive_expect_tx(full, Shape::kParts * kPart.bytes());
#pragma unroll 1
  for (int part = 0; part < Shape::kParts; ++part) {
    const int row = keys.row + Shape::block_of_part(part, rank) * kGroupRows;
#pragma unroll 1
    for (int panel = 0; panel < kPart.panels(); ++panel) {
      ptx::tma_load_4d(address_of(smem.k_part[part]) + panel * kPart.panel_bytes(), &args.k_part,
                       full, rank * kPart.columns + panel * kPart.panel_columns(), row, keys.head,
                       keys.sequence);
    }
  }
}

/// A tile of rows into all blocks of the cluster, of which each asks for its share of the rows.
template <class Shape>
FOVEAL_DEVICE void load_rows(const TensorMap& map, std::uint32_t to, std::uint32_t full, int row,
                             int head, int sequence, int rank) {
  constexpr PanelLayout kQ = Shape::kQLayout;
  constexpr int kRows = Shape::kTile.m / Shape::kBlocks;
  ptx::mbarrier_arrive_expect_tx(full, kQ.bytes());
  to += rank * kRows * kQ.row_bytes();
  row += rank * kRows;
#pragma unroll
  for (int panel = 0; panel < kQ.panels(); ++panel) {
    const std::uint32_t at = to + panel * kQ.panel_bytes();
    const int column = panel * kQ.panel_columns();
    ptx::tma_load_4d_multicast(at, &map, full, (1u << Shape::kBlocks) - 1, column, row, head,
                               sequence);
  }
}

/// lse and delta of a tile of rows. A row that meets nothing has lse +inf: its weights are 0.
template <class Shape>
struct RowStats {
  static constexpr int kRows = Shape::kTile.m / 32;
  float2 values[kRows];

  /// All lanes of a warp call it, and the next.
  FOVEAL_DEVICE void load(const GradientArgs& args, const BlockWork& work, const RowTiles& rows) {
    const auto& backward = args.backward;
    const float2* from = backward.stats + rows.head * backward.total_q +
                         backward.row_index(work.tile.sequence.b, work.tile.sequence.q_begin);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = rows.block * Shape::kTile.m + 32 * i + static_cast<int>(threadIdx.x) % 32;
      values[i] = work.rows.contains(row) ? from[row] : float2{__int_as_float(0x7f800000), 0.0f};
    }
  }
  FOVEAL_DEVICE void store(float* lse, float* delta) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      lse[32 * i + threadIdx.x % 32] = values[i].x;
      delta[32 * i + threadIdx.x % 32] = values[i].y;
    }
  }
};

/// All lanes of a warp call it; the first asks for the copies.
template <class Shape>
FOVEAL_DEVICE void load_wide_operands(const GradientArgs& args, typename Shape::SharedMemory& smem,
                                      int rank) {
  const BlockWork& work = smem.work;
  const auto& sequence = work.tile.sequence;
  const auto& lengths = args.backward.attention.lengths;
  const int q_sequence = lengths.cu_seqlens_q != nullptr ? 0 : sequence.b;
  const KeyPlace keys{sequence.k_begin + work.tile.first, work.tile.head,
                      lengths.cu_seqlens_k != nullptr ? 0 : sequence.b};
  const KeyPlace own{keys.row + rank * kGroupRows, keys.head, keys.sequence};
  const bool first = threadIdx.x % 32 == 0;
  if (first) load_keys<Shape>(args.k, address_of(smem.k), address_of(smem.k_full), own);
  RowTiles rows(work);
  RingPlace<Shape::kQStages> q;
  RingPlace<Shape::kDoutStages> dout;
#pragma unroll 1
  for (int step = 0; step < work.steps; ++step) {
    const int first_row = rows.block * Shape::kTile.m;
    const int row = sequence.q_begin + first_row;
    RowStats<Shape> stats;
    stats.load(args, work, rows);
    ptx::mbarrier_wait(address_of(smem.q_empty[q.stage]), q.parity ^ 1);
    if (first) {
      smem.rows[q.stage] = {
          first_row, work.blocks.needs_mask(rows.block),
          first_row < work.rows.min || first_row + Shape::kTile.m > work.rows.max};
      load_rows<Shape>(args.q, address_of(smem.q[q.stage]), address_of(smem.q_full[q.stage]), row,
                       rows.head, q_sequence, rank);
      if (step == 0) load_keys<Shape>(args.v, address_of(smem.v), address_of(smem.v_full), own);
    }
    ptx::mbarrier_wait(address_of(smem.dout_empty[dout.stage]), dout.parity ^ 1);
    stats.store(smem.lse[dout.stage], smem.delta[dout.stage]);
    if (!first) {
      arrive_each(smem.dout_full[dout.stage]);
    } else {
      load_rows<Shape>(args.dout, address_of(smem.dout[dout.stage]),
                       address_of(smem.dout_full[dout.stage]), row, rows.head, q_sequence, rank);
      if (step == 0) load_parts<Shape>(args, smem, keys, rank);
    }
    rows.advance(work);
    q = q.next();
    dout = dout.next();
  }
}

/// Where the turns of the block's columns of the tile are counted.
template <BackwardTile kTile>
FOVEAL_DEVICE std::uint64_t* next_turn(const GradientArgs& args, std::int64_t tile, int rank) {
  return args.turns + tile * kTile.blocks + rank;
}

/// Adds the columns of dq that one consumer computes. One thread calls it. With turns it waits,
/// step by step, until all tiles of keys that come before this one have added the block's columns
/// of the same rows: they have earlier tickets, and never wait for a later one. Whose turn is 0
/// stores; without turns sums begin as zeroes.
template <class Shape, int kConsumer>
FOVEAL_DEVICE void add_wide_dq(const GradientArgs& args, typename Shape::SharedMemory& smem,
                               int rank) {
  constexpr BackwardTile kTile = Shape::kTile;
  constexpr int kPieceFloats = kTile.piece_floats();
  constexpr int kFirst = kConsumer == 0 ? 0 : kTile.dv_dq_columns();
  constexpr int kColumns = kConsumer == 0 ? kTile.dv_dq_columns() : kTile.dk_dq_columns();
  const int first = rank * kTile.part_layout().columns + kFirst;
  const BlockWork& work = smem.work;
  auto& empty = smem.dq_empty[kConsumer];
  RowTiles rows(work);
  RingPlace<Shape::kDqBuffers> at;
  bool in_turn = args.turns != nullptr;
#pragma unroll 1
  for (int step = 0; step < work.steps; ++step, rows.advance(work)) {
    const std::int64_t tile = sums_tile<std::int64_t>(args, work, rows);
    float* to = args.backward.dq_sums + tile * kTile.dq_floats() + first * kTile.m;
    int turn = 0;
    if (in_turn) {
      turn = dq_turn(kTile, work.turns, work.row_step, rows.block * kTile.m);
      in_turn = await_turn(next_turn<kTile>(args, tile, rank), turn);
    }
#pragma unroll 1
    for (int piece = 0; piece < kColumns / kPieceColumns; ++piece) {
      ptx::mbarrier_wait(address_of(smem.dq_full[kConsumer][at.stage]), at.parity);
      const std::uint32_t from = address_of(smem.dq[kConsumer][at.stage]);
      if (in_turn && turn == 0) {
        ptx::bulk_store(to + piece * kPieceFloats, from, 4 * kPieceFloats);
      } else {
        ptx::bulk_reduce_add(to + piece * kPieceFloats, from, 4 * kPieceFloats);
      }
      ptx::bulk_commit();
      ptx::bulk_wait_read<1>();
      if (piece > 0) ptx::mbarrier_arrive(address_of(empty[at.before()]));
      at = at.next();
    }
    ptx::bulk_wait_read<0>();
    ptx::mbarrier_arrive(address_of(empty[at.before()]));
    if (args.turns != nullptr) {
      if (step > 0) ptx::mbarrier_wait(address_of(smem.turn_passed), (step - 1) % 2);
      ptx::bulk_wait<0>();
      ptx::mbarrier_arrive(address_of(smem.dq_added));
    }
  }
}

/// Passes the block's turns on when its columns of dq have been added. A thread of its own calls
/// it: those that add have the next step's turn to wait for, and would be late for its dq.
template <class Shape>
FOVEAL_DEVICE void pass_turns(const GradientArgs& args, typename Shape::SharedMemory& smem,
                              int rank) {
  constexpr BackwardTile kTile = Shape::kTile;
  const BlockWork& work = smem.work;
  RowTiles rows(work);
#pragma unroll 1
  for (int step = 0; step < work.steps; ++step, rows.advance(work)) {
    ptx::mbarrier_wait(address_of(smem.dq_added), step % 2);
    pass_turn(next_turn<kTile>(args, sums_tile<std::int64_t>(args, work, rows), rank),
              dq_turn(kTile, work.turns, work.row_step, rows.block * kTile.m));
    ptx::mbarrier_arrive(address_of(smem.turn_passed));
  }
}

}  // namespace foveal::cuda::hopper::bwd
