// Partial results: those of a block's warps become the block's, those of the blocks of a unit its
// result. A partial result of packed row r is D values, the row's maximum (log2 units) and its sum,
// adjacent in memory; merging rescales to the larger maximum (algorithm/split_merge.hpp has the
// algebra for finished rows).
#pragma once

#include <cstdint>

#include "algorithm/online_softmax.hpp"
#include "cuda/portable/decode/attend.cuh"
#include "cuda/ptx/memory.cuh"

namespace foveal::cuda::decode {

/// One element of a merged row.
struct MergedElement {
  float acc;
  float row_max;
  float row_sum;
};

/// Element d of a row over `count` partial results. load(part, index) reads a float of the row in
/// that part.
template <int kHeaddim, class Load>
FOVEAL_DEVICE MergedElement merge_partials(int count, int d, Load load) {
  MergedElement merged{0.0f, algorithm::kNegativeInfinity, 0.0f};
#pragma unroll 4
  for (int part = 0; part < count; ++part) {
    merged.row_max = fmaxf(merged.row_max, load(part, kHeaddim));
  }
  const float offset = algorithm::softmax_offset(merged.row_max);
#pragma unroll 4
  for (int part = 0; part < count; ++part) {
    const float factor = ptx::exp2_approx(load(part, kHeaddim) - offset);
    merged.acc += load(part, d) * factor;
    merged.row_sum += load(part, kHeaddim + 1) * factor;
  }
  return merged;
}

/// Leaves a warp's results of the first `tile_rows` rows of a tile at `warp_partials`,
/// [kTileRows][partial_stride].
template <int kHeaddim, int kTiles>
FOVEAL_DEVICE void store_warp_partials(const WarpState<kHeaddim, kTiles>& state, int tile,
                                       int tile_rows, float* warp_partials) {
  constexpr int kStride = partial_stride(kHeaddim);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int g = lane / 4;
  const int t = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = sum_over_keys(state.row_sum[tile][h]);
    if (2 * t + h >= tile_rows) continue;
    float* row = warp_partials + (2 * t + h) * kStride;
#pragma unroll
    for (int m = 0; m < kHeaddim / 16; ++m) {
      row[m * 16 + g] = state.acc[tile][m][h];
      row[m * 16 + g + 8] = state.acc[tile][m][h + 2];
    }
    if (g == 0) {
      row[kHeaddim] = state.row_max[tile][h];
      row[kHeaddim + 1] = sum;
    }
  }
}

/// Stores element d of packed row `row` as the final result: sink, division, lse. Rows past the
/// sequence's length are padding, 0 with lse -inf.
template <class Element>
FOVEAL_DEVICE void store_result(const DecodeArgs& decode, const Task& task, int row, int d,
                                MergedElement merged) {
  const AttentionArgs& args = decode.attention;
  const int i = decode.group.quotient(row);
  const int head = task.head_k * args.qhead_per_khead + decode.group.remainder(row);
  if (i >= task.sequence.lengths.seqlen_q) {
    merged = {0.0f, algorithm::kNegativeInfinity, 0.0f};
  } else if (args.sinks != nullptr) {
    const float sink = args.sinks[head * args.sink_stride] * kLog2E;
    const float new_max = fmaxf(sink, merged.row_max);
    const float offset = algorithm::softmax_offset(new_max);
    const float factor = ptx::exp2_approx(merged.row_max - offset);
    merged.acc *= factor;
    merged.row_sum = merged.row_sum * factor + ptx::exp2_approx(sink - offset);
    merged.row_max = new_max;
  }
  const int q_row = task.sequence.lengths.q_begin + i;
  if (d < args.headdim_v) {
    const float value = merged.acc * algorithm::inverse_row_sum(merged.row_sum);
    const std::int64_t offset =
        args.out.strides.offset(task.b, q_row, head) + d * args.out.strides.dim;
    if (args.out_dtype == DType::kFloat32) {
      static_cast<float*>(args.out.data)[offset] = value;
    } else {
      static_cast<Element*>(args.out.data)[offset] = Element(value);
    }
  }
  if (d == 0 && args.lse.data != nullptr) {
    args.lse.data[args.lse.strides.offset(task.b, q_row, head)] =
        merged.row_sum == 0.0f
            ? algorithm::kNegativeInfinity
            : (algorithm::softmax_offset(merged.row_max) + log2f(merged.row_sum)) * kLn2;
  }
}

}  // namespace foveal::cuda::decode
