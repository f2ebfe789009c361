// Which tile comes next: the dealing warp finds it and tells the others.
#pragma once

#include <cstdint>

#include "algorithm/range.hpp"
#include "algorithm/seqlen_info.hpp"
#include "cuda/hopper/fwd/args.hpp"
#include "cuda/hopper/fwd/shared_memory.cuh"
#include "cuda/ptx/mbarrier.cuh"

namespace foveal::cuda::hopper {

using SequenceLengths = algorithm::BasicSeqlenInfo<std::int32_t>;

struct TilePlace {
  std::int32_t b;
  std::int32_t head;
  std::int32_t m_block;
};

/// Packed sequences: sections of heads; within one, tile row by tile row from the longest
/// sequence's last down, all sequences that have an m_block of that number, and the section's
/// heads. Tiles are asked for in rising order. All lanes of the dealing warp call it alike.
class PackedTiles {
 public:
  FOVEAL_DEVICE explicit PackedTiles(const ForwardArgs& args) : args_(args) {
    if (!args.schedule.packed) return;
    // No more than lengths in order can have, whatever cu_seqlens holds: heads follow from it.
    const std::int32_t most = args.schedule.num_tiles / args.attention.nheads_q;
    for (std::int32_t first = 0; first < args.attention.batch; first += 32) {
      blocks_of_head_ = min_of(blocks_of_head_ + __reduce_add_sync(~0u, blocks(first)), most);
    }
  }

  /// The tile that comes `index`-th, of total().
  FOVEAL_DEVICE TilePlace find(std::int32_t index) {
    const std::int32_t section = args_.schedule.section;
    const std::int32_t first_head = index / (blocks_of_head_ * section) * section;
    if (first_head != first_head_) begin_section(first_head);
    const std::int32_t width = min_of(section, args_.attention.nheads_q - first_head);
    const std::int32_t rest = index - first_head * blocks_of_head_;
    std::int32_t rank = rest / width;
    while (rank >= before_ + count_) {
      before_ += count_;
      count_ = count_of(--level_);
    }
    rank -= before_;
    TilePlace tile{.b = 0, .head = first_head + rest % width, .m_block = level_};
    for (std::int32_t first = 0;; first += 32) {
      const unsigned there = __ballot_sync(~0u, blocks(first) > level_);
      const int found = __popc(there);
      if (rank < found) {
        tile.b = first + static_cast<std::int32_t>(__fns(there, 0, rank + 1));
        return tile;
      }
      rank -= found;
    }
  }

  /// Of all sequences and heads.
  FOVEAL_DEVICE std::int32_t total() const { return blocks_of_head_ * args_.attention.nheads_q; }

 private:
  FOVEAL_DEVICE void begin_section(std::int32_t first_head) {
    first_head_ = first_head;
    std::int32_t most = 0;
    for (std::int32_t first = 0; first < args_.attention.batch; first += 32) {
      most = max_of<std::int32_t>(most, __reduce_max_sync(~0u, blocks(first)));
    }
    level_ = most - 1;
    before_ = 0;
    count_ = count_of(level_);
  }
  /// m_blocks of the lane's sequence among the 32 from `first` on.
  FOVEAL_DEVICE std::int32_t blocks(std::int32_t first) const {
    const std::int32_t b = first + static_cast<std::int32_t>(threadIdx.x) % 32;
    if (b >= args_.attention.batch) return 0;
    const auto& lengths = args_.attention.lengths;
    const auto total = static_cast<std::int32_t>(lengths.rows_q);
    const std::int32_t begin = clamp_to<std::int32_t>(lengths.cu_seqlens_q[b], 0, total);
    const std::int32_t end = clamp_to<std::int32_t>(lengths.cu_seqlens_q[b + 1], begin, total);
    return ceil_div(end - begin, args_.schedule.tile_m);
  }
  FOVEAL_DEVICE std::int32_t count_of(std::int32_t level) const {
    std::int32_t count = 0;
    for (std::int32_t first = 0; first < args_.attention.batch; first += 32) {
      count += __popc(__ballot_sync(~0u, blocks(first) > level));
    }
    return count;
  }

