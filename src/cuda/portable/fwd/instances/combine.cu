// Merges the partial results of a tile's splits.
#include "algorithm/split_merge.hpp"
#include "cuda/portable/fwd/epilogue.cuh"
#include "cuda/portable/fwd/launch.hpp"
#include "cuda/runtime/launch_kernel.hpp"

namespace foveal::cuda::portable {
namespace {

constexpr int kCombineWarps = 4;
/// Columns that a lane merges at a time: two adjacent ones.
constexpr int kLaneColumns = 2;

/// Columns [column, column + 2) of a row over all splits, in their order. A split without a key for
/// the row has nothing to add.
FOVEAL_DEVICE float2 merge_columns(const ForwardArgs& args, std::int64_t first_row, int column,
                                   float& lse) {
  const std::int64_t rows_a_split = args.schedule.tile_m;
  float2 sum{0.0f, 0.0f};
  lse = algorithm::kNegativeInfinity;
  for (int split = 0; split < args.schedule.num_splits; ++split) {
    const std::int64_t row = first_row + split * rows_a_split;
    const float split_lse = args.partials.lse[row];
    if (split_lse == algorithm::kNegativeInfinity) continue;
    const algorithm::MergeWeights weights = algorithm::merge_weights(lse, split_lse);
    const auto part =
        *reinterpret_cast<const float2*>(args.partials.out + row * args.partials.ld + column);
    sum.x = weights.weight_a * sum.x + weights.weight_b * part.x;
    sum.y = weights.weight_a * sum.y + weights.weight_b * part.y;
    lse = weights.lse;
  }
  return sum;
}

template <class Element>
FOVEAL_DEVICE void combine_row(const ForwardArgs& args, const ForwardWork& work, std::int32_t r) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t first_row =
      static_cast<std::int64_t>(work.tile) * args.schedule.num_splits * args.schedule.tile_m +
      (r - work.row_min);
  const std::int64_t offset = work.offset(args.attention.out.strides, r);
  for (int column = kLaneColumns * lane; column < args.attention.headdim_v;
       column += 32 * kLaneColumns) {
    float lse;
    const float2 value = merge_columns(args, first_row, column, lse);
    store_out<Element>(args, offset, column, value.x, value.y);
    if (column == 0) store_lse(args, work, r, lse);
  }
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
