// Which tile a block holds and what streams past it.
#pragma once

#include <cstdint>

#include "algorithm/block_range.hpp"
#include "algorithm/mask.hpp"
#include "algorithm/range.hpp"
#include "algorithm/seqlen_info.hpp"
#include "core/host_device.hpp"
#include "cuda/portable/bwd/args.hpp"
#include "cuda/portable/bwd/operand_tile.cuh"
#include "cuda/ptx/copy_async_8.cuh"

namespace foveal::cuda::bwd {

using algorithm::Range;

FOVEAL_DEVICE IntRange to_ints(const Range& range) {
  return {static_cast<int>(range.min), static_cast<int>(range.max)};
}

/// One sequence.
struct Sequence {
  int b = 0;
  int q_begin = 0;  ///< Rows of q and of k where row 0 and key 0 are.
  int k_begin = 0;
  algorithm::Mask mask;

  /// Rows, and keys, that meet any of the other: nothing else is read.
  FOVEAL_DEVICE IntRange seeing_rows() const {
    return to_ints(mask.rows_of_keys({0, mask.seqlen_k}));
  }
  FOVEAL_DEVICE IntRange seen_keys() const {
    return to_ints(mask.keys_of_rows({0, mask.seqlen_q}));
  }
};

FOVEAL_DEVICE Sequence make_sequence(const BackwardArgs& args, int b,
                                     const algorithm::SeqlenInfo& lengths) {
  return {b,
          static_cast<int>(lengths.q_begin),
          static_cast<int>(lengths.k_begin + lengths.leftpad_k),
          {lengths.seqlen_q, lengths.seqlen_k, args.attention.score.window}};
}

/// The tile of block blockIdx.x: keys of a KV head, or rows of a query head.
struct HeldTile {
  Sequence sequence;
  int head = 0;
  int first = 0;      ///< Index of its first row; in left padding negative.
  IntRange stored;    ///< Indices that have a place in the gradient,
  IntRange used;      ///< that the mask knows,
  IntRange readable;  ///< and that meet anything.
  bool present = false;

  /// Streamed indices that meet held index `i`.
  template <Side kSide>
  FOVEAL_DEVICE IntRange visible(int i) const {
    if (!used.contains(i)) return {};
    return to_ints(kSide == Side::kKeys ? sequence.mask.rows_of_key(i)
                                        : sequence.mask.keys_of_row(i));
  }
};

/// Which tile a block has: sequence and place among the sequence's tiles; b is -1 for none.
template <Side kSide>
FOVEAL_DEVICE TileEntry scheduled_tile(const BackwardArgs& args, const TileSchedule& schedule) {
  const std::uint32_t index = blockIdx.x / static_cast<std::uint32_t>(schedule.heads);
  if (schedule.entries != nullptr) {
    if (index >= static_cast<std::uint32_t>(schedule.entries[0].b)) return {-1, 0};
    return schedule.entries[1 + index];
  }
  const auto batch = static_cast<std::uint32_t>(args.attention.batch);
  const auto block = static_cast<std::int32_t>(index / batch);
  return {static_cast<std::int32_t>(index % batch),
          kSide == Side::kRows ? schedule.blocks - 1 - block : block};
}

/// A tile by its entry in the schedule, whose b is not -1.
template <Side kSide, int kHeld>
FOVEAL_DEVICE HeldTile tile_of_entry(const BackwardArgs& args, const TileEntry& entry, int head) {
  HeldTile tile;
  tile.present = true;
  tile.head = head;
  const algorithm::SeqlenInfo lengths = algorithm::seqlen_info(args.attention.lengths, entry.b);
  tile.sequence = make_sequence(args, entry.b, lengths);
  if (kSide == Side::kKeys) {
    const auto pad = static_cast<int>(lengths.leftpad_k);
    tile.first = entry.block * kHeld - pad;
    tile.stored = {-pad, static_cast<int>(lengths.capacity_k) - pad};
    tile.used = {0, static_cast<int>(lengths.seqlen_k)};
    tile.readable = tile.sequence.seen_keys();
  } else {
    tile.first = entry.block * kHeld;
    tile.stored = {0, static_cast<int>(lengths.capacity_q)};
    tile.used = {0, static_cast<int>(lengths.seqlen_q)};
    tile.readable = tile.sequence.seeing_rows();
  }
  return tile;
}

/// Blocks start with the longest tiles, as far as a causal mask goes: keys from the first, rows
/// from the last. The heads of a tile come next to one another.
template <Side kSide, int kHeld>
FOVEAL_DEVICE HeldTile held_tile(const BackwardArgs& args) {
  const TileSchedule& schedule = kSide == Side::kKeys ? args.keys : args.rows;
  const TileEntry entry = scheduled_tile<kSide>(args, schedule);
  if (entry.b < 0) return {};
  const auto head = static_cast<int>(blockIdx.x % static_cast<std::uint32_t>(schedule.heads));
  return tile_of_entry<kSide, kHeld>(args, entry, head);
}

/// algorithm::BlockRange in 32 bits.
struct StreamedBlocks {
  IntRange visit;
  IntRange full;

