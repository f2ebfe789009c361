// The loading warps ask the copy engine for q, k and v of tile after tile; k and v go through one
// ring of slots.
#pragma once

#include <cstdint>

#include "cuda/hopper/fwd/load.cuh"
#include "cuda/hopper/wide_fwd/shared_memory.cuh"

namespace foveal::cuda::hopper::wide_fwd {

/// The next tile is asked for when so many key blocks of this one are still to be loaded.
inline constexpr std::int32_t kDealAhead = 2;

template <class Shape>
class KeyLoader {
 public:
  static constexpr WideTile kTile = Shape::kTile;

  FOVEAL_DEVICE KeyLoader(const ForwardArgs& args, typename Shape::SharedMemory& smem, int lane)
      : args_(args), smem_(smem), lane_(lane), rank_(ptx::cluster_ctarank()) {}

  /// k of this block's half of the keys, a panel a slot; a lane has a box of each.
  FOVEAL_DEVICE void load_k(const WorkTile& work, std::int32_t n_block, std::int32_t head) {
    constexpr PanelLayout kLayout = Shape::kKLayout;
    const std::int32_t box_rows = min_of(args_.box_rows, kTile.keys());
    const std::int32_t key = n_block * kTile.n + rank_ * kTile.keys() + lane_ * box_rows;
    const KeyBox box = find_box(args_, work, key);
    const auto first = static_cast<std::uint32_t>(lane_ * box_rows * kLayout.row_bytes());
#pragma unroll 1
    for (int panel = 0; panel < kTile.k_slots(); ++panel) {
      begin_slot(kLayout.bytes());
      if (lane_ * box_rows < kTile.keys()) {
        ptx::tma_load_4d(address_of(smem_.ring[next_.slot]) + first, &args_.k,
                         address_of(smem_.full[next_.slot]), panel * 64, box.row, head, box.outer);
      }
      next_.advance();
    }
  }

  /// This block's half of v's columns: of its own half of the keys, then of the partner's. A lane
  /// knows where one box of keys lies; in a slot it copies one panel of one.
  FOVEAL_DEVICE void load_v(const WorkTile& work, std::int32_t n_block, std::int32_t head) {
    constexpr PanelLayout kLayout = Shape::kVLayout;
    const std::int32_t box_rows = min_of(args_.box_rows, kLayout.rows);
    const std::int32_t own_first = (lane_ * box_rows + rank_ * kTile.keys()) % kTile.n;
    const KeyBox mine = find_box(args_, work, n_block * kTile.n + own_first);
    const int boxes = kLayout.rows / box_rows;  // in a slot: 1 or 2
    const int panel = lane_ / boxes;
    const auto first = static_cast<std::uint32_t>(panel * kLayout.panel_bytes() +
                                                  lane_ % boxes * box_rows * kLayout.row_bytes());
    const std::int32_t column = rank_ * kTile.columns() + panel * kLayout.panel_columns();
#pragma unroll 1
    for (int slot = 0; slot < kTile.v_slots(); ++slot) {
      const int source = slot * boxes + lane_ % boxes;
      const KeyBox box{__shfl_sync(~0u, mine.row, source), __shfl_sync(~0u, mine.outer, source)};
      begin_slot(kLayout.bytes());
      if (panel < kLayout.panels()) {
        ptx::tma_load_4d(address_of(smem_.ring[next_.slot]) + first, &args_.v,
                         address_of(smem_.full[next_.slot]), column, box.row, head, box.outer);
      }
      next_.advance();
    }
  }

 private:
  /// Waits until the next slot is free and announces its bytes.
  FOVEAL_DEVICE void begin_slot(int bytes) {
    ptx::mbarrier_wait(address_of(smem_.empty[next_.slot]), next_.parity ^ 1);
    if (lane_ == 0) ptx::mbarrier_arrive_expect_tx(address_of(smem_.full[next_.slot]), bytes);
    __syncwarp();
  }

  const ForwardArgs& args_;
  typename Shape::SharedMemory& smem_;
  int lane_;
  std::int32_t rank_;
  RingWalk<Shape::kSlots> next_;
};

/// All lanes of the warp that loads keys call it. From each tile's last key block to its first: v
/// of a block after k of the next, which is needed before.
template <class Shape>
FOVEAL_DEVICE void load_keys(const ForwardArgs& args, typename Shape::SharedMemory& smem) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  KeyLoader<Shape> loader(args, smem, lane);
  RingPlace<kWorkSlots> at;
  for (;; at.advance()) {
    ptx::mbarrier_wait(address_of(smem.work_full[at.slot()]), at.parity());
    const WorkTile& work = smem.work[at.slot()];
    if (!work.found) return;
    const std::int32_t n_min = work.n_min;
    std::int32_t n_block = work.n_max - 1;
    const std::int32_t head_k = work.head / args.attention.qhead_per_khead;
    const auto want_next = [&] {
      if (lane == 0) ptx::mbarrier_arrive(address_of(smem.next_wanted));
    };
    if (n_block - n_min < kDealAhead) want_next();
    if (n_block >= n_min) {
      loader.load_k(work, n_block, head_k);
#pragma unroll 1
      while (--n_block >= n_min) {
        if (n_block - n_min + 1 == kDealAhead) want_next();
        loader.load_k(work, n_block, head_k);
        loader.load_v(work, n_block + 1, head_k);
      }
      loader.load_v(work, n_min, head_k);
    }
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(address_of(smem.work_empty[at.slot()]));
  }
}

/// One lane of the warp that loads queries has work: all rows of the tile, panel by panel.
template <class Shape>
FOVEAL_DEVICE void load_queries(const ForwardArgs& args, typename Shape::SharedMemory& smem) {
  constexpr PanelLayout kLayout = Shape::kQLayout;
  RingPlace<kWorkSlots> at;
  for (;; at.advance()) {
    ptx::mbarrier_wait(address_of(smem.work_full[at.slot()]), at.parity());
    const WorkTile& work = smem.work[at.slot()];
    if (!work.found) return;
    if (threadIdx.x % 32 == 0) {
      ptx::mbarrier_wait(address_of(smem.q_empty), at.count % 2 ^ 1);
      const std::int32_t sequence = args.schedule.packed ? 0 : work.b;
#pragma unroll 1
      for (int panel = 0; panel < kLayout.panels(); ++panel) {
        const std::uint32_t full = address_of(smem.q_full[panel]);
        ptx::mbarrier_arrive_expect_tx(full, kLayout.panel_bytes());
        ptx::tma_load_4d(address_of(smem.q) + panel * kLayout.panel_bytes(), &args.q, full,
                         panel * kLayout.panel_columns(), work.q_begin + work.row_min, work.head,
                         sequence);
      }
      ptx::mbarrier_arrive(address_of(smem.work_empty[at.slot()]));
    }
    __syncwarp();
  }
}

}  // namespace foveal::cuda::hopper::wide_fwd
