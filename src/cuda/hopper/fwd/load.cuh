// The loading warp asks the copy engine for q, k and v of tile after tile.
#pragma once

#include <cstdint>

#include "cuda/hopper/fwd/work.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"

namespace foveal::cuda::hopper {

/// Where the box that a lane asks for lies: its first row, and its sequence or page.
struct KeyBox {
  std::int32_t row;
  std::int32_t outer;
};

/// The box whose first key is `key`; one past the last key is past the last page, where there is
/// nothing, and arrives as 0.
FOVEAL_DEVICE KeyBox find_box(const ForwardArgs& args, const WorkTile& work, std::int32_t key) {
  const algorithm::KvLayout& layout = args.attention.k.layout;
  if (layout.block_table == nullptr) {
    const bool packed = args.attention.lengths.cu_seqlens_k != nullptr;
    return {work.k_begin + key,
            packed ? 0 : static_cast<std::int32_t>(args.attention.cache_row(work.b))};
  }
  const auto row = static_cast<std::uint32_t>(key);
  const auto page_size = static_cast<std::uint32_t>(layout.page_size);
  const auto pages = static_cast<std::int32_t>(layout.num_pages);
  if (row >= static_cast<std::uint32_t>(work.mask.seqlen_k)) return {0, pages};
  const std::int32_t* table = layout.block_table + work.b * layout.block_table_batch_stride;
  const std::int32_t page = table[row / page_size * layout.block_table_page_stride];
  return {static_cast<std::int32_t>(row % page_size), clamp_to<std::int32_t>(page, 0, pages - 1)};
}

/// Asks for a block of k or v once its slot is free; the warp's lanes have a box each.
template <class Shape>
FOVEAL_DEVICE void load_keys(const TensorMap& map, std::uint32_t to, std::uint32_t full,
                             std::uint32_t empty, std::uint32_t parity, const KeyBox& box,
                             std::int32_t box_rows, std::int32_t head_k, int lane) {
  constexpr PanelLayout kLayout = Shape::kKLayout;
  ptx::mbarrier_wait(empty, parity ^ 1);
  if (lane == 0) ptx::mbarrier_arrive_expect_tx(full, kLayout.bytes());
  __syncwarp();
  if (lane * box_rows >= kLayout.rows) return;
  to += static_cast<std::uint32_t>(lane * box_rows * kLayout.row_bytes());
#pragma unroll
  for (int panel = 0; panel < kLayout.panels(); ++panel) {
    ptx::tma_load_4d(to + panel * kLayout.panel_bytes(), &map, full,
                     panel * kLayout.panel_columns(), box.row, head_k, box.outer);
  }
}

/// A lane brings the rows of a consumer.
template <class Shape>
FOVEAL_DEVICE void load_queries(const ForwardArgs& args, typename Shape::SharedMemory& smem,
                                const RingPlace<kWorkSlots>& at, int lane) {
  constexpr PanelLayout kLayout = Shape::kQLayout;
  constexpr int kRowsBytes = kWarpgroupRows * kLayout.row_bytes();
  if (lane >= Shape::kConsumers) return;
  const std::uint32_t full = address_of(smem.q_full[lane]);
  ptx::mbarrier_wait(address_of(smem.q_empty[lane]), at.count % 2 ^ 1);
  ptx::mbarrier_arrive_expect_tx(full, kLayout.panels() * kRowsBytes);
  const WorkTile& work = smem.work[at.slot()];
  const std::uint32_t to = address_of(smem.q) + static_cast<std::uint32_t>(lane * kRowsBytes);
  const std::int32_t row = work.q_begin + smem.rows[at.slot()][lane].row_min;
  const std::int32_t sequence = args.schedule.packed ? 0 : work.b;
#pragma unroll
  for (int panel = 0; panel < kLayout.panels(); ++panel) {
    ptx::tma_load_4d(to + panel * kLayout.panel_bytes(), &args.q, full,
                     panel * kLayout.panel_columns(), row, work.head, sequence);
  }
}

/// The next tile is asked for when so many blocks of this one are still to be loaded: early enough
/// to be there when the last of them is.
inline constexpr std::int32_t kDealAhead = 3;

/// All lanes of the loading warp call it. From each tile's last key block to its first: v of a
/// block after k of the next, which is needed before.
template <class Shape>
FOVEAL_DEVICE void load(const ForwardArgs& args, typename Shape::SharedMemory& smem) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  RingPlace<kWorkSlots> at;
  RingPlace<Shape::kStages> place;  // of k and of v alike
  for (;; at.advance()) {
    ptx::mbarrier_wait(address_of(smem.work_full[at.slot()]), at.parity());
    const WorkTile& work = smem.work[at.slot()];
    if (!work.found) return;
    const std::int32_t n_min = work.n_min;
    std::int32_t n_block = work.n_max - 1;
    const auto want_next = [&] {
      if (lane == 0) ptx::mbarrier_arrive(address_of(smem.next_wanted));
    };
    if (n_block - n_min < kDealAhead) want_next();
    if (n_block < n_min) {
      load_queries<Shape>(args, smem, at, lane);
    } else {
      const std::int32_t head_k = work.head / args.attention.qhead_per_khead;
      const auto load_k = [&](const RingPlace<Shape::kStages>& to, const KeyBox& box) {
        load_keys<Shape>(args.k, address_of(smem.k[to.slot()]), address_of(smem.k_full[to.slot()]),
                         address_of(smem.k_empty[to.slot()]), to.parity(), box, args.box_rows,
                         head_k, lane);
      };
      const auto load_v = [&](const RingPlace<Shape::kStages>& to, const KeyBox& box) {
        load_keys<Shape>(args.v, address_of(smem.v[to.slot()]), address_of(smem.v_full[to.slot()]),
                         address_of(smem.v_empty[to.slot()]), to.parity(), box, args.box_rows,
                         head_k, lane);
      };
      KeyBox box = find_box(args, work, n_block * Shape::kTile.n + lane * args.box_rows);
      load_k(place, box);  // before q, whose place is free later
      load_queries<Shape>(args, smem, at, lane);
#pragma unroll 1
      while (--n_block >= n_min) {
        const RingPlace<Shape::kStages> before = place;
        place.advance();
        if (n_block - n_min + 1 == kDealAhead) want_next();
        const KeyBox next = find_box(args, work, n_block * Shape::kTile.n + lane * args.box_rows);
        load_k(place, next);
        load_v(before, box);
        box = next;
      }
      load_v(place, box);
      place.advance();
    }
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(address_of(smem.work_empty[at.slot()]));
  }
}

}  // namespace foveal::cuda::hopper
