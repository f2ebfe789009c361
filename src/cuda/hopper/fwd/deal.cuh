// The dealing warp tells the others of tile after tile.
#pragma once

#include <cstdint>

#include "cuda/hopper/fwd/work.cuh"

namespace foveal::cuda::hopper {

/// The first row of a tile's consumer. Spread: the sequence has a part for each consumer, and every
/// other is gone through backwards.
template <class Shape>
FOVEAL_DEVICE std::int32_t first_row_of(const ForwardSchedule& schedule, std::int32_t m_block,
                                        int group) {
  if (!schedule.spread) return m_block * Shape::kTile.m + group * kWarpgroupRows;
  const std::int32_t place = group % 2 != 0 ? m_block : schedule.m_blocks - 1 - m_block;
  return (group * schedule.m_blocks + place) * kWarpgroupRows;
}

/// The dealing warp: publishes tile after tile, each when the loading warp wants it, and in the end
/// that there are no more. Asked for earlier, a tile would wait behind a long one while other
/// blocks have nothing to do. All lanes call each function.
template <class Shape>
class Dealer {
 public:
  using SharedMemory = typename Shape::SharedMemory;

  /// Fills in the first tile, which is published later: the barriers may not be there yet.
  FOVEAL_DEVICE Dealer(const ForwardArgs& args, SharedMemory& smem)
      : args_(args), smem_(smem), tiles_(args) {
    find(0);
  }

  FOVEAL_DEVICE void deal() {
    RingPlace<kWorkSlots> at;
    for (;;) {
      // Each lane that fills in something.
      if (threadIdx.x % 32 < Shape::kConsumers) {
        ptx::mbarrier_arrive(address_of(smem_.work_full[at.slot()]));
      }
      if (!found_) return;
      ptx::mbarrier_wait(address_of(smem_.next_wanted), at.count % 2);
      at.advance();
      ptx::mbarrier_wait(address_of(smem_.work_empty[at.slot()]), at.parity() ^ 1);
      find(at.slot());
    }
  }

 private:
  FOVEAL_DEVICE void find(int slot) {
    TilePlace tile;
    found_ = tiles_.next(tile);
    if (threadIdx.x % 32 == 0) smem_.work[slot].found = found_;
    if (found_) fill_in(tile, smem_.work[slot], smem_.rows[slot]);
    __syncwarp();
  }

  /// One lane fills in what is common, and each of the first the rows of a consumer.
  FOVEAL_DEVICE void fill_in(const TilePlace& tile, WorkTile& work,
                             WorkRows (&all_rows)[Shape::kConsumers]) const {
    const auto lane = static_cast<int>(threadIdx.x % 32);
    const SequenceLengths lengths =
        algorithm::basic_seqlen_info<std::int32_t>(args_.attention.lengths, tile.b);
    const BasicMask<std::int32_t> mask{lengths.seqlen_q, lengths.seqlen_k, args_.window};
    if (lane == 0) {
      work.b = tile.b;
      work.head = tile.head;
      work.q_begin = lengths.q_begin;
      work.k_begin = lengths.k_begin + lengths.leftpad_k;
      work.mask = mask;
    }
    // Lanes past the last consumer's repeat its rows, for the extremes below.
    const int group = min_of(lane, Shape::kConsumers - 1);
    WorkRows rows;
    rows.row_min = first_row_of<Shape>(args_.schedule, tile.m_block, group);
    rows.row_max = min_of(rows.row_min + kWarpgroupRows, lengths.capacity_q);
    fill_key_blocks<Shape>(mask, {rows.row_min, min_of(rows.row_max, lengths.seqlen_q)}, rows);
    if (lane < Shape::kConsumers) all_rows[lane] = rows;
    const std::int32_t n_max = __reduce_max_sync(~0u, rows.n_max);
    const std::int32_t n_min = __reduce_min_sync(~0u, rows.n_min < rows.n_max ? rows.n_min : n_max);
    if (lane == 0) {
      work.n_min = n_min;
      work.n_max = n_max;
    }
  }

  const ForwardArgs& args_;
  SharedMemory& smem_;
  TileDealer tiles_;
  bool found_ = false;
};

}  // namespace foveal::cuda::hopper
