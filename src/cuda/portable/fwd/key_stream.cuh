// The chunks of k and v of a tile's key blocks, streamed through a ring of slots in shared memory.
#pragma once

#include <cstdint>

#include "cuda/portable/fwd/tile_config.hpp"
#include "cuda/portable/fwd/tile_state.cuh"
#include "cuda/ptx/copy_async.cuh"
#include "cuda/tile/copy_rows.cuh"
#include "cuda/tile/element.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace foveal::cuda::portable {

/// Sizes of one instance, by the names that its parts use.
template <class Config, DType kDType>
struct ForwardShape {
  static constexpr ForwardTile kTile = Config::tile;
  using Element = ElementOf<kDType>;
  static constexpr int kElementBytes = static_cast<int>(sizeof(Element));
  static constexpr ForwardLayout kLayout = kTile.layout(kElementBytes);
  static_assert(kTile.fits_products());
  static_assert(kTile.shares_rows() || kTile.chunks == 1,
                "weights in registers are indexed at compile time");
  static_assert(kElementBytes == 4 || kTile.chunk_keys() % 16 == 0, "16 keys a product");

  static constexpr int kRowTiles = kTile.rows_per_warp() / 16;
  static constexpr int kKeyTiles = kTile.keys_per_warp() / 8;
  static constexpr int kColumnTiles = kTile.columns_per_warp() / 8;
  using QTile = SharedTile<Element, kTile.d>;
  using KChunk = SharedTile<Element, kTile.chunk_columns()>;
  using VChunk = SharedTile<Element, kTile.d>;
  using PTile = SharedTile<Element, kTile.n>;
};

/// Part [0, chunks) of a block are k's chunks, [chunks, 2 chunks) are v's. acquire() is called for
/// each part of each block in order, by all threads.
template <class Shape>
class KeyStream {
 public:
  static constexpr ForwardTile kTile = Shape::kTile;
  static constexpr int kParts = 2 * kTile.chunks;
  static constexpr int kStages = kTile.num_stages;
  /// Parts that arrive together, and how many parts are under way while one is read.
  static constexpr int kTogether = kTile.whole_blocks ? 2 : 1;
  static constexpr int kAhead = kStages - kTogether;
  /// A part has the same slot in every block.
  static constexpr bool kFixedSlots = kParts % kStages == 0;

  FOVEAL_DEVICE KeyStream(const AttentionArgs& attention, const TileState& tile,
                          std::uint32_t slots)
      : attention_(attention), tile_(tile), slots_(slots) {}

  /// Starts the loads that come before the first acquire. What the caller started before arrives
  /// with the first part.
  FOVEAL_DEVICE void start(std::int32_t n_block) {
#pragma unroll
    for (int part = 0; part < kAhead; part += kTogether) load(n_block, part, part);
  }

  /// The address of a part in shared memory, once it has arrived. What was acquired before may no
  /// longer be read (with kTogether parts: of the blocks before): its slot is filled again.
  FOVEAL_DEVICE std::uint32_t acquire(std::int32_t n_block, int part) {
    if (part % kTogether == 0) {
      await();
      __syncthreads();
    }
    return take(n_block, part);
  }

  /// acquire() in two halves, for what the caller does before the barrier that all threads then
  /// come to: await(); a barrier; take().
  FOVEAL_DEVICE static void await() { ptx::copy_async_wait<kAhead / kTogether - 1>(); }
  FOVEAL_DEVICE std::uint32_t take(std::int32_t n_block, int part) {
    if (part % kTogether == 0) {
      if (!kFixedSlots) slot_ = next_;
      const int slot = kFixedSlots ? part % kStages : slot_;
      load(n_block, part + kAhead, slot < kTogether ? slot + kAhead : slot - kTogether);
      if (!kFixedSlots) next_ = slot + kTogether == kStages ? 0 : slot + kTogether;
    }
    return slot_address((kFixedSlots ? part % kStages : slot_ + part % kTogether));
  }

 private:
  FOVEAL_DEVICE std::uint32_t slot_address(int slot) const {
    return slots_ + static_cast<std::uint32_t>(slot * Shape::kLayout.slot_bytes);
  }

  /// Starts kTogether parts from `part` on, which may be one of a later block.
  FOVEAL_DEVICE void load(std::int32_t n_block, int part, int slot) {
    n_block += part / kParts;
    part %= kParts;
    if (n_block < tile_.n_max) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) load_part(n_block, part + i, slot_address(slot + i));
    }
    ptx::copy_async_commit();
  }

  FOVEAL_DEVICE void load_part(std::int32_t n_block, int part, std::uint32_t to) {
    constexpr int kThreads = kTile.num_threads();
    const std::int32_t key = n_block * kTile.n;
    if (part < kTile.chunks) {
      copy_keys<kTile.n, kThreads>(typename Shape::KChunk{to}, tile_.k,
                                   attention_.k.layout.row_stride, key,
                                   part * kTile.chunk_columns());
    } else {
      copy_keys<kTile.chunk_keys(), kThreads>(typename Shape::VChunk{to}, tile_.v,
                                              attention_.v.layout.row_stride,
                                              key + (part - kTile.chunks) * kTile.chunk_keys(), 0);
    }
  }

  const AttentionArgs& attention_;
  const TileState& tile_;
  std::uint32_t slots_;
  int slot_ = 0;
  int next_ = 0;
};

}  // namespace foveal::cuda::portable
