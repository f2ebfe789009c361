// What the direct decode kernel is given. It does the common part of decoding with as little code
// as that takes, because at short caches a block's way to its first key is what decides: up to 8
// packed query rows, dense keys of a padded headdim, no softcap and no ALiBi, one task a block.
#pragma once

#include <cstdint>
#include <optional>

#include "algorithm/mask.hpp"
#include "core/integer.hpp"
#include "cuda/portable/decode/args.hpp"

namespace foveal::cuda::decode {

/// k or v. Rows are whole 16-byte units, in which the strides count.
struct DirectOperand {
  const void* data = nullptr;
  std::uint32_t batch_stride = 0;  ///< With pages: from page to page.
  std::uint32_t head_stride = 0;
  std::uint32_t row_stride = 0;
};

/// Pages of whole key blocks; there are none with a null table.
struct DirectPages {
  const std::int32_t* table = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t page_stride = 1;
  Divisor size;            ///< Keys of a page.
  std::int32_t count = 0;  ///< What table entries are clamped to.
};

/// The order is that of use: arguments come through a cache that misses a line at a time.
struct DirectArgs {
  DirectOperand k;
  DirectOperand v;
  algorithm::BasicRange<std::int32_t> keys;  ///< That some row sees, where lengths are fixed.
  Divisor splits;                            ///< num_splits
  std::int32_t num_splits = 1;               ///< Blocks of a cluster that share a head's keys.
  std::int32_t split_blocks = 0;             ///< As for part_blocks.
  std::int32_t num_stages = 2;
  DirectPages pages;
  const std::int32_t* seqused_k = nullptr;  ///< Null: lengths are fixed, as in `mask`.
  algorithm::BasicMask<std::int32_t> mask;  ///< Of the capacity where seqused_k gives lengths.
  std::int32_t seqlen_new = 0;              ///< Tokens appended to seqused_k before.
  std::int32_t num_rows = 0;                ///< Packed: seqlen_q * qhead_per_khead.
  std::int32_t qhead_per_khead = 1;
  Divisor group;          ///< qhead_per_khead
  Divisor quads_a_block;  ///< Adjacent quads of d that one block of a cluster merges.
  std::int32_t num_quads_a_block = 0;
  float scale_log2 = 1;  ///< softmax_scale * log2(e)
  RowOperand q;
  RowOperand out;
  DType out_dtype = DType::kNone;
  bool store_quads = false;  ///< Four elements of a row of out are adjacent and aligned to 8 bytes.
  RowValues lse;
  const float* sinks = nullptr;  ///< Null: none.
  std::int64_t sink_stride = 0;
};

/// The direct kernel for work that blocks share evenly (direct_shared.cuh). The rest as in
/// DecodeArgs.
struct SharedDirectArgs {
  DirectArgs direct;  ///< One split; seqused_k is not null.
  std::int32_t batch = 0;
  /// Blocks of a team have the same share of the keys, each of its own KV head: rows of the heads
  /// are adjacent in memory and read at about the same time.
  std::int32_t team_size = 1;
  Divisor team;                  ///< team_size
  std::int32_t head_groups = 0;  ///< KV heads / team_size
  std::int32_t max_teams = 0;
  std::int32_t granule_blocks = 0;
  std::int32_t task_granules = 0;
  float* partials = nullptr;  ///< [slots] of the bytes that the general kernel's parts take.
  std::uint64_t* flags = nullptr;
  std::uint64_t nonce = 0;
};

/// Most blocks of a cluster, and most warps of a block: what one merge takes.
inline constexpr int kMaxDirectSplits = 8;
inline constexpr int kMaxDirectWarps = 8;
static_assert(kMaxInvariantParts <= kMaxDirectSplits);

/// Queries and the accumulators of a longer row have no room in registers together.
inline constexpr int kMaxDirectHeaddim = 256;

/// The same attention for the direct kernel, where it takes it; nothing where it doesn't. Both
/// kernels give the same bits for the same warps and parts.
[[nodiscard]] std::optional<DirectArgs> make_direct_args(const DecodeArgs& args, int headdim_tile,
                                                         int tile_rows);

/// The same for work that is shared evenly.
[[nodiscard]] std::optional<SharedDirectArgs> make_shared_direct_args(const DecodeArgs& args,
                                                                      int headdim_tile,
                                                                      int tile_rows,
                                                                      std::int64_t num_blocks);

/// A partial result: [kTileRows][headdim + 4] fp32, then (row_max, row_sum) of each row. The four
/// floats of padding keep the lanes of a fragment in different banks.
FOVEAL_HOST_DEVICE constexpr int direct_row_bytes(int headdim) { return (headdim + 4) * 4; }
FOVEAL_HOST_DEVICE constexpr int direct_partial_bytes(int headdim, int rows) {
  return round_up(rows * (direct_row_bytes(headdim) + 8), 16);
}

/// Shared memory of a direct block, offsets in bytes. The cluster's mbarrier comes first. In a
/// cluster the warps' partial results have room of their own; a block alone has them over its
/// rings when the keys are done.
struct DirectLayout {
  static constexpr int kRowOutputs = 16;  ///< RowOutput [kTileRows]
  static constexpr int kRings = 256;
  int ring_bytes = 0;  ///< Of one warp.
  int partials = 0;    ///< [warps] of partial_bytes
  int partial_bytes = 0;
  int received = 0;  ///< [splits][kTileRows][num_quads_a_block] float4
  int stats = 0;     ///< [splits][kTileRows] (row_max, row_sum)
  int total = 0;
};

FOVEAL_HOST_DEVICE constexpr DirectLayout direct_layout(int headdim, int rows, int warps,
                                                        int stages, int splits) {
  DirectLayout layout;
  layout.ring_bytes = stages * 2 * kBlockKeys * headdim * 2;
  layout.partial_bytes = direct_partial_bytes(headdim, rows);
  layout.total = DirectLayout::kRings + warps * layout.ring_bytes;
  layout.partials = DirectLayout::kRings;
  if (splits > 1) {
    layout.partials = layout.total;
    layout.received = layout.partials + warps * layout.partial_bytes;
    // Every block's share of quads is rounded up.
    layout.stats = layout.received + kTileRows * (headdim + 4 * kMaxDirectSplits) * 4;
    layout.total = layout.stats + kMaxDirectSplits * kTileRows * 8;
  }
  return layout;
}
static_assert(2 * 2 * kBlockKeys * 64 * 2 >= direct_partial_bytes(64, kTileRows),
              "a ring holds a partial result");

/// Of a unit's parts, in shared memory; the slots of all of them follow.
struct PartPlaces {
  std::int32_t own_slot;
  std::int32_t count;
};

/// Shared memory of a block of the shared direct kernel, offsets in bytes; the rings come first.
struct SharedDirectLayout {
  int ring_bytes = 0;  ///< Of one warp.
  int partials = 0;    ///< [warps] of partial_bytes
  int partial_bytes = 0;
  int row_outputs = 0;  ///< RowOutput [kTileRows]
  int places = 0;       ///< PartPlaces, then a slot for each block.
  int prefix = 0;       ///< int32 [batch + 1]
  int used = 0;         ///< int32 [batch]: lengths
  int total = 0;
};

FOVEAL_HOST_DEVICE constexpr SharedDirectLayout shared_direct_layout(int headdim, int rows,
                                                                     int warps, int stages,
                                                                     int blocks, int batch) {
  SharedDirectLayout layout;
  layout.ring_bytes = stages * 2 * kBlockKeys * headdim * 2;
  layout.partials = warps * layout.ring_bytes;
  layout.partial_bytes = direct_partial_bytes(headdim, rows);
  layout.row_outputs = layout.partials + warps * layout.partial_bytes;
  layout.places = layout.row_outputs + DirectLayout::kRings - DirectLayout::kRowOutputs;
  layout.prefix = layout.places + static_cast<int>(sizeof(PartPlaces)) +
                  blocks * static_cast<int>(sizeof(std::int32_t));
  layout.used = layout.prefix + (batch + 1) * 4;
  layout.total = layout.used + batch * 4;
  return layout;
}

}  // namespace foveal::cuda::decode
