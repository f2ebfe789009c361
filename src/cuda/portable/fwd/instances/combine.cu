// Merges the partial results of a tile's splits.
#include "algorithm/online_softmax.hpp"
#include "cuda/portable/fwd/epilogue.cuh"
#include "cuda/portable/fwd/launch.hpp"
#include "cuda/runtime/launch_kernel.hpp"

namespace foveal::cuda::portable {
namespace {

constexpr int kCombineWarps = 4;
/// Columns that a lane merges at a time: two adjacent ones.
constexpr int kLaneColumns = 2;

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

/// The partial results of one row: split s lies s * stride rows after the first.
struct SplitRows {
  const ForwardPartials& partials;
  std::int64_t first;
  std::int64_t stride;
  int count;

  FOVEAL_DEVICE float lse(int split) const { return partials.lse[first + split * stride]; }
  FOVEAL_DEVICE float2 out(int split, int column) const {
    const std::int64_t row = first + split * stride;
    return *reinterpret_cast<const float2*>(partials.out + row * partials.ld + column);
  }

  /// log sum exp(lse) over the splits, by a warp; -inf when none has a key for the row.
  FOVEAL_DEVICE float merged_lse() const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float max = algorithm::kNegativeInfinity;
    for (int split = lane; split < count; split += 32) max = fmaxf(max, lse(split));
    max = warp_max(max);
    if (max == algorithm::kNegativeInfinity) return max;
    float sum = 0.0f;
    for (int split = lane; split < count; split += 32) sum += expf(lse(split) - max);
    return max + logf(warp_sum(sum));
  }

  /// sum exp(lse of split - lse) * out of split, in the order of the splits.
  FOVEAL_DEVICE float2 merged_out(float lse_of_row, int column) const {
    float2 sum{0.0f, 0.0f};
    for (int split = 0; split < count; ++split) {
      const float split_lse = lse(split);
      // A split without a key for the row adds nothing, also where no other has one.
      if (split_lse == algorithm::kNegativeInfinity) continue;
      const float weight = expf(split_lse - lse_of_row);
      const float2 part = out(split, column);
      sum.x += weight * part.x;
      sum.y += weight * part.y;
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
  const float lse = splits.merged_lse();
  const std::int64_t offset = work.offset(args.attention.out.strides, r);
  for (int column = kLaneColumns * lane; column < args.attention.headdim_v;
       column += 32 * kLaneColumns) {
    const float2 value = splits.merged_out(lse, column);
    store_out<Element>(args, offset, column, value.x, value.y);
  }
  if (lane == 0) store_lse(args, work, r, lse);
}

/// One block a tile; a warp takes every kCombineWarps-th row.
__global__ void __launch_bounds__(32 * kCombineWarps)
    portable_fwd_combine(const __grid_constant__ ForwardArgs args) {
  ForwardWork work;
  if (!find_work(args.attention, args.schedule, 1, static_cast<std::int32_t>(blockIdx.x), work)) {
    return;
  }
  const auto warp = static_cast<std::int32_t>(threadIdx.x) / 32;
  for (std::int32_t r = work.row_min + warp; r < work.row_max; r += kCombineWarps) {
    switch (args.attention.out_dtype) {
      case DType::kFloat16: combine_row<__half>(args, work, r); break;
      case DType::kBFloat16: combine_row<__nv_bfloat16>(args, work, r); break;
      default: combine_row<float>(args, work, r);
    }
  }
}

}  // namespace

Status launch_combine(const ForwardArgs& args, void* stream) {
  static SharedMemoryGrant grant;
  return launch_kernel("portable_fwd_combine", portable_fwd_combine, args,
                       {.num_blocks = args.schedule.num_tiles(args.attention.batch),
                        .num_threads = 32 * kCombineWarps,
                        .stream = stream},
                       grant);
}

}  // namespace foveal::cuda::portable
