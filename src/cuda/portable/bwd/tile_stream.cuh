// The order in which tiles stream past a held tile, and where each of them lies: described by one
// thread ahead of time, in shared memory, so that the others need neither divisions nor registers.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/portable/bwd/held_tile.cuh"
#include "cuda/portable/bwd/operand_tile.cuh"

namespace foveal::cuda::bwd {

/// A streamed tile. All blocks of one head come one after the other, then those of the next head of
/// the group.
struct StreamedTile {
  const void* first;    ///< Its row 0 of q or k,
  const void* second;   ///< of dout or v,
  const float2* stats;  ///< of lse and delta (keys' side),
  float* dq;            ///< and of dq's sums, or null.
  int head;             ///< KV head on the rows' side, query head on the keys'.
  int block;
  int row;      ///< Index of its row 0 in the sequence.
  bool masked;  ///< Not all of it meets all held rows.
  /// All rows are readable and whole units as wide as the tile: told once, by one thread.
  bool plain;
};

/// What a block does, in shared memory: read where it is needed, it takes no register in between.
struct BlockWork {
  HeldTile tile;
  StreamedBlocks blocks;
  IntRange streamed_readable;
  int steps;  ///< Streamed tiles.
  /// Of step s at s % 4. Written two steps ahead, read in the step before and in its own.
  StreamedTile streamed[4];
};
static_assert(sizeof(BlockWork) <= kBlockWorkBytes);

/// Writes BlockWork. K is the Kernel (kernel.cuh).
template <class K>
struct TileStream {
  using Element = typename K::Element;

  const BackwardArgs& args;
  BlockWork& work;

  /// The work on `held`, and its first two streamed tiles.
  FOVEAL_DEVICE void begin(const HeldTile& held) const {
    work.tile = held;
    work.blocks = streamed_blocks<K::kTile.side, K::kHeld, K::kStreamed>(held);
    work.streamed_readable = K::kKeysSide ? held.sequence.seeing_rows() : held.sequence.seen_keys();
    const int group = args.attention.qhead_per_khead;
    work.steps = (work.blocks.visit.max - work.blocks.visit.min) * (K::kKeysSide ? group : 1);
    if (work.steps <= 0) return;
    work.streamed[0] = first_of_head(K::kKeysSide ? held.head * group : held.head / group);
    describe_after(0);
  }

  /// What comes after the streamed tile of `step`.
  FOVEAL_DEVICE void describe_after(int step) const {
    StreamedTile at = work.streamed[step % 4];
    if (at.block + 1 == work.blocks.visit.max) {
      if (step + 1 < work.steps) work.streamed[(step + 1) % 4] = first_of_head(at.head + 1);
      return;
    }
    constexpr auto kTileBytes = static_cast<std::int64_t>(K::kStreamed * sizeof(Element));
    ++at.block;
    at.row += K::kStreamed;
    at.first = static_cast<const char*>(at.first) + kTileBytes * row_stride(0);
    at.second = static_cast<const char*>(at.second) + kTileBytes * row_stride(1);
    at.stats += K::kStreamed;
    if (at.dq != nullptr) at.dq += K::kStreamed * std::int64_t{args.dq_ld};
    complete(at);
    work.streamed[(step + 1) % 4] = at;
  }

  FOVEAL_DEVICE OperandPair operands(int head) const {
    return K::kKeysSide ? queries_and_dout(args, work.tile.sequence, head)
                        : keys_and_values(args, work.tile.sequence, head);
  }
  /// From row to row, in elements, of q (k) or dout (v).
  FOVEAL_DEVICE std::int64_t row_stride(int which) const {
    const AttentionArgs& a = args.attention;
    if (K::kKeysSide) return which == 0 ? a.q.strides.row : args.dout.strides.row;
    return which == 0 ? a.k.layout.row_stride : a.v.layout.row_stride;
  }

 private:
  FOVEAL_DEVICE StreamedTile first_of_head(int head) const {
    const Sequence& sequence = work.tile.sequence;
    StreamedTile at;
    at.head = head;
    at.block = work.blocks.visit.min;
    at.row = at.block * K::kStreamed;
    const OperandPair pair = operands(head);
    at.first = row_of<Element>(pair.first, at.row);
    at.second = row_of<Element>(pair.second, at.row);
    const std::int64_t row =
        head * args.total_q + args.row_index(sequence.b, sequence.q_begin) + at.row;
    at.stats = args.stats + row;
    at.dq = args.dq_sums == nullptr ? nullptr : args.dq_sums + row * args.dq_ld;
    complete(at);
    return at;
  }
  FOVEAL_DEVICE void complete(StreamedTile& at) const {
    const IntRange& readable = work.streamed_readable;
    at.masked = work.blocks.needs_mask(at.block);
    at.plain = at.row >= readable.min && at.row + K::kStreamed <= readable.max && rows_are_whole();
  }
  FOVEAL_DEVICE bool rows_are_whole() const {
    const AttentionArgs& a = args.attention;
    const bool in_units = K::kKeysSide
                              ? args.q_elements.whole_units && args.dout_elements.whole_units
                              : args.k_elements.whole_units && args.v_elements.whole_units;
    return in_units && a.headdim == K::kHeaddim && a.headdim_v == K::kHeaddim;
  }
};

}  // namespace foveal::cuda::bwd
