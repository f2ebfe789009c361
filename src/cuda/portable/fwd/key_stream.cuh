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
  static constexpr int kChunks = Shape::kTile.chunks;
  static constexpr int kParts = 2 * kChunks;
  static constexpr int kStages = Shape::kTile.num_stages;
  /// A part has the same slot in every block.
  static constexpr bool kFixedSlots = kParts % kStages == 0;

  FOVEAL_DEVICE KeyStream(const TileState& tile, std::uint32_t slots)
      : tile_(tile), slots_(slots) {}

  /// Starts the loads that come before the first acquire. What the caller started before arrives
  /// with the first part.
  FOVEAL_DEVICE void start(std::int32_t n_block) {
#pragma unroll
    for (int part = 0; part < kStages - 1; ++part) load(n_block, part, part);
  }

  /// The address of a part in shared memory, once it has arrived. What was acquired before may no
  /// longer be read: its slot is filled again.
  FOVEAL_DEVICE std::uint32_t acquire(std::int32_t n_block, int part) {
    ptx::copy_async_wait<kStages - 2>();
    __syncthreads();
    const int slot = kFixedSlots ? part % kStages : slot_;
    load(n_block, part + kStages - 1, slot == 0 ? kStages - 1 : slot - 1);
    if (!kFixedSlots) slot_ = slot == kStages - 1 ? 0 : slot + 1;
    return slot_address(slot);
  }

 private:
  FOVEAL_DEVICE std::uint32_t slot_address(int slot) const {
    return slots_ + static_cast<std::uint32_t>(slot * Shape::kLayout.slot_bytes);
  }

  FOVEAL_DEVICE void load(std::int32_t n_block, int part, int slot) {
    constexpr int kThreads = Shape::kTile.num_threads();
    n_block += part / kParts;
    part %= kParts;
    if (n_block < tile_.n_max) {
      const std::int64_t key = static_cast<std::int64_t>(n_block) * Shape::kTile.n;
      if (part < kChunks) {
        copy_keys<Shape::kTile.n, kThreads>(typename Shape::KChunk{slot_address(slot)}, tile_.k,
                                            key, part * Shape::kTile.chunk_columns());
      } else {
        copy_keys<Shape::kTile.chunk_keys(), kThreads>(
            typename Shape::VChunk{slot_address(slot)}, tile_.v,
            key + (part - kChunks) * Shape::kTile.chunk_keys(), 0);
      }
    }
    ptx::copy_async_commit();
  }

  const TileState& tile_;
  std::uint32_t slots_;
  int slot_ = 0;
};

}  // namespace foveal::cuda::portable
