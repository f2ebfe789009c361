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
inline constexpr int kSlotsOfV = Shape::kTile.v_slots();

/// A warp's part of what goes through the ring. A copy takes its warp some 120 clocks, so that one
/// warp alone could not keep up with the products: one has k, two have v. All lanes call each
/// function alike.
template <class Shape>
class RingLoader {
 public:
  static constexpr WideTile kTile = Shape::kTile;

  FOVEAL_DEVICE RingLoader(const ForwardArgs& args, typename Shape::SharedMemory& smem)
      : args_(args),
        smem_(smem),
        lane_(static_cast<int>(threadIdx.x % 32)),
        rank_(static_cast<std::int32_t>(ptx::cluster_ctarank())) {}

  /// Slots that other warps fill.
  FOVEAL_DEVICE void skip(int slots) {
    next_.slot += slots;
    while (next_.slot >= Shape::kSlots) {
      next_.slot -= Shape::kSlots;
      next_.parity ^= 1;
    }
  }

  /// k of this block's half of the keys, a panel a slot; a lane has a box of each.
  FOVEAL_DEVICE void load_k(const WorkTile& work, std::int32_t n_block, std::int32_t head) {
    constexpr PanelLayout kLayout = Shape::kKLayout;
    const std::int32_t box_rows = min_of(args_.box_rows, kTile.keys());
    const std::int32_t key = n_block * kTile.n + rank_ * kTile.keys() + lane_ * box_rows;
    const KeyBox box = find_box(args_, work, key);
    const auto first = static_cast<std::uint32_t>(lane_ * box_rows * kLayout.row_bytes());
#pragma unroll 1
    for (int panel = 0; panel < kTile.k_slots(); ++panel) {
      if (lane_ * box_rows < kTile.keys()) {
        begin_slot(kLayout.bytes());
        ptx::tma_load_4d(address_of(smem_.ring[next_.slot]) + first, &args_.k,
                         address_of(smem_.full[next_.slot]), panel * 64, box.row, head, box.outer);
      }
      next_.advance();
    }
  }

  /// This block's half of v's columns, of half of the keys: its own or its partner's. A lane knows
  /// where one box of keys lies; in a slot it copies one panel of one.
  FOVEAL_DEVICE void load_v(const WorkTile& work, std::int32_t n_block, std::int32_t head,
                            std::int32_t half) {
    constexpr PanelLayout kLayout = Shape::kVLayout;
    const std::int32_t box_rows = min_of(args_.box_rows, kLayout.rows);
    const std::int32_t key =
        n_block * kTile.n + half * kTile.keys() + lane_ * box_rows % kTile.keys();
    const KeyBox known = find_box(args_, work, key);
    const int boxes = kLayout.rows / box_rows;  // in a slot: 1 or 2
    const int panel = lane_ / boxes;
    const auto first = static_cast<std::uint32_t>(panel * kLayout.panel_bytes() +
                                                  lane_ % boxes * box_rows * kLayout.row_bytes());
    const std::int32_t column = rank_ * kTile.columns() + panel * kLayout.panel_columns();
#pragma unroll 1
    for (int slot = 0; slot < kTile.v_slots() / kClusterSize; ++slot) {
      const int source = slot * boxes + lane_ % boxes;
      const std::int32_t row = __shfl_sync(~0u, known.row, source);
      const std::int32_t outer = __shfl_sync(~0u, known.outer, source);
      if (panel < kLayout.panels()) {
        begin_slot(kLayout.bytes());
        ptx::tma_load_4d(address_of(smem_.ring[next_.slot]) + first, &args_.v,
                         address_of(smem_.full[next_.slot]), column, row, head, outer);
      }
      next_.advance();
    }
  }

 private:
  /// Waits until the next slot is free and announces its bytes; they may come before. Only lanes
  /// that copy something wait: without their bytes the slot does not go round, while another lane,
  /// were it slow, could find the round over.
  FOVEAL_DEVICE void begin_slot(int bytes) {
    ptx::mbarrier_wait(address_of(smem_.empty[next_.slot]), next_.parity ^ 1);
    if (lane_ == 0) ptx::mbarrier_arrive_expect_tx(address_of(smem_.full[next_.slot]), bytes);
  }

  const ForwardArgs& args_;
  typename Shape::SharedMemory& smem_;
  int lane_;
  std::int32_t rank_;
  RingWalk<Shape::kSlots> next_;
};

/// Calls load(work, tile's number) for tile after tile until there are no more.
template <class Shape, class Load>
FOVEAL_DEVICE void load_tiles(typename Shape::SharedMemory& smem, Load load) {
  RingPlace<kWorkSlots> at;
  for (;; at.advance()) {
    ptx::mbarrier_wait(address_of(smem.work_full[at.slot()]), at.parity());
    const WorkTile& work = smem.work[at.slot()];
    if (!work.found) return;
    load(work, at.count);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(address_of(smem.work_empty[at.slot()]));
  }
}

