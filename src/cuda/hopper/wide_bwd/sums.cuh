// The warpgroups that sum a gradient of the held tile: half of its columns, over all streamed
// tiles.
#pragma once

#include <cstdint>

#include "cuda/hopper/wide_bwd/scores.cuh"
#include "cuda/hopper/wide_bwd/shared_memory.cuh"
#include "cuda/portable/bwd/epilogue.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/remote_arrive.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/tma.cuh"

namespace foveal::cuda::hopper::wide_bwd {

/// Sum 0 is of gradients of scores (dk or dq), sum 1 of weights (dv).
template <class Shape>
class Sum {
 public:
  using Element = typename Shape::Element;
  using SharedMemory = typename Shape::SharedMemory;
  static constexpr int kPiece = Shape::kTile.piece();
  static constexpr int kPieces = Shape::kTile.half() / kPiece;
  using Sums = float[kPieces][kPiece / 2];
  using Fragments = std::uint32_t[4][4];

  FOVEAL_DEVICE Sum(SharedMemory& smem, int role, int index)
      : smem_(smem),
        role_(role),
        index_(index),
        thread_(static_cast<int>(threadIdx.x) % kGroupThreads) {}

  FOVEAL_DEVICE void add(Sums& sums) {
    const TileWork& work = smem_.work;
    const int half = half_of_sum(role_, index_);
    StreamedTiles tiles(work);
#pragma unroll 1
    for (int step = 0; step < work.steps; ++step, tiles.advance(work)) {
      Fragments factors;
      take_factors(factors, step % 2);
      const HalfPlace at = Shape::halves().place(half, step);
      ptx::mbarrier_wait(address_of(smem_.streamed_full[at.stage]), at.parity);
      const unsigned char* streamed = smem_.streamed(at.stage);
      if (work.has_unreadable(tiles.first())) clear_unreadable(streamed, tiles.first());
      multiply(sums, factors, streamed);
      arrive_after_products(smem_.streamed_empty[at.stage], Shape::halves().sum_arrivals(half));
    }
  }

 private:
  /// Weights or gradients of scores of a step, and makes place for the next.
  FOVEAL_DEVICE void take_factors(Fragments& factors, int round) const {
    if (index_ == 0 && role_ == 0 && thread_ == 0) {
      ptx::mbarrier_arrive_expect_tx(address_of(smem_.gradients_full), sizeof(smem_.gradients));
    }
    const bool weights = index_ == 1;
    ptx::mbarrier_wait(weights ? address_of(smem_.weights_full) : address_of(smem_.gradients_full),
                       round);
    std::uint32_t loaded = 0;
    const uint4* from = weights ? &smem_.weights[0][0] : &smem_.gradients[0][0];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 four = from[i * kGroupThreads + thread_];
      factors[i][0] = four.x;
      factors[i][1] = four.y;
      factors[i][2] = four.z;
      factors[i][3] = four.w;
      loaded ^= four.x;
    }
    std::uint64_t& empty = weights ? smem_.weights_empty : smem_.gradients_empty;
    if (weights || role_ == 1) {
      arrive(empty);
    } else {
      const std::uint32_t of_peer = ptx::after_loads(ptx::mapa(address_of(empty), 1), loaded);
      if (thread_ % kLanes == 0) ptx::mbarrier_arrive_remote(of_peer, kLanes);
    }
  }

  FOVEAL_DEVICE void multiply(Sums& sums, const Fragments& factors,
                              const unsigned char* streamed) const {
    constexpr int kPieceBytes = kPiece / Shape::kHalf.panel_columns() * Shape::kHalf.panel_bytes();
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) ptx::hold_registers(sums[piece]);
    ptx::wgmma_fence();
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const PanelOperand<Shape::kHalf> right(ptx::shared_address(streamed) + piece * kPieceBytes,
                                             0);
#pragma unroll
      for (int i = 0; i < kTileRows / 16; ++i) {
        ptx::Wgmma<Element, kPiece>::multiply_registers(sums[piece], factors[i], right.rows(i), 1);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) ptx::hold_registers(sums[piece]);
  }

  /// Zeroes streamed rows that meet nothing: they may hold NaN, and 0 times NaN is NaN. Scores that
  /// are computed of them at the same time are hidden.
  FOVEAL_DEVICE void clear_unreadable(const unsigned char* streamed, int first) const {
    constexpr PanelLayout kHalf = Shape::kHalf;
    constexpr int kUnits = kHalf.row_bytes() / 16;
    const IntRange kept = smem_.work.readable;
    for (int unit = thread_; unit < kTileRows * kUnits; unit += kGroupThreads) {
      if (kept.contains(first + unit / kUnits)) continue;
#pragma unroll
      for (int panel = 0; panel < kHalf.panels(); ++panel) {
        ptx::store_shared_16(
            ptx::shared_address(streamed) + panel * kHalf.panel_bytes() + unit * 16, {0, 0, 0, 0});
      }
    }
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(kClearBarrier + index_, kGroupThreads);
  }

  SharedMemory& smem_;
  int role_;
  int index_;
  int thread_;
};

