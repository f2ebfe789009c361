// The tiles that portable_fwd is compiled for, and what each takes of a multiprocessor.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "core/integer.hpp"
#include "cuda/tile/shared_tile.cuh"

namespace foveal::cuda::portable {

/// Shared memory of a block that every GPU from sm_86 on has: 99 KiB.
inline constexpr int kSmallSharedBytes = 99 << 10;
/// The most that any GPU has: sm_90 and sm_100; sm_80 has 163 KiB.
inline constexpr int kLargeSharedBytes = 227 << 10;

/// Room for TileState (tile_state.cuh).
inline constexpr int kTileStateBytes = 512;

/// Where a part of shared memory begins, in bytes from the start of a block's own.
struct ForwardLayout {
  int q = 0;      ///< (m, d)
  int slots = 0;  ///< num_stages times slot_bytes: chunks of k and v in turn
  int p = 0;      ///< (m, n): weights, where warps share rows
  int stats = 0;  ///< (column_groups, m) floats: each group's maxima, in the end its sums
  int state = 0;  ///< TileState: what the whole block knows of its tile
  int slot_bytes = 0;
  int bytes = 0;
};

/// Warps form a grid of row_groups x column_groups. A warp computes the scores of its rows and of
/// its share of the keys; where rows are shared, weights pass through shared memory, and each warp
/// accumulates its share of the columns of out for all keys.
///
/// k arrives in `chunks` pieces of d / chunks columns, then v in as many of n / chunks keys.
struct ForwardTile {
  int d = 0;  ///< headdim and headdim_v, padded
  int m = 0;  ///< packed query rows
  int n = 0;  ///< keys
  int num_warps = 0;
  int column_groups = 1;
  int chunks = 1;
  int num_stages = 2;
  /// k and v of a block arrive together, a block ahead: one barrier a block, twice the memory.
  bool whole_blocks = false;
  int min_blocks = 1;  ///< blocks that a multiprocessor is to hold: bounds the registers
  /// Only for GPUs whose multiprocessors have the memory for min_blocks.
  bool needs_min_blocks = false;
  /// Leaves out softcap, ALiBi, bias and dropout, whose registers would be one too many.
  bool plain = false;

  FOVEAL_HOST_DEVICE constexpr int num_threads() const { return 32 * num_warps; }
  FOVEAL_HOST_DEVICE constexpr int row_groups() const { return num_warps / column_groups; }
  FOVEAL_HOST_DEVICE constexpr int rows_per_warp() const { return m / row_groups(); }
  FOVEAL_HOST_DEVICE constexpr int keys_per_warp() const { return n / column_groups; }
  FOVEAL_HOST_DEVICE constexpr int columns_per_warp() const { return d / column_groups; }
  FOVEAL_HOST_DEVICE constexpr int chunk_columns() const { return d / chunks; }
  FOVEAL_HOST_DEVICE constexpr int chunk_keys() const { return n / chunks; }
  FOVEAL_HOST_DEVICE constexpr bool shares_rows() const { return column_groups > 1; }

  FOVEAL_HOST_DEVICE constexpr ForwardLayout layout(int element_bytes) const {
    ForwardLayout layout;
    layout.slot_bytes = max_of(tile_bytes(n, chunk_columns(), element_bytes),
                               tile_bytes(chunk_keys(), d, element_bytes));
    layout.slots = layout.q + tile_bytes(m, d, element_bytes);
    layout.p = layout.slots + num_stages * layout.slot_bytes;
    layout.stats = layout.p + (shares_rows() ? tile_bytes(m, n, element_bytes) : 0);
    layout.state = layout.stats + (shares_rows() ? 4 * column_groups * m : 0);
    layout.bytes = layout.state + kTileStateBytes;
    return layout;
  }

