// A warp's ring of K and V blocks in shared memory: copies that need no barrier of the block.
#pragma once

#include <cstdint>

#include "algorithm/kv_locator.hpp"
#include "cuda/portable/decode/args.hpp"
#include "cuda/portable/decode/work.cuh"
#include "cuda/ptx/copy_async.cuh"

namespace foveal::cuda::decode {

/// Byte offset of a 16-byte chunk of a row in a tile whose rows have kRowBytes: the chunk's low
/// three bits are mixed with the row's, so that ldmatrix finds eight rows in eight different banks.
template <int kRowBytes>
FOVEAL_DEVICE std::uint32_t swizzled(int row, int chunk) {
  return static_cast<std::uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) * 16));
}

/// Waits until at most `pending` groups of the thread's copies are under way.
FOVEAL_DEVICE void wait_for_copies(int pending) {
  switch (pending) {
    case 0: return ptx::copy_async_wait<0>();
    case 1: return ptx::copy_async_wait<1>();
    case 2: return ptx::copy_async_wait<2>();
    default: return ptx::copy_async_wait<3>();
  }
}

template <class Element, int kHeaddim>
class KeyRing {
 public:
  static constexpr int kRowBytes = kHeaddim * 2;
  static constexpr int kTileBytes = kBlockKeys * kRowBytes;

  /// Over the task's keys that rows of its tile see, `visible`. `ring` is the warp's own shared
  /// memory.
  FOVEAL_DEVICE KeyRing(const DecodeArgs& args, const Task& task, algorithm::Range visible,
                        std::uint32_t ring)
      : args_(args),
        ring_(ring),
        first_block_(task.sequence.first_block + task.block_min),
        num_blocks_(task.block_max - task.block_min),
        visible_min_(static_cast<int>(visible.min)),
        visible_max_(static_cast<int>(visible.max)) {
    // Lanes 0 to 15 locate the block's rows of k, the others those of v.
    const AttentionArgs& attention = args.attention;
    const bool is_k = lane() < kBlockKeys;
    const algorithm::KvLayout& k = attention.k.layout;
    const algorithm::KvLayout& v = attention.v.layout;
    const std::int64_t cache_row = attention.cache_row(task.b);
    const algorithm::KvLocator k_rows =
        algorithm::kv_locator(k, task.b, cache_row, task.head_k, 0);
    const algorithm::KvLocator v_rows =
        algorithm::kv_locator(v, task.b, cache_row, task.head_k, 0);
    base_ = is_k ? k_rows.base : v_rows.base;
    page_stride_ = is_k ? k.page_stride : v.page_stride;
    row_stride_ = is_k ? k.row_stride : v.row_stride;
    pages_ = k_rows.pages;
    first_row_ = static_cast<int>(task.sequence.lengths.k_begin + task.sequence.lengths.leftpad_k);
    locate(0);
  }

  /// Whether the warp has an i-th block.
  FOVEAL_DEVICE bool has(int i) const { return block(i) < num_blocks_; }

  /// Key of the i-th block's first row.
  FOVEAL_DEVICE int first_key(int i) const { return (first_block_ + block(i)) * kBlockKeys; }

  /// Starts copying the warp's i-th block, if there is one; called for i = 0, 1, 2, ...
  FOVEAL_DEVICE void load(int i) {
    if (has(i)) {
      const std::uint32_t tile = k_tile(i);
      if (args_.vectorised) {
        copy_rows(tile, args_.attention.k.data, args_.attention.headdim, 0);
        copy_rows(tile + kTileBytes, args_.attention.v.data, args_.attention.headdim_v, kBlockKeys);
      } else {
        gather_rows(tile, args_.attention.k.data, args_.attention.headdim, 0,
                    args_.attention.k.layout.dim_stride);
        gather_rows(tile + kTileBytes, args_.attention.v.data, args_.attention.headdim_v,
                    kBlockKeys, args_.attention.v.layout.dim_stride);
      }
    }
    ptx::copy_async_commit();
    locate(i + 1);
  }

  FOVEAL_DEVICE std::uint32_t k_tile(int i) const {
    return ring_ + static_cast<std::uint32_t>((i % args_.num_stages) * 2 * kTileBytes);
  }
  FOVEAL_DEVICE std::uint32_t v_tile(int i) const { return k_tile(i) + kTileBytes; }

 private:
  static constexpr int kChunks = kHeaddim / 8;  ///< Of 16 bytes, a row.

  static FOVEAL_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }
  static FOVEAL_DEVICE int warp() { return static_cast<int>(threadIdx.x / 32); }
  FOVEAL_DEVICE int block(int i) const { return i * static_cast<int>(blockDim.x / 32) + warp(); }

  /// Finds the rows of the i-th block a block ahead of their use, so that a page table's latency
  /// is hidden.
  FOVEAL_DEVICE void locate(int i) {
    const int key = first_key(i) + lane() % kBlockKeys;
    const bool valid = has(i) && key >= visible_min_ && key < visible_max_;
    // The page table is the same for k and v.
    offset_ = valid ? algorithm::kv_row_offset(args_.attention.k.layout, pages_, base_,
                                               page_stride_, row_stride_, first_row_ + key)
                    : 0;
    valid_rows_ = __ballot_sync(~0u, valid);
  }

  FOVEAL_DEVICE void copy_rows(std::uint32_t tile, const void* data, int headdim,
                               int first_lane) const {
    const auto* base = static_cast<const Element*>(data);
    static_assert(kBlockKeys * kChunks % 32 == 0, "every lane copies the same number of chunks");
#pragma unroll 4  // 8 would take the registers of a second block an SM
    for (int step = 0; step < kBlockKeys * kChunks / 32; ++step) {
      const int index = step * 32 + lane();
      const int row = index / kChunks;
      const int chunk = index % kChunks;
      const std::int64_t offset = __shfl_sync(~0u, offset_, first_lane + row);
      const bool valid = (valid_rows_ >> (first_lane + row) & 1) != 0 && chunk * 8 < headdim;
      ptx::copy_async_16(tile + swizzled<kRowBytes>(row, chunk),
                         base + (valid ? offset + chunk * 8 : 0), valid);
    }
  }

  /// For rows that can't be copied 16 bytes at a time.
  FOVEAL_DEVICE void gather_rows(std::uint32_t tile, const void* data, int headdim, int first_lane,
                                 std::int64_t dim_stride) const {
    const auto* base = static_cast<const Element*>(data);
#pragma unroll 1
    for (int row = 0; row < kBlockKeys; ++row) {
      const std::int64_t offset = __shfl_sync(~0u, offset_, first_lane + row);
      const bool valid = (valid_rows_ >> (first_lane + row) & 1) != 0;
      for (int d = lane(); d < kHeaddim; d += 32) {
        const Element value =
            valid && d < headdim ? base[offset + d * dim_stride] : Element(0.0f);
        ptx::store_shared(tile + swizzled<kRowBytes>(row, d / 8) + (d % 8) * 2, value);
      }
    }
  }

  const DecodeArgs& args_;
  std::uint32_t ring_;
  int first_block_;
  int num_blocks_;
  int visible_min_;
  int visible_max_;
  std::int64_t base_;
  std::int64_t page_stride_;
  std::int64_t row_stride_;
  const std::int32_t* pages_;
  int first_row_;
  std::int64_t offset_ = 0;       ///< The lane's row, in elements.
  std::uint32_t valid_rows_ = 0;  ///< A bit a lane: its row is to be read.
};

}  // namespace foveal::cuda::decode
