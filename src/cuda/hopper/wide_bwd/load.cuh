// The role of the producer: one thread asks the copy engine for the held tile and the halves of
// streamed ones.
#pragma once

#include <cstdint>

#include "cuda/hopper/wide_bwd/shared_memory.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/tma.cuh"

namespace foveal::cuda::hopper::wide_bwd {

/// A row of an operand, as its description counts them.
struct RowPlaceInMap {
  const TensorMap& map;
  int row;
  int head;
  int sequence;
};

/// Half of the columns of a tile.
template <class Shape>
FOVEAL_DEVICE void load_half(const RowPlaceInMap& from, int columns, std::uint32_t to,
                             std::uint32_t full) {
  constexpr PanelLayout kHalf = Shape::kHalf;
#pragma unroll
  for (int panel = 0; panel < kHalf.panels(); ++panel) {
    const std::uint32_t at = to + panel * kHalf.panel_bytes();
    const int column = columns * Shape::kTile.half() + panel * kHalf.panel_columns();
    ptx::tma_load_4d(at, &from.map, full, column, from.row, from.head, from.sequence);
  }
}

/// Half kHalf of a step's tiles.
template <class Shape, int kRole, int kHalf>
FOVEAL_DEVICE void load_streamed(const WideArgs& args, typename Shape::SharedMemory& smem, int step,
                                 const StreamedTiles& tiles) {
  constexpr bool kKeys = Shape::kSide == Side::kKeys;
  if constexpr (Shape::halves().has(kRole, kHalf)) {
    const HalfPlace at = Shape::halves().place(kHalf, step);
    const std::uint32_t full = address_of(smem.streamed_full[at.stage]);
    const std::uint32_t freed = at.parity ^ (Shape::halves().is_held_first(at.stage) ? 0 : 1);
    ptx::mbarrier_wait(address_of(smem.streamed_empty[at.stage]), freed);
    ptx::mbarrier_arrive_expect_tx(full, Shape::kHalf.bytes());
    constexpr bool kFirst = is_first(kRole, kHalf);
    const TensorMap& map = kKeys ? (kFirst ? args.q : args.dout) : (kFirst ? args.k : args.v);
    const auto& sequence = smem.work.tile.sequence;
    const auto& lengths = args.backward.attention.lengths;
    const bool packed = (kKeys ? lengths.cu_seqlens_q : lengths.cu_seqlens_k) != nullptr;
    load_half<Shape>({map, (kKeys ? sequence.q_begin : sequence.k_begin) + tiles.first(),
                      tiles.head, packed ? 0 : sequence.b},
                     columns_of(kRole, kHalf), ptx::shared_address(smem.streamed(at.stage)), full);
  }
}

/// One thread calls it.
template <class Shape, int kRole>
FOVEAL_DEVICE void load_operands(const WideArgs& args, typename Shape::SharedMemory& smem) {
  constexpr bool kKeys = Shape::kSide == Side::kKeys;
  const TileWork& work = smem.work;
  const auto& sequence = work.tile.sequence;
  const auto& lengths = args.backward.attention.lengths;
  const bool packed = (kKeys ? lengths.cu_seqlens_k : lengths.cu_seqlens_q) != nullptr;
  const RowPlaceInMap held{
      kKeys ? (kRole == 0 ? args.k : args.v) : (kRole == 0 ? args.q : args.dout),
      (kKeys ? sequence.k_begin : sequence.q_begin) + work.tile.first, work.tile.head,
      packed ? 0 : sequence.b};
  const std::uint32_t held_full = address_of(smem.held_full);
  ptx::mbarrier_arrive_expect_tx(held_full, 2 * Shape::kHalf.bytes());
  load_half<Shape>(held, kRole, ptx::shared_address(smem.held_own()), held_full);
  load_half<Shape>(held, 1 - kRole, ptx::shared_address(smem.held_other()), held_full);
  StreamedTiles tiles(work);
#pragma unroll 1
  for (int step = 0; step < work.steps; ++step, tiles.advance(work)) {
    load_streamed<Shape, kRole, kOwnHalf>(args, smem, step, tiles);
    load_streamed<Shape, kRole, early_half(kRole)>(args, smem, step, tiles);
    load_streamed<Shape, kRole, late_half(kRole)>(args, smem, step, tiles);
  }
}

}  // namespace foveal::cuda::hopper::wide_bwd
