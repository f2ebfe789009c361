// One head of one row is merged by 1 to 32 lanes of a warp, which walk along its elements.
#pragma once

#include "algorithm/split_merge.hpp"
#include "cuda/portable/merge/args.hpp"
#include "cuda/tile/elementwise.cuh"

namespace foveal::cuda::merging {

/// Where one head of one row lies.
struct RowPlace {
  std::int64_t batch;
  std::int64_t row;
  std::int64_t head;

  FOVEAL_DEVICE std::int64_t in(const RowStrides& strides) const {
    return strides.offset(batch, row, head);
  }
};

FOVEAL_DEVICE RowPlace place_of(const MergeArgs& args, std::int64_t index) {
  const Quotient by_head = divide(index, args.nheads);
  const Quotient by_batch = divide(by_head.quotient, args.rows_per_batch);
  return {by_batch.quotient, by_batch.remainder, by_head.remainder};
}

/// Adds weight * part. What has no key holds no value, whatever lies in its storage.
template <int kWidth>
FOVEAL_DEVICE void add_part(const MergeSide& part, std::int64_t offset, float weight, float lse,
                            float (&sum)[kWidth]) {
  if (lse == algorithm::kNegativeInfinity) return;
  float values[kWidth];
  load_floats(part.dtype, part.out, offset, values);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum[i] += weight * values[i];
}

template <int kWidth>
FOVEAL_DEVICE void merge_row(const MergeArgs& args, const RowPlace& place, float lse_a, float lse_b,
                             const algorithm::MergeWeights& weights, std::int32_t lane) {
  const std::int64_t a = place.in(args.a.out_strides);
  const std::int64_t b = place.in(args.b.out_strides);
  const std::int64_t result = place.in(args.result.out_strides);
  for (std::int32_t d = lane * kWidth; d < args.headdim_v; d += args.lanes_per_row * kWidth) {
    float sum[kWidth] = {};
    add_part(args.a, a + d * args.a.out_strides.dim, weights.weight_a, lse_a, sum);
    add_part(args.b, b + d * args.b.out_strides.dim, weights.weight_b, lse_b, sum);
    store_floats(args.result.dtype, args.result.out, result + d * args.result.out_strides.dim, sum);
  }
}

namespace {

template <int kWidth>
__global__ void __launch_bounds__(kThreads) merge_kernel(const __grid_constant__ MergeArgs args) {
  const std::int32_t rows_per_block = kThreads / args.lanes_per_row;
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int64_t index =
      static_cast<std::int64_t>(blockIdx.x) * rows_per_block + thread / args.lanes_per_row;
  const bool exists = index < args.num_rows;
  const std::int32_t lane = thread % args.lanes_per_row;
  RowPlace place{};
  float lse_a = algorithm::kNegativeInfinity;
  float lse_b = algorithm::kNegativeInfinity;
  if (exists) {
    place = place_of(args, index);
    lse_a = args.a.lse[place.in(args.a.lse_strides)];
    lse_b = args.b.lse[place.in(args.b.lse_strides)];
  }
  // lse may be lse_a: all lanes of a row have read it from here on.
  __syncwarp();
  if (!exists) return;
  const algorithm::MergeWeights weights = algorithm::merge_weights(lse_a, lse_b);
  merge_row<kWidth>(args, place, lse_a, lse_b, weights, lane);
  if (lane == 0 && args.result.lse != nullptr) {
    args.result.lse[place.in(args.result.lse_strides)] = weights.lse;
  }
}

}  // namespace
}  // namespace foveal::cuda::merging
