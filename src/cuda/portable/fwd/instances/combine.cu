// Merges the partial results of a tile's splits.
#include "algorithm/online_softmax.hpp"
#include "cuda/portable/fwd/epilogue.cuh"
#include "cuda/portable/fwd/launch.hpp"
#include "cuda/runtime/launch_kernel.hpp"

namespace foveal::cuda::portable {
namespace {

/// Rows of a block, one a warp: a row's splits are read one after the other, so that rows must be
/// spread wide.
constexpr int kCombineRows = 4;
/// Blocks that a multiprocessor is to hold: leaves 64 registers a thread.
constexpr int kCombineBlocks = 8;
/// Columns that a lane merges at a time: two adjacent ones.
constexpr int kLaneColumns = 2;
/// Splits that a lane has the weights of.
constexpr int kLaneSplits = kMaxForwardSplits / 32;

FOVEAL_DEVICE float warp_max(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, distance));
  }
  return value;
}
FOVEAL_DEVICE float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(~0u, value, distance);
  }
  return value;
}

/// The partial results of one row, by a warp: split s lies s * stride rows after the first. Lane l
/// knows splits l, l + 32, ...
struct SplitRows {
  const ForwardPartials& partials;
  std::int64_t first;
  std::int64_t stride;
  int count;

  /// The row over all keys; `weights` become what each split's sums are multiplied by, 0 for a
  /// split without a key.
  FOVEAL_DEVICE RowState merge_states(float factor_log2, float (&weights)[kLaneSplits]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    RowState states[kLaneSplits];
    float max = algorithm::kNegativeInfinity;
#pragma unroll
    for (int i = 0; i < kLaneSplits; ++i) {
      const int split = lane + 32 * i;
      states[i] = split < count ? partials.rows[first + split * stride]
                                : RowState{algorithm::kNegativeInfinity, 0.0f};
      max = fmaxf(max, states[i].max);
    }
    max = warp_max(max);
    const float offset = algorithm::softmax_offset(max);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kLaneSplits; ++i) {
      weights[i] = exp2f((states[i].max - offset) * factor_log2);
      sum += weights[i] * states[i].sum;
    }
    return {max, warp_sum(sum)};
  }

  /// sum weight * out over the splits, in their order. All lanes call it.
  FOVEAL_DEVICE float2 merge_out(const float (&weights)[kLaneSplits], int column) const {
    float2 sum{0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kLaneSplits; ++i) {
      const int end = min_of(count - 32 * i, 32);
#pragma unroll 4
      for (int from = 0; from < end; ++from) {
        const float weight = __shfl_sync(~0u, weights[i], from);
        if (column >= partials.ld) continue;
        const std::int64_t row = first + (32 * i + from) * stride;
        const auto part =
            *reinterpret_cast<const float2*>(partials.out + row * partials.ld + column);
        sum.x += weight * part.x;
        sum.y += weight * part.y;
      }
    }
    return sum;
  }
};

template <class Element>
FOVEAL_DEVICE void combine_row(const ForwardArgs& args, const ForwardWork& work, std::int32_t r) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const ForwardSchedule& schedule = args.schedule;
  const std::int64_t first_row =
      static_cast<std::int64_t>(work.tile) * schedule.num_splits * schedule.tile_m;
  const SplitRows splits{args.partials, first_row + (r - work.row_min), schedule.tile_m,
                         schedule.num_splits};
  float weights[kLaneSplits];
  const FinishedRow finished = finish_row(args, work, args.attention.dropout.load(), r,
                                          splits.merge_states(args.factor_log2(), weights));
  const std::int64_t offset = work.offset(args.attention.out.strides, r);
  for (int first = 0; first < args.attention.headdim_v; first += 32 * kLaneColumns) {
    const int column = first + kLaneColumns * lane;
    const float2 value = splits.merge_out(weights, column);
    store_out<Element>(args, offset, column, finished.out(value.x), finished.out(value.y));
  }
  if (lane == 0) store_lse(args, work, r, finished.lse);
}

FOVEAL_HOST_DEVICE constexpr std::int32_t blocks_a_tile(const ForwardSchedule& schedule) {
  return ceil_div(schedule.tile_m, kCombineRows);
}

__global__ void __launch_bounds__(32 * kCombineRows, kCombineBlocks)
    portable_fwd_combine(const __grid_constant__ ForwardArgs args) {
  const auto block = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t blocks = blocks_a_tile(args.schedule);
  ForwardWork work;
  if (!find_work(args.attention, args.schedule, 1, block / blocks, work)) return;
  const auto warp = static_cast<std::int32_t>(threadIdx.x) / 32;
  const std::int32_t r = work.row_min + block % blocks * kCombineRows + warp;
  if (r >= work.row_max) return;
  switch (args.attention.out_dtype) {
    case DType::kFloat16: return combine_row<__half>(args, work, r);
    case DType::kBFloat16: return combine_row<__nv_bfloat16>(args, work, r);
    default: return combine_row<float>(args, work, r);
  }
}

}  // namespace

Status launch_combine(const ForwardArgs& args, void* stream) {
  static SharedMemoryGrant grant;
  return launch_kernel(
      "portable_fwd_combine", portable_fwd_combine, args,
      {.num_blocks = args.schedule.num_tiles(args.attention.batch) * blocks_a_tile(args.schedule),
       .num_threads = 32 * kCombineRows,
       .stream = stream},
      grant);
}

}  // namespace foveal::cuda::portable