/// Where a block's half of a gradient goes.
struct GradientHalf {
  const cuda::bwd::OperandRows& rows;
  const cuda::bwd::GradientInfo& info;
  const cuda::bwd::HeldTile& tile;
  int column;
  float scale;
};

/// Lane t of four has word t of each of four units of 16 bytes; afterwards it has all of unit t.
FOVEAL_DEVICE uint4 exchange_in_quad(std::uint32_t (&words)[4]) {
  const bool odd = threadIdx.x % 2 != 0;
  const bool upper = threadIdx.x % 4 >= 2;
  // 2x2 blocks of words first, then the blocks.
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t got = __shfl_xor_sync(~0u, odd ? words[i] : words[i + 1], 1);
    if (odd) {
      words[i] = got;
    } else {
      words[i + 1] = got;
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t got = __shfl_xor_sync(~0u, upper ? words[i] : words[i + 2], 2);
    if (upper) {
      words[i] = got;
    } else {
      words[i + 2] = got;
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

/// One row of whole units of 16 bytes of the products' type. All lanes take part.
template <class Element, int kPieces, int kSums>
FOVEAL_DEVICE void store_units(const GradientHalf& to, bool stored, float scale, int half,
                               std::int64_t row, const float (&sums)[kPieces][kSums]) {
  auto* data = static_cast<Element*>(const_cast<void*>(to.rows.data)) + row;
#pragma unroll
  for (int j = 0; j < kPieces * kSums / 4; j += 4) {
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = &sums[4 * (j + i) / kSums][4 * (j + i) % kSums + 2 * half];
      words[i] = ptx::pack_pair<Element>(scale * pair[0], scale * pair[1]);
    }
    const uint4 unit = exchange_in_quad(words);
    const int column = to.column + 8 * j + 8 * (static_cast<int>(threadIdx.x) % 4);
    if (stored && column < to.rows.columns) *reinterpret_cast<uint4*>(data + column) = unit;
  }
}

/// Rows that are not used met nothing: their sums are 0.
template <class Shape, int kPieces, int kSums>
FOVEAL_DEVICE void store_gradient(const GradientHalf& to, const float (&sums)[kPieces][kSums]) {
  if (to.info.dtype == DType::kNone) return;
  const auto thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  const bool in_units = to.info.whole_units && to.info.dtype == Shape::kElementType;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int held = to.tile.first + thread / 32 * 16 + thread % 32 / 4 + 8 * half;
    const bool stored = to.tile.stored.contains(held);
    const float scale = to.tile.used.contains(held) ? to.scale : 0.0f;
    const std::int64_t row = to.rows.offset + held * to.rows.row_stride;
    if (in_units) {
      store_units<typename Shape::Element>(to, stored, scale, half, row, sums);
      continue;
    }
    if (!stored) continue;
#pragma unroll
    for (int j = 0; j < kPieces * kSums / 4; ++j) {
      const float* pair = &sums[4 * j / kSums][4 * j % kSums + 2 * half];
      const int column = to.column + 8 * j + 2 * (thread % 4);
      cuda::bwd::store_pair(const_cast<void*>(to.rows.data), to.info,
                            row + column * to.rows.dim_stride, to.rows.dim_stride,
                            to.rows.columns - column, scale * pair[0], scale * pair[1]);
    }
  }
}

}  // namespace foveal::cuda::hopper::wide_bwd
