// What the whole block knows of its tile. It lies in shared memory and is read where it is needed:
// the accumulators leave no registers for what is the same in every lane.
#pragma once

#include <cstdint>

#include "algorithm/block_range.hpp"
#include "algorithm/dropout.hpp"
#include "cuda/portable/fwd/tile_config.hpp"
#include "cuda/portable/fwd/work.cuh"
#include "cuda/tile/copy_rows.cuh"

namespace foveal::cuda::portable {

struct TileState {
  ForwardWork work;
  KeyRows k;
  KeyRows v;
  algorithm::Dropout dropout;
  std::int32_t n_min;  ///< Key blocks that this block of the grid attends to.
  std::int32_t n_max;
  std::int32_t full_min;  ///< Key blocks [full_min, full_max) need no mask.
  std::int32_t full_max;
  bool has_rows;
};
static_assert(sizeof(TileState) <= kTileStateBytes);

/// Keys that no row of the tile sees are never read.
template <class Shape>
FOVEAL_DEVICE KeyRows tile_key_rows(const ForwardArgs& args, const ForwardWork& work,
                                    const KeyOperand& operand, const RowElements& elements,
                                    algorithm::Range seen) {
  const algorithm::KvLocator at =
      algorithm::kv_locator(operand.layout, work.b, args.attention.cache_row(work.b), work.head_k,
                            work.lengths.k_begin + work.lengths.leftpad_k);
  return key_rows<typename Shape::Element, Shape::kTile.d>(elements, at, seen);
}

template <class Shape>
FOVEAL_DEVICE void fill_tile(const ForwardArgs& args, const ForwardWork& work, TileState& tile) {
  const AttentionArgs& attention = args.attention;
  const algorithm::Mask mask{work.lengths.seqlen_q, work.lengths.seqlen_k, attention.score.window};
  const algorithm::Range rows =
      algorithm::query_rows({work.row_min, min_of(work.row_max, work.used_rows)}, work.group);
  const algorithm::BlockRange blocks = algorithm::n_block_range(mask, rows, Shape::kTile.n);
  const std::int32_t num_splits = args.schedule.num_splits;
  const algorithm::Range own = num_splits == 1
                                   ? blocks.visit
                                   : algorithm::split_blocks(blocks.visit, work.split, num_splits);
  const algorithm::Range seen = mask.keys_of_rows(rows);
  tile.work = work;
  tile.k = tile_key_rows<Shape>(
      args, work, attention.k,
      {attention.k.data, attention.k.layout.dim_stride, attention.headdim, args.k_whole_units},
      seen);
  tile.v = tile_key_rows<Shape>(
      args, work, attention.v,
      {attention.v.data, attention.v.layout.dim_stride, attention.headdim_v, args.v_whole_units},
      seen);
  tile.dropout = attention.dropout.load();
  tile.n_min = static_cast<std::int32_t>(own.min);
  tile.n_max = static_cast<std::int32_t>(own.max);
  tile.full_min = static_cast<std::int32_t>(blocks.full.min);
  tile.full_max = static_cast<std::int32_t>(blocks.full.max);
}

/// Fills `tile` for block `index` of the grid. All threads call it and see the result.
template <class Shape>
FOVEAL_DEVICE void prepare_tile(const ForwardArgs& args, std::int32_t index, TileState& tile) {
  if (threadIdx.x < 32) {
    ForwardWork work;
    const bool found =
        find_work(args.attention, args.schedule, args.schedule.num_splits, index, work);
    if (threadIdx.x == 0) {
      tile.has_rows = found;
      if (found) fill_tile<Shape>(args, work, tile);
    }
  }
  __syncthreads();
}

}  // namespace foveal::cuda::portable
