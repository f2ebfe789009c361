// Partial results of the direct kernel, four elements of d at a time: those of a block's warps
// become the block's, those of a cluster's blocks the result.
#pragma once

#include <cstdint>

#include "cuda/portable/decode/attend.cuh"
#include "cuda/portable/decode/direct_args.hpp"

namespace foveal::cuda::decode {

/// Four adjacent elements of a merged row.
struct MergedQuad {
  float4 acc;
  float row_max;
  float row_sum;
};

/// Partial results of one row, apart by fixed strides in shared memory.
struct RowParts {
  const unsigned char* values;  ///< Of the first part, quad 0.
  const unsigned char* stats;   ///< (row_max, row_sum) of the first part.
  int value_stride;             ///< In bytes, from part to part.
  int stat_stride;
  int count;  ///< At most kMaxDirectSplits.
};

/// Quad `quad` over all parts, in their order. A part without a key has weight 0, and no branch
/// depends on the number of parts.
FOVEAL_DEVICE MergedQuad merge_quad(const RowParts& parts, int quad) {
  float2 stats[kMaxDirectSplits];
  float row_max = algorithm::kNegativeInfinity;
#pragma unroll
  for (int part = 0; part < kMaxDirectSplits; ++part) {
    stats[part] = {algorithm::kNegativeInfinity, 0.0f};
    if (part < parts.count) {
      stats[part] = *reinterpret_cast<const float2*>(parts.stats + part * parts.stat_stride);
    }
    row_max = fmaxf(row_max, stats[part].x);
  }
  MergedQuad merged{{0.0f, 0.0f, 0.0f, 0.0f}, row_max, 0.0f};
  const float offset = algorithm::softmax_offset(row_max);
#pragma unroll
  for (int part = 0; part < kMaxDirectSplits; ++part) {
    const float factor = ptx::exp2_approx(stats[part].x - offset);
    float4 values = {0.0f, 0.0f, 0.0f, 0.0f};
    if (part < parts.count) {
      values =
          *reinterpret_cast<const float4*>(parts.values + part * parts.value_stride + quad * 16);
    }
    merged.row_sum += stats[part].y * factor;
    merged.acc.x += values.x * factor;
    merged.acc.y += values.y * factor;
    merged.acc.z += values.z * factor;
    merged.acc.w += values.w * factor;
  }
  return merged;
}

/// One warp, whose lanes have the (maximum, sum) of a part each: takes those into `merged`, and
/// returns the factor of the lane's values.
FOVEAL_DEVICE float take_parts(MergedQuad& merged, float2 stats) {
  float row_max = fmaxf(merged.row_max, stats.x);
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    row_max = fmaxf(row_max, __shfl_xor_sync(~0u, row_max, lanes));
  }
  const float offset = algorithm::softmax_offset(row_max);
  const float factor = ptx::exp2_approx(stats.x - offset);
  float sum = stats.y * factor;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  const float old = ptx::exp2_approx(merged.row_max - offset);
  merged = {{merged.acc.x * old, merged.acc.y * old, merged.acc.z * old, merged.acc.w * old},
            row_max,
            merged.row_sum * old + sum};
  return factor;
}

/// Adds a quad of the parts that lanes `first` and on have taken.
template <int kParts>
FOVEAL_DEVICE void add_values(MergedQuad& merged, const float4 (&values)[kParts], float factor,
                              int first) {
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const float of_part = __shfl_sync(~0u, factor, first + i);
    merged.acc.x += values[i].x * of_part;
    merged.acc.y += values[i].y * of_part;
    merged.acc.z += values[i].z * of_part;
    merged.acc.w += values[i].w * of_part;
  }
}

/// Leaves a warp's results at `partial`, laid out as direct_partial_bytes says.
template <int kHeaddim>
FOVEAL_DEVICE void store_warp_partial(const WarpState<kHeaddim, 1>& state, int num_rows,
                                      unsigned char* partial) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int g = lane / 4;
  const int t = lane % 4;
  auto* stats = reinterpret_cast<float2*>(partial + num_rows * direct_row_bytes(kHeaddim));
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = sum_over_keys(state.row_sum[0][h]);
    if (2 * t + h >= num_rows) continue;
    auto* row = reinterpret_cast<float*>(partial + (2 * t + h) * direct_row_bytes(kHeaddim));
#pragma unroll
    for (int m = 0; m < kHeaddim / 16; ++m) {
      row[m * 16 + g] = state.acc[0][m][h];
      row[m * 16 + g + 8] = state.acc[0][m][h + 2];
    }
    if (g == 0) stats[2 * t + h] = {state.row_max[0][h], sum};
  }
}

/// Where a packed row's result goes and what its sink adds.
struct RowOutput {
  std::int64_t out;  ///< Offset of element 0, in elements.
  std::int64_t lse;
  float sink_log2;  ///< -inf: none.
};
static_assert(kTileRows * sizeof(RowOutput) <= DirectLayout::kRings - DirectLayout::kRowOutputs);

FOVEAL_DEVICE RowOutput row_output(const DirectArgs& args, int b, int head_k, int row) {
  const int i = args.group.quotient(row);
  const int head = head_k * args.qhead_per_khead + args.group.remainder(row);
  return {args.out.strides.offset(b, i, head), args.lse.strides.offset(b, i, head),
          args.sinks == nullptr ? algorithm::kNegativeInfinity
                                : args.sinks[head * args.sink_stride] * kLog2E};
}

/// Stores four elements of a row from 4 * quad on as the final result: sink, division, lse.
template <class Element>
FOVEAL_DEVICE void store_quad(const DirectArgs& args, const RowOutput& row, int quad,
                              MergedQuad merged) {
  if (row.sink_log2 != algorithm::kNegativeInfinity) {
    const float new_max = fmaxf(row.sink_log2, merged.row_max);
    const float offset = algorithm::softmax_offset(new_max);
    const float factor = ptx::exp2_approx(merged.row_max - offset);
    merged.acc = {merged.acc.x * factor, merged.acc.y * factor, merged.acc.z * factor,
                  merged.acc.w * factor};
    merged.row_sum = merged.row_sum * factor + ptx::exp2_approx(row.sink_log2 - offset);
    merged.row_max = new_max;
  }
  const float inverse = algorithm::inverse_row_sum(merged.row_sum);
  const float values[4] = {merged.acc.x * inverse, merged.acc.y * inverse, merged.acc.z * inverse,
                           merged.acc.w * inverse};
  if (args.store_quads) {
    *reinterpret_cast<uint2*>(static_cast<Element*>(args.out.data) + row.out + 4 * quad) = {
        ptx::pack_pair<Element>(values[0], values[1]),
        ptx::pack_pair<Element>(values[2], values[3])};
  } else {
    const std::int64_t offset = row.out + 4 * quad * args.out.strides.dim;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const std::int64_t at = offset + e * args.out.strides.dim;
      if (args.out_dtype == DType::kFloat32) {
        static_cast<float*>(args.out.data)[at] = values[e];
      } else {
        static_cast<Element*>(args.out.data)[at] = Element(values[e]);
      }
    }
  }
  if (quad == 0 && args.lse.data != nullptr) {
    args.lse.data[row.lse] =
        merged.row_sum == 0.0f
            ? algorithm::kNegativeInfinity
            : (algorithm::softmax_offset(merged.row_max) + log2f(merged.row_sum)) * kLn2;
  }
}

}  // namespace foveal::cuda::decode