  /// Whether the pieces fit mma's shapes: 16 rows, 16 keys (8 floats) and 16 columns at a time.
  FOVEAL_HOST_DEVICE constexpr bool fits_products() const {
    return row_groups() * column_groups == num_warps && m % (16 * row_groups()) == 0 &&
           n % (16 * column_groups) == 0 && d % (16 * column_groups) == 0 &&
           d % (32 * chunks) == 0 && n % (8 * chunks) == 0 && n % 32 == 0 && num_stages >= 2 &&
           (!whole_blocks || (chunks == 1 && num_stages == 4));
  }
  bool operator==(const ForwardTile&) const = default;
};

// fp16 and bf16. Up to 128 columns a warp keeps 32 rows of scores and of out: fewer rows would read
// k and v from shared memory more often than its bandwidth allows. That leaves no registers for the
// score terms, which have two tiles of their own.
struct ForwardHdim32Plain {
  static constexpr ForwardTile tile{.d = 32,
                                    .m = 128,
                                    .n = 128,
                                    .num_warps = 4,
                                    .num_stages = 4,
                                    .whole_blocks = true,
                                    .min_blocks = 2,
                                    .plain = true};
};
struct ForwardHdim64Plain {
  static constexpr ForwardTile tile{.d = 64,
                                    .m = 128,
                                    .n = 128,
                                    .num_warps = 4,
                                    .num_stages = 4,
                                    .whole_blocks = true,
                                    .min_blocks = 2,
                                    .plain = true};
};
struct ForwardHdim96Plain {
  static constexpr ForwardTile tile{.d = 96,
                                    .m = 128,
                                    .n = 64,
                                    .num_warps = 4,
                                    .num_stages = 4,
                                    .whole_blocks = true,
                                    .min_blocks = 2,
                                    .plain = true};
};
struct ForwardHdim128Plain {
  static constexpr ForwardTile tile{.d = 128,
                                    .m = 128,
                                    .n = 64,
                                    .num_warps = 4,
                                    .num_stages = 4,
                                    .whole_blocks = true,
                                    .min_blocks = 2,
                                    .plain = true};
};
struct ForwardHdim64 {
  static constexpr ForwardTile tile{.d = 64, .m = 128, .n = 64, .num_warps = 8};
};
struct ForwardHdim128 {
  static constexpr ForwardTile tile{.d = 128, .m = 128, .n = 64, .num_warps = 8};
};
// Wider: out of 32 rows is more than a warp's registers hold. Warps have 16 rows, or share them.
struct ForwardHdim192 {
  static constexpr ForwardTile tile{.d = 192, .m = 64, .n = 64, .num_warps = 4, .min_blocks = 3};
};
struct ForwardHdim256 {
  static constexpr ForwardTile tile{.d = 256,
                                    .m = 64,
                                    .n = 64,
                                    .num_warps = 4,
                                    .column_groups = 2,
                                    .min_blocks = 2,
                                    .needs_min_blocks = true};
};
struct ForwardHdim256Medium {
  static constexpr ForwardTile tile{
      .d = 256, .m = 128, .n = 64, .num_warps = 8, .column_groups = 2};
};
struct ForwardHdim256Small {
  static constexpr ForwardTile tile{
      .d = 256, .m = 64, .n = 64, .num_warps = 4, .column_groups = 2, .chunks = 2, .num_stages = 3};
};
struct ForwardHdim384 {
  static constexpr ForwardTile tile{
      .d = 384, .m = 64, .n = 128, .num_warps = 8, .column_groups = 4, .chunks = 2};
};
// Two chunks of 64 KiB and not more of less: every chunk costs a barrier of all warps. 266 against
// 226 TF/s with four (causal, 8K, H200; bench/results/h200/portable_fwd.txt).
struct ForwardHdim512 {
  static constexpr ForwardTile tile{
      .d = 512, .m = 64, .n = 128, .num_warps = 8, .column_groups = 4, .chunks = 2};
};
struct ForwardHdim512Medium {
  static constexpr ForwardTile tile{
      .d = 512, .m = 64, .n = 128, .num_warps = 8, .column_groups = 4, .chunks = 4};
};
struct ForwardHdim512Small {
  static constexpr ForwardTile tile{
      .d = 512, .m = 32, .n = 64, .num_warps = 4, .column_groups = 4, .chunks = 4, .num_stages = 3};
};

// fp32: 16 rows a warp.
struct ForwardFp32Hdim64 {
  static constexpr ForwardTile tile{.d = 64, .m = 64, .n = 64, .num_warps = 4, .min_blocks = 2};
};
struct ForwardFp32Hdim128 {
  static constexpr ForwardTile tile{.d = 128, .m = 64, .n = 32, .num_warps = 4, .min_blocks = 2};
};
struct ForwardFp32Hdim256 {
  static constexpr ForwardTile tile{.d = 256,
                                    .m = 32,
                                    .n = 32,
                                    .num_warps = 4,
                                    .column_groups = 2,
                                    .chunks = 2,
                                    .num_stages = 3,
                                    .min_blocks = 2};
};
struct ForwardFp32Hdim512 {
  static constexpr ForwardTile tile{
      .d = 512, .m = 16, .n = 64, .num_warps = 4, .column_groups = 4, .chunks = 8, .num_stages = 3};
};

}  // namespace foveal::cuda::portable
