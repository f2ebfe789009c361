// The end of a tile: sums of the lanes together, sink, division, and out and lse, or the partial
// result of a split.
#pragma once

#include <cstdint>

#include "algorithm/online_softmax.hpp"
#include "cuda/portable/fwd/scores.cuh"
#include "cuda/portable/fwd/softmax.cuh"
#include "cuda/portable/fwd/tile_state.cuh"
#include "cuda/tile/element.cuh"
#include "cuda/tile/warp_products.cuh"

namespace foveal::cuda::portable {

/// Columns `column` and column + 1 of a row of out; those past headdim_v are not there.
template <class OutElement>
FOVEAL_DEVICE void store_out_as(const ForwardArgs& args, std::int64_t row_offset, int column,
                                float x, float y) {
  auto* to = static_cast<OutElement*>(args.attention.out.data) + row_offset;
  const std::int64_t dim_stride = args.attention.out.strides.dim;
  if (args.out_in_pairs && column + 1 < args.attention.headdim_v) {
    struct alignas(2 * sizeof(OutElement)) Pair {
      OutElement x, y;
    };
    *reinterpret_cast<Pair*>(to + column) = {from_float<OutElement>(x), from_float<OutElement>(y)};
    return;
  }
  if (column < args.attention.headdim_v) to[column * dim_stride] = from_float<OutElement>(x);
  if (column + 1 < args.attention.headdim_v) {
    to[(column + 1) * dim_stride] = from_float<OutElement>(y);
  }
}

template <class Element>
FOVEAL_DEVICE void store_out(const ForwardArgs& args, std::int64_t row_offset, int column, float x,
                             float y) {
  if (args.attention.out_dtype == DType::kFloat32) {
    store_out_as<float>(args, row_offset, column, x, y);
  } else {
    store_out_as<Element>(args, row_offset, column, x, y);
  }
}

FOVEAL_DEVICE void store_lse(const ForwardArgs& args, const ForwardWork& work, std::int32_t r,
                             float lse) {
  const RowValues& values = args.attention.lse;
  if (values.data != nullptr) values.data[work.offset(values.strides, r)] = lse;
}

/// What a finished row's accumulator is multiplied by, and its lse.
struct FinishedRow {
  float factor = 0.0f;  ///< 0: the row's out is 0, whatever the accumulator holds.
  float lse = algorithm::kNegativeInfinity;

  FOVEAL_DEVICE float out(float sum) const { return factor == 0.0f ? 0.0f : sum * factor; }
};

/// Rows past seqused_q are left empty.
FOVEAL_DEVICE FinishedRow finish_row(const ForwardArgs& args, const ForwardWork& work,
                                     const algorithm::Dropout& dropout, std::int32_t r,
                                     RowState keys) {
  FinishedRow row;
  if (r >= work.used_rows) return row;
  algorithm::SoftmaxState state{keys.max * args.factor_log2() * kLn2, keys.sum};
  row.factor = 1.0f;
  if (args.attention.sinks != nullptr) {
    const float sink = args.attention.sinks[work.query_head(r) * args.attention.sink_stride];
    row.factor = algorithm::fold_sink(state, sink);
  }
  row.factor *= algorithm::inverse_row_sum(state.row_sum);
  if (dropout.enabled()) row.factor *= dropout.keep_scale;
  row.lse = algorithm::row_lse(state);
  return row;
}

/// Rows `row + 16 i + 8 half` (packed rows of the sequence) and the columns of column group
/// `group`.
template <class Element, int kGroups, int kRowTiles, int kColumnTiles>
FOVEAL_DEVICE void store_rows(const ForwardArgs& args, const TileState& tile,
                              const float (&acc)[kRowTiles][kColumnTiles][4],
                              const RowStates<2 * kRowTiles>& state, std::int32_t row, int group) {
  const int column = group_column<kGroups>(group, 0) + 2 * (lane_index() % 4);
  const bool lse_too = group == 0 && lane_index() % 4 == 0;  // one lane a row
  const ForwardWork& work = tile.work;
  const bool whole = args.schedule.num_splits == 1;
  const std::int64_t slot =
      static_cast<std::int64_t>(work.tile) * args.schedule.num_splits + work.split;
#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    const std::int32_t r = row + 8 * i;
    if (r >= work.row_max) continue;
    const auto sums = [&](int j, int e) { return acc[i / 2][j][i % 2 * 2 + e]; };
    if (whole) {
      const FinishedRow finished =
          finish_row(args, work, tile.dropout, r, {state.max[i], state.sum[i]});
      const std::int64_t offset = work.offset(args.attention.out.strides, r);
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        store_out<Element>(args, offset, column + group_column<kGroups>(0, j),
                           finished.out(sums(j, 0)), finished.out(sums(j, 1)));
      }
      if (lse_too) store_lse(args, work, r, finished.lse);
    } else {
      const std::int64_t slot_row = slot * args.schedule.tile_m + (r - work.row_min);
      float* to = args.partials.out + slot_row * args.partials.ld + column;
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        *reinterpret_cast<float2*>(to + group_column<kGroups>(0, j)) =
            state.sum[i] == 0.0f ? float2{} : float2{sums(j, 0), sums(j, 1)};
      }
      if (lse_too) args.partials.rows[slot_row] = {state.max[i], state.sum[i]};
    }
  }
}

}  // namespace foveal::cuda::portable