/// All rows of the tile, panel by panel; one lane calls it.
template <class Shape>
FOVEAL_DEVICE void load_queries(const ForwardArgs& args, typename Shape::SharedMemory& smem,
                                const WorkTile& work, std::uint32_t parity) {
  constexpr PanelLayout kLayout = Shape::kQLayout;
  ptx::mbarrier_wait(address_of(smem.q_empty), parity ^ 1);
  const std::int32_t sequence = args.schedule.packed ? 0 : work.b;
#pragma unroll 1
  for (int panel = 0; panel < kLayout.panels(); ++panel) {
    const std::uint32_t full = address_of(smem.q_full[panel]);
    ptx::mbarrier_arrive_expect_tx(full, kLayout.panel_bytes());
    ptx::tma_load_4d(address_of(smem.q) + panel * kLayout.panel_bytes(), &args.q, full,
                     panel * kLayout.panel_columns(), work.q_begin + work.row_min, work.head,
                     sequence);
  }
}

/// All lanes of the warp that loads q and k call it. In the ring, v of a block comes after k of the
/// next, which is needed before; from each tile's last key block to its first. A warp that waits
/// for a slot must know that the slot's last round but one is over, since barriers tell rounds by
/// their parity: it does when a slot since then was free, here or for the warp that it waited for.
template <class Shape>
FOVEAL_DEVICE void load_q_and_k(const ForwardArgs& args, typename Shape::SharedMemory& smem) {
  RingLoader<Shape> loader(args, smem);
  std::uint32_t issued = 0;
  std::uint32_t tiles_with_keys = 0;
  load_tiles<Shape>(smem, [&](const WorkTile& work, std::uint32_t tile) {
    const bool first_lane = threadIdx.x % 32 == 0;
    const std::int32_t n_min = work.n_min;
    const std::int32_t head_k = work.head / args.attention.qhead_per_khead;
    const bool any_keys = n_min < work.n_max;
    if (work.n_max - 1 - n_min < kDealAhead && first_lane) {
      ptx::mbarrier_arrive(address_of(smem.next_wanted));
    }
    // q's place is free before a slot is: its last scores come before the last products with v.
    if (first_lane) load_queries<Shape>(args, smem, work, tile % 2);
    __syncwarp();
    if (!any_keys) return;
#pragma unroll 1
    for (std::int32_t n_block = work.n_max - 1; n_block >= n_min; --n_block) {
      const std::int32_t left = n_block - n_min;
      if (left + 1 == kDealAhead && left + 1 < work.n_max - n_min && first_lane) {
        ptx::mbarrier_arrive(address_of(smem.next_wanted));
      }
      loader.load_k(work, n_block, head_k);
      __syncwarp();
      if (first_lane) ptx::mbarrier_arrive(address_of(smem.k_issued[issued % kIssuedBarriers]));
      ++issued;
      if (n_block + 1 < work.n_max) loader.skip(kSlotsOfV<Shape>);
    }
    loader.skip(kSlotsOfV<Shape>);
    ptx::mbarrier_wait(address_of(smem.v_issued), tiles_with_keys % 2);
    ++tiles_with_keys;
  });
}

/// All lanes of a warp that loads v call it: of the block's own half of the keys, `part` 0, or of
/// its partner's, 1.
template <class Shape>
FOVEAL_DEVICE void load_values(const ForwardArgs& args, typename Shape::SharedMemory& smem,
                               int part) {
  constexpr int kPartSlots = kSlotsOfV<Shape> / kClusterSize;
  const auto half = static_cast<std::int32_t>(ptx::cluster_ctarank()) ^ part;
  RingLoader<Shape> loader(args, smem);
  std::uint32_t known = 0;  // blocks of k known to be issued
  const auto pass_k = [&] {
    ptx::mbarrier_wait(address_of(smem.k_issued[known % kIssuedBarriers]),
                       known / kIssuedBarriers % 2);
    ++known;
    loader.skip(Shape::kTile.k_slots());
  };
  load_tiles<Shape>(smem, [&](const WorkTile& work, std::uint32_t) {
    const std::int32_t n_min = work.n_min;
    const std::int32_t head_k = work.head / args.attention.qhead_per_khead;
    if (work.n_max <= n_min) return;
    pass_k();
#pragma unroll 1
    for (std::int32_t n_block = work.n_max - 1; n_block >= n_min; --n_block) {
      if (n_block > n_min) pass_k();
      loader.skip(part * kPartSlots);
      loader.load_v(work, n_block, head_k, half);
      loader.skip((1 - part) * kPartSlots);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(address_of(smem.v_issued));
  });
}

}  // namespace foveal::cuda::hopper::wide_fwd