  const ForwardArgs& args_;
  std::int32_t blocks_of_head_ = 0;  ///< m_blocks of all sequences.
  std::int32_t first_head_ = -1;     ///< Of the section.
  std::int32_t level_ = 0;
  std::int32_t before_ = 0;  ///< Sequences of the levels above.
  std::int32_t count_ = 0;   ///< Sequences of this level.
};

/// Dense q: sections of (sequence, head) pairs; within one, tile row by tile row from the last.
FOVEAL_DEVICE TilePlace find_dense_tile(const ForwardArgs& args, std::int32_t index) {
  const ForwardSchedule& schedule = args.schedule;
  const auto heads = static_cast<std::uint32_t>(args.attention.nheads_q);
  const std::uint32_t pairs = heads * static_cast<std::uint32_t>(args.attention.batch);
  const auto m_blocks = static_cast<std::uint32_t>(schedule.m_blocks);
  const auto section = static_cast<std::uint32_t>(schedule.section);
  const std::uint32_t first_pair =
      static_cast<std::uint32_t>(index) / (section * m_blocks) * section;
  const std::uint32_t width = min_of(section, pairs - first_pair);
  const std::uint32_t rest = static_cast<std::uint32_t>(index) - first_pair * m_blocks;
  const std::uint32_t pair = first_pair + rest % width;
  return {static_cast<std::int32_t>(pair / heads), static_cast<std::int32_t>(pair % heads),
          static_cast<std::int32_t>(m_blocks - 1 - rest / width)};
}

/// Deals tiles to blocks, or to clusters of them: the first by the block's number, others to
/// whoever asks.
class TileDealer {
 public:
  FOVEAL_DEVICE explicit TileDealer(const ForwardArgs& args, std::int32_t cluster_size = 1)
      : args_(args),
        packed_(args),
        total_(args.schedule.num_tiles),
        number_(static_cast<std::int32_t>(blockIdx.x) / cluster_size),
        takers_(static_cast<std::int32_t>(gridDim.x) / cluster_size) {
    if (args.schedule.packed) total_ = packed_.total();
    // The counter holds anything when a launch begins. Block 0, which begins no later than others,
    // sets it to 0 with this launch's nonce; without the nonce nobody counts.
    if (args.begun != nullptr && total_ > 0 && blockIdx.x == 0 && threadIdx.x % 32 == 0) {
      atomicExch(args.begun, static_cast<unsigned long long>(args.nonce) << 32);
    }
  }

  FOVEAL_DEVICE bool next(TilePlace& tile) { return find(next_index(), tile); }

  /// False past the last tile. Indices are rising.
  FOVEAL_DEVICE bool find(std::int32_t index, TilePlace& tile) {
    if (index >= total_) return false;
    tile = args_.schedule.packed ? packed_.find(index) : find_dense_tile(args_, index);
    return true;
  }

  /// One past the last tile, or beyond, when there are no more.
  FOVEAL_DEVICE std::int32_t next_index() {
    if (first_) {
      first_ = false;
      return number_;
    }
    if (args_.begun == nullptr) return total_;
    std::int32_t index = 0;
    if (threadIdx.x % 32 == 0) index = ask();
    return __shfl_sync(~0u, index, 0);
  }

 private:
  /// Each block that had a tile is told once that there are no more; the last of them to be told
  /// clears the counter.
  FOVEAL_DEVICE std::int32_t ask() const {
    while (!is_mine(*static_cast<volatile unsigned long long*>(args_.begun))) {
    }
    const auto count = static_cast<std::uint32_t>(atomicAdd(args_.begun, 1));
    if (count + 1 == static_cast<std::uint32_t>(total_)) atomicExch(args_.begun, 0);
    return static_cast<std::int32_t>(count) + takers_;
  }

  FOVEAL_DEVICE bool is_mine(unsigned long long counter) const {
    return static_cast<std::uint32_t>(counter >> 32) == args_.nonce;
  }

  const ForwardArgs& args_;
  PackedTiles packed_;
  std::int32_t total_;
  std::int32_t number_;
  std::int32_t takers_;
  bool first_ = true;
};

/// The key blocks that some of the rows see, and those that all of them see wholly:
/// algorithm::n_block_range in 32 bits, for which the warp has registers.
template <class Shape, class Work>
FOVEAL_DEVICE void fill_key_blocks(const BasicMask<std::int32_t>& mask,
                                   algorithm::BasicRange<std::int32_t> rows, Work& work) {
  constexpr std::int32_t kKeys = Shape::kTile.n;
  const algorithm::BasicRange<std::int32_t> some = mask.keys_of_rows(rows);
  const algorithm::BasicRange<std::int32_t> every = mask.keys_of_every_row(rows);
  work.n_min = some.empty() ? 0 : some.min / kKeys;
  work.n_max = some.empty() ? 0 : ceil_div(some.max, kKeys);
  work.full_min = every.empty() ? work.n_max : max_of(work.n_min, ceil_div(every.min, kKeys));
  work.full_max = every.empty() ? work.n_max : min_of(work.n_max, every.max / kKeys);
}

/// One lane fills in a tile's work.
template <class Shape>
FOVEAL_DEVICE void fill_work(const ForwardArgs& args, const TilePlace& tile, WorkTile& work) {
  const SequenceLengths lengths =
      algorithm::basic_seqlen_info<std::int32_t>(args.attention.lengths, tile.b);
  work.b = tile.b;
  work.head = tile.head;
  work.q_begin = lengths.q_begin;
  work.k_begin = lengths.k_begin + lengths.leftpad_k;
  work.mask = {lengths.seqlen_q, lengths.seqlen_k, args.window};
  work.row_min = tile.m_block * Shape::kTile.m;
  work.row_max = min_of(work.row_min + Shape::kTile.m, lengths.capacity_q);
  const algorithm::BasicRange<std::int32_t> rows{work.row_min,
                                                 min_of(work.row_max, lengths.seqlen_q)};
  fill_key_blocks<Shape>(work.mask, rows, work);
}

}  // namespace foveal::cuda::hopper
