// Which rows, head and keys a block has.
#pragma once

#include <cstdint>

#include "algorithm/block_range.hpp"
#include "algorithm/mask.hpp"
#include "algorithm/seqlen_info.hpp"
#include "cuda/portable/fwd/args.hpp"

namespace foveal::cuda::portable {

/// Packed row r of a sequence is query row r / group, head first_head + r % group.
struct ForwardWork {
  std::int32_t tile = 0;  ///< In [0, num_tiles): where partial results go.
  std::int32_t split = 0;
  std::int32_t b = 0;
  std::int32_t head_k = 0;
  std::int32_t first_head = 0;
  std::int32_t group = 1;
  algorithm::SeqlenInfo lengths;
  std::int32_t row_min = 0;  ///< Packed rows of the tile, those past seqused_q included.
  std::int32_t row_max = 0;
  std::int32_t used_rows = 0;  ///< Packed rows of the sequence that attend.

  FOVEAL_DEVICE std::int32_t query_row(std::int32_t r) const { return group == 1 ? r : r / group; }
  FOVEAL_DEVICE std::int32_t query_head(std::int32_t r) const {
    return group == 1 ? first_head : first_head + r % group;
  }
  FOVEAL_DEVICE std::int64_t offset(const RowStrides& strides, std::int32_t r) const {
    return strides.offset(b, lengths.q_begin + query_row(r), query_head(r));
  }
};

/// A tile of one sequence.
struct TileIndex {
  std::int32_t b = 0;
  std::int32_t m_block = 0;
};

/// Tile `index` of the packed sequences, counted from each sequence's last tile to its first; b is
/// `batch` past the end. All lanes of a warp call it alike.
FOVEAL_DEVICE TileIndex locate_packed_tile(const AttentionArgs& args,
                                           const ForwardSchedule& schedule, std::int32_t index) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (std::int32_t first = 0; first < args.batch; first += 32) {
    const std::int32_t b = first + lane;
    std::int32_t tiles = 0;
    if (b < args.batch) {
      // Below 2^31, as entry.cpp checks; a GPU divides 64-bit numbers slowly.
      const auto rows = static_cast<std::uint32_t>(
          algorithm::seqlen_info(args.lengths, b).capacity_q * schedule.group);
      tiles =
          static_cast<std::int32_t>(ceil_div(rows, static_cast<std::uint32_t>(schedule.tile_m)));
    }
    std::int32_t end = tiles;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const std::int32_t other = __shfl_up_sync(~0u, end, distance);
      if (lane >= distance) end += other;
    }
    const unsigned past = __ballot_sync(~0u, index < end);
    if (past != 0) {
      const int found = __ffs(static_cast<int>(past)) - 1;
      return {first + found, __shfl_sync(~0u, end, found) - 1 - index};
    }
    index -= __shfl_sync(~0u, end, 31);
  }
  return {args.batch, 0};
}

/// The work of block `index` of `num_splits` blocks a tile; false where there is none. All lanes of
/// a warp call it alike.
FOVEAL_DEVICE bool find_work(const AttentionArgs& args, const ForwardSchedule& schedule,
                             std::int32_t num_splits, std::int32_t index, ForwardWork& work) {
  std::int32_t head = 0;
  TileIndex tile;
  if (schedule.packed) {
    work.split = index % num_splits;
    const std::int32_t rest = index / num_splits;
    head = rest / schedule.m_blocks;
    const std::int32_t tile_index = rest % schedule.m_blocks;
    tile = locate_packed_tile(args, schedule, tile_index);
    if (tile.b == args.batch) return false;
    work.tile = head * schedule.m_blocks + tile_index;
  } else {
    const std::int32_t pairs = args.batch * schedule.heads;
    const std::int32_t blocks_a_pair = schedule.m_blocks * num_splits;
    const std::int32_t first_pair = index / (schedule.section * blocks_a_pair) * schedule.section;
    const std::int32_t width = min_of(schedule.section, pairs - first_pair);
    const std::int32_t rest = index - first_pair * blocks_a_pair;
    const std::int32_t pair = first_pair + rest % width;
    work.split = rest / width % num_splits;
    tile.m_block = schedule.m_blocks - 1 - rest / width / num_splits;
    tile.b = pair / schedule.heads;
    head = pair % schedule.heads;
    work.tile = pair * schedule.m_blocks + tile.m_block;
  }
  work.b = tile.b;
  work.group = schedule.group;
  work.first_head = head * schedule.group;
  work.head_k = work.first_head / args.qhead_per_khead;
  work.lengths = algorithm::seqlen_info(args.lengths, tile.b);
  work.row_min = tile.m_block * schedule.tile_m;
  work.row_max = min_of(work.row_min + schedule.tile_m,
                        static_cast<std::int32_t>(work.lengths.capacity_q) * schedule.group);
  work.used_rows = static_cast<std::int32_t>(work.lengths.seqlen_q) * schedule.group;
  return work.row_min < work.row_max;
}

}  // namespace foveal::cuda::portable
