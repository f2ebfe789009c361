// A warp's stream of key blocks through its own ring of shared memory, from k and v that are dense
// or lie in pages of whole blocks.
#pragma once

#include <cstdint>

#include "cuda/portable/decode/direct_args.hpp"
#include "cuda/portable/decode/ring.cuh"
#include "cuda/ptx/copy_async.cuh"

namespace foveal::cuda::decode {

/// Blocks of kBlockKeys keys are counted from key 0; a block's warps take them in turn.
template <class Element, int kHeaddim, bool kPaged>
class DirectStream {
 public:
  static constexpr int kRowBytes = kHeaddim * 2;
  static constexpr int kTileBytes = kBlockKeys * kRowBytes;
  static constexpr int kStageBytes = 2 * kTileBytes;

  /// The warp's blocks of `blocks`. Rows outside `keys` become zeros. `ring` is the
  /// warp's own shared memory.
  FOVEAL_DEVICE DirectStream(const DirectArgs& args, int b, int head_k, KeyRange keys,
                             KeyRange blocks, std::uint32_t ring)
      : num_pages_(args.pages.count),
        k_row_bytes_(args.k.row_stride * 16u),
        v_row_bytes_(args.v.row_stride * 16u),
        block_(blocks.min + warp()),
        block_max_(blocks.max),
        ring_(ring),
        ring_end_(ring + static_cast<std::uint32_t>(args.num_stages) * kStageBytes),
        load_slot_(ring),
        read_slot_(ring) {
    const int key = block_ * kBlockKeys + lane() / kLanesPerRow;
    past_first_ = static_cast<unsigned>(key - keys.min);
    num_keys_ = static_cast<unsigned>(keys.max - keys.min);
    if constexpr (kPaged) {
      pages_ = args.pages.table + b * args.pages.batch_stride;
      find_page(args);
    }
    // In pages, the lane's place in a block that begins a page.
    const int first_row = kPaged ? lane() / kLanesPerRow : key;
    k_ = address(args.k, kPaged ? 0 : b, head_k, static_cast<unsigned>(first_row));
    v_ = address(args.v, kPaged ? 0 : b, head_k, static_cast<unsigned>(first_row));
  }

  /// Starts copying the warp's next block, if there is one.
  FOVEAL_DEVICE void load_next(const DirectArgs& args) {
    if (block_ < block_max_) {
      std::uint64_t k_offset = 0;
      std::uint64_t v_offset = 0;
      if constexpr (kPaged) {
        const auto row = static_cast<unsigned>(args.pages.size.remainder(block_ * kBlockKeys));
        k_offset = page_offset(args.k, row, k_row_bytes_);
        v_offset = page_offset(args.v, row, v_row_bytes_);
      }
      copy_tile(load_slot_, k_ + k_offset, k_row_bytes_);
      copy_tile(load_slot_ + kTileBytes, v_ + v_offset, v_row_bytes_);
    }
    ptx::copy_async_commit();
    block_ += num_warps();
    const unsigned rows = static_cast<unsigned>(num_warps() * kBlockKeys);
    if constexpr (kPaged) {
      find_page(args);
    } else {
      k_ += static_cast<std::uint64_t>(k_row_bytes_) * rows;
      v_ += static_cast<std::uint64_t>(v_row_bytes_) * rows;
    }
    past_first_ += rows;
    advance(load_slot_);
  }

  /// Where the oldest block lies that was not released.
  FOVEAL_DEVICE std::uint32_t k_tile() const { return read_slot_; }
  FOVEAL_DEVICE std::uint32_t v_tile() const { return read_slot_ + kTileBytes; }
  FOVEAL_DEVICE void release() { advance(read_slot_); }

 private:
  static constexpr int kChunks = kHeaddim / 8;  ///< Of 16 bytes, a row.
  static constexpr int kLanesPerRow = kChunks < 32 ? kChunks : 32;
  static constexpr int kRowsPerStep = 32 / kLanesPerRow;

  static FOVEAL_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }
  static FOVEAL_DEVICE int warp() { return static_cast<int>(threadIdx.x / 32); }
  static FOVEAL_DEVICE int num_warps() { return static_cast<int>(blockDim.x / 32); }

  static FOVEAL_DEVICE const char* address(const DirectOperand& operand, int b, int head_k,
                                           unsigned row) {
    const std::uint64_t units =
        static_cast<std::uint64_t>(operand.batch_stride) * static_cast<unsigned>(b) +
        static_cast<std::uint64_t>(operand.head_stride) * static_cast<unsigned>(head_k) +
        static_cast<std::uint64_t>(operand.row_stride) * row +
        static_cast<unsigned>(lane() % kLanesPerRow);
    return static_cast<const char*>(operand.data) + units * 16;
  }

  /// Reads the page of the next block before its use, so that the table's latency is hidden.
  FOVEAL_DEVICE void find_page(const DirectArgs& args) {
    if (block_ >= block_max_) return;
    page_ = pages_[args.pages.size.quotient(block_ * kBlockKeys) * args.pages.page_stride];
  }

  /// Of row `row` of that page, in bytes.
  FOVEAL_DEVICE std::uint64_t page_offset(const DirectOperand& operand, unsigned row,
                                          std::uint32_t row_bytes) const {
    return 16 * static_cast<std::uint64_t>(operand.batch_stride) *
               static_cast<unsigned>(clamp_to(page_, 0, num_pages_ - 1)) +
           static_cast<std::uint64_t>(row_bytes) * row;
  }

  FOVEAL_DEVICE void copy_tile(std::uint32_t tile, const char* from,
                               std::uint32_t row_bytes) const {
    const int lane_row = lane() / kLanesPerRow;
    const int lane_chunk = lane() % kLanesPerRow;
#pragma unroll
    for (int step = 0; step < kBlockKeys / kRowsPerStep; ++step) {
      const bool valid = past_first_ + step * kRowsPerStep < num_keys_;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; chunk += kLanesPerRow) {
        ptx::copy_async_16(
            tile + swizzled<kRowBytes>(step * kRowsPerStep + lane_row, chunk + lane_chunk),
            from + chunk * 16, valid, policy_);
      }
      from += static_cast<std::uint64_t>(row_bytes) * kRowsPerStep;
    }
  }

  FOVEAL_DEVICE void advance(std::uint32_t& slot) const {
    slot += kStageBytes;
    if (slot == ring_end_) slot = ring_;
  }

  const char* k_;  ///< The lane's first 16 bytes of the next block; with pages, of page 0.
  const char* v_;
  const std::int32_t* pages_ = nullptr;  ///< The sequence's line of the table.
  std::int32_t page_ = 0;                ///< Of the next block.
  std::int32_t num_pages_;
  std::uint32_t k_row_bytes_;
  std::uint32_t v_row_bytes_;
  unsigned past_first_;  ///< The lane's first row of the next block, minus the first key.
  unsigned num_keys_;
  std::uint64_t policy_ = ptx::evict_first_policy();
  int block_;
  int block_max_;
  std::uint32_t ring_;
  std::uint32_t ring_end_;
  std::uint32_t load_slot_;
  std::uint32_t read_slot_;
};

}  // namespace foveal::cuda::decode