  FOVEAL_DEVICE bool needs_mask(int block) const { return !full.contains(block); }
};

/// Streamed blocks of kStreamed that the tile meets, and which of them need no mask.
template <Side kSide, int kHeld, int kStreamed>
FOVEAL_DEVICE StreamedBlocks streamed_blocks(const HeldTile& tile) {
  const Range held =
      algorithm::intersect({tile.first, tile.first + kHeld}, {tile.used.min, tile.used.max});
  const algorithm::BlockRange blocks =
      kSide == Side::kKeys ? algorithm::m_block_range(tile.sequence.mask, held, kStreamed)
                           : algorithm::n_block_range(tile.sequence.mask, held, kStreamed);
  // Rows of the tile that are not used must not count either.
  return {to_ints(blocks.visit), held.size() == kHeld ? to_ints(blocks.full) : IntRange{}};
}

FOVEAL_DEVICE OperandRows query_rows(const RowOperand& operand, const ElementsInfo& info,
                                     int columns, const Sequence& sequence, int head) {
  return {operand.data,
          operand.strides.offset(sequence.b, sequence.q_begin, head),
          operand.strides.row,
          operand.strides.dim,
          columns,
          info};
}

FOVEAL_DEVICE OperandRows key_rows(const KeyOperand& operand, const ElementsInfo& info, int columns,
                                   const Sequence& sequence, int head_k) {
  const algorithm::KvLayout& layout = operand.layout;
  return {operand.data,
          sequence.b * layout.page_stride + head_k * layout.head_stride +
              sequence.k_begin * layout.row_stride,
          layout.row_stride,
          layout.dim_stride,
          columns,
          info};
}

/// A pair of operands: k and v, or q and dout.
struct OperandPair {
  OperandRows first;
  OperandRows second;
};
FOVEAL_DEVICE OperandPair keys_and_values(const BackwardArgs& args, const Sequence& sequence,
                                          int head_k) {
  const AttentionArgs& a = args.attention;
  return {key_rows(a.k, args.k_elements, a.headdim, sequence, head_k),
          key_rows(a.v, args.v_elements, a.headdim_v, sequence, head_k)};
}
FOVEAL_DEVICE OperandPair queries_and_dout(const BackwardArgs& args, const Sequence& sequence,
                                           int head) {
  const AttentionArgs& a = args.attention;
  return {query_rows(a.q, args.q_elements, a.headdim, sequence, head),
          query_rows(args.dout, args.dout_elements, a.headdim_v, sequence, head)};
}

/// Begins to copy a row's lse and delta to offset `to`. A row that meets nothing has lse +inf: its
/// weights are exp2(-inf) = 0.
FOVEAL_DEVICE void copy_stats(const float2* from, bool readable, int to) {
  if (readable) {
    ptx::copy_async_8(ptx::shared_address(block_memory) + to, from);
  } else {
    *memory_at<float2>(to) = {__int_as_float(0x7f800000), 0.0f};
  }
}

}  // namespace foveal::cuda::bwd
