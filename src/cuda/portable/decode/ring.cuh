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
  FOVEAL_DEVICE KeyRing(const DecodeArgs& args, const Task& task, KeyRange visible,
                        std::uint32_t ring)
      : args_(args),
        ring_(ring),
        first_block_(task.sequence.first_block + task.block_min),
        num_blocks_(task.block_max - task.block_min),
        visible_min_(visible.min),
        visible_max_(visible.max),
        first_row_(task.sequence.lengths.k_begin + task.sequence.lengths.leftpad_k) {
    const AttentionArgs& attention = args.attention;
    const std::int64_t cache_row = attention.cache_row(task.b);
    const algorithm::KvLocator k =
        algorithm::kv_locator(attention.k.layout, task.b, cache_row, task.head_k, 0);
    const algorithm::KvLocator v =
        algorithm::kv_locator(attention.v.layout, task.b, cache_row, task.head_k, 0);
    k_base_ = k.base;
    v_base_ = v.base;
    pages_ = k.pages;
    // Then a block of keys lies in one piece, also where pages are small.
    in_one_piece_ =
        args.vectorised && attention.headdim == kHeaddim && attention.headdim_v == kHeaddim &&
        (pages_ == nullptr || (page_size() % kBlockKeys == 0 && first_row_ % kBlockKeys == 0));
    find_page(0);
  }

  /// Whether the warp has an i-th block.
  FOVEAL_DEVICE bool has(int i) const { return block(i) < num_blocks_; }

  /// Key of the i-th block's first row.
  FOVEAL_DEVICE int first_key(int i) const { return (first_block_ + block(i)) * kBlockKeys; }

  /// Starts copying the warp's i-th block, if there is one; called for i = 0, 1, 2, ...
  FOVEAL_DEVICE void load(int i) {
    if (has(i)) {
      const int key = first_key(i);
      if (in_one_piece_ && key >= visible_min_ && key + kBlockKeys <= visible_max_) {
        copy_block(k_tile(i), args_.attention.k, k_base_, key);
        copy_block(v_tile(i), args_.attention.v, v_base_, key);
      } else {
        load_rows(i);
      }
    }
    ptx::copy_async_commit();
    find_page(i + 1);
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
  FOVEAL_DEVICE unsigned page_size() const {
    return static_cast<unsigned>(args_.attention.k.layout.page_size);
  }

  /// Reads the page of the i-th block a block ahead of its use, so that the table's latency is
  /// hidden; for blocks that lie in one piece.
  FOVEAL_DEVICE void find_page(int i) {
    if (pages_ == nullptr || !in_one_piece_ || !has(i)) return;
    const algorithm::KvLayout& layout = args_.attention.k.layout;
    const unsigned row = static_cast<unsigned>(first_row_ + first_key(i));
    page_ = pages_[(row / page_size()) * layout.block_table_page_stride];
  }

  /// A whole block of keys that lie row_stride apart.
  FOVEAL_DEVICE void copy_block(std::uint32_t tile, const KeyOperand& operand, std::int64_t base,
                                int key) const {
    const algorithm::KvLayout& layout = operand.layout;
    std::int64_t row = first_row_ + key;
    if (pages_ != nullptr) {
      const std::int64_t page = clamp_to<std::int64_t>(page_, 0, layout.num_pages - 1);
      base += page * layout.page_stride;
      row = static_cast<unsigned>(row) % page_size();
    }
    constexpr int kLanesPerRow = kChunks < 32 ? kChunks : 32;
    constexpr int kRowsPerStep = 32 / kLanesPerRow;
    const int lane_row = lane() / kLanesPerRow;
    const int lane_chunk = lane() % kLanesPerRow;
    const Element* from = static_cast<const Element*>(operand.data) + base +
                          (row + lane_row) * layout.row_stride + lane_chunk * 8;
#pragma unroll
    for (int step = 0; step < kBlockKeys / kRowsPerStep; ++step) {
      const int tile_row = step * kRowsPerStep + lane_row;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; chunk += kLanesPerRow) {
        ptx::copy_async_16(tile + swizzled<kRowBytes>(tile_row, chunk + lane_chunk),
                           from + chunk * 8, true);
      }
      from += kRowsPerStep * layout.row_stride;
    }
  }

  /// Rows one by one: at the edges of what is visible, where pages are not whole blocks, where the
  /// tile's rows are longer than the operands', and where rows are not 16-byte vectors. Lanes 0 to
  /// 15 locate the block's rows of k, the others those of v.
  FOVEAL_DEVICE void load_rows(int i) const {
    const AttentionArgs& attention = args_.attention;
    const bool is_k = lane() < kBlockKeys;
    const int key = first_key(i) + lane() % kBlockKeys;
    const bool valid = key >= visible_min_ && key < visible_max_;
    std::int64_t offset = 0;
    if (valid) {
      // The page table is the same for k and v.
      offset = algorithm::kv_row_offset(
          attention.k.layout, pages_, is_k ? k_base_ : v_base_,
          is_k ? attention.k.layout.page_stride : attention.v.layout.page_stride,
          is_k ? attention.k.layout.row_stride : attention.v.layout.row_stride, first_row_ + key);
    }
    const unsigned valid_lanes = __ballot_sync(~0u, valid);
    if (args_.vectorised) {
      copy_rows(k_tile(i), attention.k, attention.headdim, offset, valid_lanes, 0);
      copy_rows(v_tile(i), attention.v, attention.headdim_v, offset, valid_lanes, kBlockKeys);
    } else {
      gather_rows(k_tile(i), attention.k, attention.headdim, offset, valid_lanes, 0);
      gather_rows(v_tile(i), attention.v, attention.headdim_v, offset, valid_lanes, kBlockKeys);
    }
  }

  FOVEAL_DEVICE void copy_rows(std::uint32_t tile, const KeyOperand& operand, int headdim,
                               std::int64_t lane_offset, unsigned valid_lanes,
                               int first_lane) const {
    const auto* base = static_cast<const Element*>(operand.data);
    static_assert(kBlockKeys * kChunks % 32 == 0, "every lane copies the same number of chunks");
#pragma unroll 2
    for (int step = 0; step < kBlockKeys * kChunks / 32; ++step) {
      const int index = step * 32 + lane();
      const int row = index / kChunks;
      const int chunk = index % kChunks;
      const std::int64_t offset = __shfl_sync(~0u, lane_offset, first_lane + row);
      const bool valid = (valid_lanes >> (first_lane + row) & 1) != 0 && chunk * 8 < headdim;
      ptx::copy_async_16(tile + swizzled<kRowBytes>(row, chunk),
                         base + (valid ? offset + chunk * 8 : 0), valid);
    }
  }

  FOVEAL_DEVICE void gather_rows(std::uint32_t tile, const KeyOperand& operand, int headdim,
                                 std::int64_t lane_offset, unsigned valid_lanes,
                                 int first_lane) const {
    const auto* base = static_cast<const Element*>(operand.data);
#pragma unroll 1
    for (int row = 0; row < kBlockKeys; ++row) {
      const std::int64_t offset = __shfl_sync(~0u, lane_offset, first_lane + row);
      const bool valid = (valid_lanes >> (first_lane + row) & 1) != 0;
      for (int d = lane(); d < kHeaddim; d += 32) {
        const Element value =
            valid && d < headdim ? base[offset + d * operand.layout.dim_stride] : Element(0.0f);
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
  int first_row_;
  bool in_one_piece_;
  std::int32_t page_ = 0;  ///< Of the next block, where it lies in one piece.
  const std::int32_t* pages_;
  std::int64_t k_base_;
  std::int64_t v_base_;
};

}  // namespace foveal::cuda::decode
