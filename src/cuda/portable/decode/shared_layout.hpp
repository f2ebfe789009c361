// Shared memory of a decode block, as offsets in bytes: the host sizes the launch by it and the
// kernel places its arrays by it.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "core/integer.hpp"

namespace foveal::cuda::decode {

/// Keys of a warp's block: the M of one MMA.
inline constexpr int kBlockKeys = 16;
/// Packed query rows in an MMA's N. Packed row r is query token r / group, head r % group.
inline constexpr int kTileRows = 8;
/// Most warps of a block of an instance.
FOVEAL_HOST_DEVICE constexpr int max_warps(int headdim_tile, int row_tiles) {
  return headdim_tile == 64 && row_tiles == 1 ? 4 : 8;
}

/// What the mask and the score of one packed row need, in shared memory.
struct RowInfo {
  std::int32_t first_key;  ///< It sees [first_key, end_key).
  std::int32_t end_key;
  std::int32_t diagonal;  ///< i + shift, for ALiBi.
  float slope;            ///< ALiBi's, in log2 units.
};

/// Room for a Task (work.cuh).
inline constexpr int kTaskBytes = 192;

/// A partial result of one packed row: D accumulated values, then the row's maximum (log2 units)
/// and sum.
FOVEAL_HOST_DEVICE constexpr int partial_stride(int headdim_tile) { return headdim_tile + 2; }

struct SharedLayout {
  int ring_bytes = 0;  ///< Of one warp: stages x (K, V) x kBlockKeys rows of 16-bit elements.
  int q = 0;           ///< [rows][headdim_tile], 16-bit, swizzled
  int rows = 0;        ///< RowInfo [rows]
  int task = 0;        ///< Task, for what comes after the last key
  int barrier = 0;     ///< The cluster's mbarrier.
  int received = 0;    ///< Clusters: [splits][rows][partial_stride] fp32, in the first block.
  int prefix = 0;      ///< Balanced: int32 [batch + 1]
  int total = 0;
};

/// Least bytes of the rings' room: the weights and slots of 1024 parts of a tile of rows.
inline constexpr int kMergeBytes = 1024 * (kTileRows + 1) * 4 + 2 * kTileRows * 4;

/// The warps' rings come first; when a block's keys are done, its warps' partial results of one
/// tile of rows, [warps][kTileRows][partial_stride] fp32, lie over them.
FOVEAL_HOST_DEVICE constexpr SharedLayout shared_layout(int headdim_tile, int rows, int warps,
                                                        int stages, int received_splits,
                                                        int batch_prefix) {
  constexpr int kAlignment = 128;
  SharedLayout layout;
  layout.ring_bytes = stages * 2 * kBlockKeys * headdim_tile * 2;
  const int merge_bytes = warps * kTileRows * partial_stride(headdim_tile) * 4;
  const int body = max_of(max_of(warps * layout.ring_bytes, merge_bytes), kMergeBytes);
  layout.q = round_up(body, kAlignment);
  layout.rows = layout.q + rows * headdim_tile * 2;
  layout.task = layout.rows + rows * static_cast<int>(sizeof(RowInfo));
  layout.barrier = layout.task + kTaskBytes;
  layout.received = layout.barrier + 16;
  layout.prefix = round_up(
      layout.received + received_splits * rows * partial_stride(headdim_tile) * 4, kAlignment);
  layout.total = layout.prefix + (batch_prefix > 0 ? (batch_prefix + 1) * 4 : 0);
  return layout;
}

}  // namespace foveal::cuda::decode
