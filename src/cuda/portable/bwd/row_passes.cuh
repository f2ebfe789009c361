// The passes of the backward over single rows: lse and delta before the products, dq's sums and
// dsinks after them, and the list of tiles of packed sequences.
#pragma once

#include <cstdint>
#include <type_traits>

#include "algorithm/online_softmax.hpp"
#include "core/host_device.hpp"
#include "cuda/portable/bwd/args.hpp"
#include "cuda/portable/bwd/epilogue.cuh"
#include "cuda/portable/bwd/score_gradients.cuh"
#include "cuda/tile/elementwise.cuh"

namespace foveal::cuda::bwd {

inline constexpr int kRowThreads = 256;
/// Blocks of a pass over all rows, at most: threads then go through more than one item.
inline constexpr std::int64_t kMaxRowBlocks = std::int64_t{1} << 20;

/// Where a row of all sequences lies: dense rows count through the batch.
struct RowPlace {
  std::int64_t b = 0;
  std::int64_t i = 0;
};
FOVEAL_DEVICE RowPlace row_place(const BackwardArgs& args, std::int64_t row) {
  if (args.rows_per_batch == 0) return {0, row};
  const Quotient place = divide(row, args.rows_per_batch);
  return {place.quotient, place.remainder};
}

/// A value of dout as the products have it: in q's dtype. ds is then that of the rounded dout,
/// where a difference between dp and delta would not cancel.
FOVEAL_DEVICE float as_multiplied(DType dtype, float value) {
  switch (dtype) {
    case DType::kFloat16: return to_float(from_float<__half>(value));
    case DType::kBFloat16: return to_float(from_float<__nv_bfloat16>(value));
    default: return value;
  }
}

/// A row and head as one of a warp's groups of lanes has it.
struct StatsRow {
  RowPlace at;
  std::int64_t row = 0;
  int head = 0;
};

/// What the lane adds to the dot product of a row of dout and of out; the same for all layouts.
FOVEAL_DEVICE float lane_dot(const StatsArgs& stats_args, const StatsRow& of) {
  const BackwardArgs& args = stats_args.backward;
  const AttentionArgs& a = args.attention;
  const DType dtype = args.dout_elements.dtype;
  const std::int64_t out_row = a.out.strides.offset(of.at.b, of.at.i, of.head);
  const std::int64_t dout_row = args.dout.strides.offset(of.at.b, of.at.i, of.head);
  const int first = 8 * static_cast<int>(threadIdx.x & (stats_args.lanes - 1));
  float sum = 0.0f;
#pragma unroll 1
  for (int column = first; column < a.headdim_v; column += 8 * stats_args.lanes) {
    float out[8];
    float dout[8];
    if (stats_args.whole_units) {
      load_floats(a.out_dtype, a.out.data, out_row + column, out);
      load_floats(dtype, args.dout.data, dout_row + column, dout);
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const bool there = column + e < a.headdim_v;
        const std::int64_t from_out = out_row + (column + e) * a.out.strides.dim;
        const std::int64_t from_dout = dout_row + (column + e) * args.dout.strides.dim;
        out[e] = there ? load_as_float(a.out_dtype, a.out.data, from_out) : 0.0f;
        dout[e] = there ? load_as_float(dtype, args.dout.data, from_dout) : 0.0f;
      }
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) sum = fmaf(out[e], as_multiplied(args.dtype, dout[e]), sum);
  }
  return sum;
}

/// A row that saw nothing has lse = +inf here: its weights become 0.
FOVEAL_DEVICE float2 make_stats(float lse, float delta) {
  const bool saw_nothing = lse == algorithm::kNegativeInfinity;
  return {saw_nothing ? -algorithm::kNegativeInfinity : lse * kLog2e, saw_nothing ? 0.0f : delta};
}

/// Rows, one after the other, that a group of lanes has at the same time: of each its loads are
/// under way before any is used.
inline constexpr int kStatsRows = 4;

/// The two elements of a word, exactly. (Arrays of bf16 take a register an element.)
template <class Element>
FOVEAL_DEVICE float2 to_floats(std::uint32_t pair) {
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  } else {
    return {__half2float(__ushort_as_half(static_cast<unsigned short>(pair & 0xffffu))),
            __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16)))};
  }
}

/// sum + the dot product of two times 8 elements.
template <class Element>
FOVEAL_DEVICE float dot_eight(const uint4& x, const uint4& y, float sum) {
  const std::uint32_t left[4] = {x.x, x.y, x.z, x.w};
  const std::uint32_t right[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 a = to_floats<Element>(left[i]);
    const float2 b = to_floats<Element>(right[i]);
    sum = fmaf(a.y, b.y, fmaf(a.x, b.x, sum));
  }
  return sum;
}

/// Where rows of one head lie, one after the other, through the end of a sequence of dense ones.
template <class Element>
class RowWalk {
 public:
  FOVEAL_DEVICE RowWalk(const BackwardArgs& args, const void* data, const RowStrides& strides,
                        const RowPlace& at, int head)
      : row_(static_cast<const Element*>(data) + strides.offset(at.b, at.i, head)),
        strides_(strides),
        left_(args.rows_per_batch == 0 ? kStatsRows : args.rows_per_batch - at.i),
        rows_(args.rows_per_batch) {}

  FOVEAL_DEVICE const Element* row() const { return row_; }
  /// At most one sequence ends among kStatsRows rows.
  FOVEAL_DEVICE void advance(int rows) {
    row_ += rows * strides_.row;
    left_ -= rows;
    if (left_ <= 0 && left_ > -rows) row_ += strides_.batch - rows_ * strides_.row;
  }

 private:
  const Element* row_;
  const RowStrides& strides_;
  std::int64_t left_;
  std::int64_t rows_;
};

/// compute_stats() where StatsArgs::by_fours, of Element: a group of lanes a head and kStatsRows
/// rows. A warp reads heads of one row side by side.
template <class Element>
FOVEAL_DEVICE void compute_stats_by_fours(const StatsArgs& stats_args) {
  const BackwardArgs& args = stats_args.backward;
  const AttentionArgs& a = args.attention;
  const int lanes = stats_args.lanes;
  const int groups = 32 / lanes;
  const auto lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const std::int32_t parts = ceil_div(a.nheads_q, groups);  // of a row
  const std::int64_t count = ceil_div<std::int64_t>(args.total_q, kStatsRows) * parts;
  const std::int64_t step = gridDim.x * std::int64_t{kRowThreads / 32};
  std::int64_t item = blockIdx.x * std::int64_t{kRowThreads / 32} + warp_of_block();
#pragma unroll 1
  for (; item < count; item += step) {
    const Quotient place = divide(item, parts);
    const std::int64_t first = place.quotient * kStatsRows;
    const auto head =
        static_cast<int>(place.remainder) * groups + static_cast<int>(threadIdx.x) % 32 / lanes;
    const auto rows = static_cast<int>(
        head < a.nheads_q ? min_of<std::int64_t>(args.total_q - first, kStatsRows) : 0);
    const RowPlace at = row_place(args, first);
    const bool stores = lane < rows;
    const auto own_value = [&](const RowValues& of) {
      RowWalk<float> walk(args, of.data, of.strides, at, head);
      if (lane > 0) walk.advance(lane);
      return *walk.row();
    };
    const float lse = stores ? own_value(a.lse) : 0.0f;
    float sums[kStatsRows] = {};
#pragma unroll 1
    for (int column = 8 * lane; column < a.headdim_v; column += 8 * lanes) {
      RowWalk<Element> out(args, a.out.data, a.out.strides, at, head);
      RowWalk<Element> dout(args, args.dout.data, args.dout.strides, at, head);
      uint4 x[kStatsRows] = {};
      uint4 y[kStatsRows] = {};
#pragma unroll
      for (int r = 0; r < kStatsRows; ++r) {
        if (r < rows) {
          x[r] = *reinterpret_cast<const uint4*>(out.row() + column);
          y[r] = *reinterpret_cast<const uint4*>(dout.row() + column);
        }
        out.advance(1);
        dout.advance(1);
      }
#pragma unroll
      for (int r = 0; r < kStatsRows; ++r) sums[r] = dot_eight<Element>(x[r], y[r], sums[r]);
    }
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (float& sum : sums) sum += __shfl_xor_sync(~0u, sum, distance);
    }
    if (!stores) continue;
    float delta = sums[0];
#pragma unroll
    for (int r = 1; r < kStatsRows; ++r) delta = lane == r ? sums[r] : delta;
    if (args.dlse.data != nullptr) delta -= own_value(args.dlse);
    args.stats[head * args.total_q + first + lane] = make_stats(lse, delta);
  }
}

/// The same of any layout, a group of lanes a row and head. Heads of one row lie side by side in
/// most layouts.
FOVEAL_DEVICE void compute_stats_by_ones(const StatsArgs& stats_args) {
  const BackwardArgs& args = stats_args.backward;
  const AttentionArgs& a = args.attention;
  const std::int64_t count = args.total_q * a.nheads_q;
  const int lanes = stats_args.lanes;
  const std::int64_t thread = blockIdx.x * std::int64_t{kRowThreads} + threadIdx.x;
  const std::int64_t step = gridDim.x * std::int64_t{kRowThreads} / lanes;
  const int groups = 32 / lanes;
  std::int64_t item = thread / lanes;
  for (std::int64_t first = thread / 32 * groups; first < count; first += step, item += step) {
    StatsRow of;
    float sum = 0.0f;
    float lse = 0.0f;
    if (item < count) {
      const Quotient place = divide(item, a.nheads_q);
      of = {row_place(args, place.quotient), place.quotient, static_cast<int>(place.remainder)};
      lse = a.lse.data[a.lse.strides.offset(of.at.b, of.at.i, of.head)];
      sum = lane_dot(stats_args, of);
    }
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(~0u, sum, distance);
    }
    if (item >= count || (threadIdx.x & (lanes - 1)) != 0) continue;
    if (args.dlse.data != nullptr) {
      sum -= args.dlse.data[args.dlse.strides.offset(of.at.b, of.at.i, of.head)];
    }
    args.stats[of.head * args.total_q + of.row] = make_stats(lse, sum);
  }
}

/// stats = (lse in log2 units, delta - dlse). kUnits is StatsArgs::units(). All threads of all
/// blocks call it, of kRowThreads each.
template <DType kUnits>
FOVEAL_DEVICE void compute_stats(const StatsArgs& args) {
  if constexpr (kUnits == DType::kNone) {
    compute_stats_by_ones(args);
  } else {
    compute_stats_by_fours<ElementOf<kUnits>>(args);
  }
}

/// Blocks of a multiprocessor, so that enough loads are under way: 64 registers a thread, which are
/// too few on sm_120.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
inline constexpr int kStatsBlocks = 3;
#else
inline constexpr int kStatsBlocks = 4;
#endif

template <DType kUnits>
static __global__ void __launch_bounds__(kRowThreads, kStatsBlocks)
    stats_kernel(const __grid_constant__ StatsArgs args) {
  compute_stats<kUnits>(args);
}

/// dq = softmax_scale * sums of 16 columns of a row and head.
FOVEAL_DEVICE void convert_dq(const BackwardArgs& args, std::int64_t head_row, int first) {
  const AttentionArgs& a = args.attention;
  const Quotient row = divide(head_row, args.total_q);
  const RowPlace at = row_place(args, row.remainder);
  float sums[16];
  load_floats(DType::kFloat32, args.dq_sums, head_row * args.dq_ld + first, sums);
  const std::int64_t to =
      args.dq.strides.offset(at.b, at.i, row.quotient) + first * args.dq.strides.dim;
  float values[16];
#pragma unroll
  for (int column = 0; column < 16; ++column) {
    values[column] = a.score.softmax_scale * sums[dq_place(column)];
  }
  if (args.dq_info.whole_units && first + 16 <= a.headdim) {
    store_floats(args.dq_info.dtype, args.dq.data, to, values);
    return;
  }
#pragma unroll
  for (int column = 0; column < 16; column += 2) {
    store_pair(args.dq.data, args.dq_info, to + column * args.dq.strides.dim, args.dq.strides.dim,
               a.headdim - first - column, values[column], values[column + 1]);
  }
}

static __global__ void __launch_bounds__(kRowThreads)
    convert_dq_kernel(const __grid_constant__ BackwardArgs args) {
  const int groups = args.dq_ld / 16;
  const std::int64_t count = args.total_q * args.attention.nheads_q * groups;
  const std::int64_t step = gridDim.x * std::int64_t{kRowThreads};
  for (std::int64_t item = blockIdx.x * std::int64_t{kRowThreads} + threadIdx.x; item < count;
       item += step) {
    const Quotient head_row = divide(item, groups);
    convert_dq(args, head_row.quotient, static_cast<int>(head_row.remainder) * 16);
  }
}

struct DsinksArgs {
  BackwardArgs backward;
  float* dsinks = nullptr;
  std::int64_t stride = 0;
};

/// dsink = -sum of exp(sink - lse) (delta - dlse) over the rows in use, a block a head, in double:
/// one small term a row.
static __global__ void __launch_bounds__(kRowThreads)
    dsinks_kernel(const __grid_constant__ DsinksArgs dsinks_args) {
  const BackwardArgs& args = dsinks_args.backward;
  const AttentionArgs& a = args.attention;
  const auto head = static_cast<int>(blockIdx.x);
  const float sink_log2 = a.sinks[head * a.sink_stride] * kLog2e;
  const auto thread = static_cast<int>(threadIdx.x);
  double sum = 0.0;
  for (int b = 0; b < a.batch; ++b) {
    const algorithm::SeqlenInfo lengths = algorithm::seqlen_info(a.lengths, b);
    const float2* stats = args.stats + head * args.total_q + args.row_index(b, lengths.q_begin);
    for (std::int64_t i = thread; i < lengths.seqlen_q; i += kRowThreads) {
      sum -= static_cast<double>(ptx::exp2_approx(sink_log2 - stats[i].x) * stats[i].y);
    }
  }
  __shared__ double sums[kRowThreads];
  sums[thread] = sum;
  __syncthreads();
  for (int half = kRowThreads / 2; half > 0; half /= 2) {
    if (thread < half) sums[thread] += sums[thread + half];
    __syncthreads();
  }
  if (thread == 0) dsinks_args.dsinks[head * dsinks_args.stride] = static_cast<float>(sums[0]);
}

/// entries[0].b = the number of tiles; entries[1 ...]: the sequences in turn, each with its longest
/// tiles first under a causal mask. All threads of one block call it.
FOVEAL_DEVICE void list_tiles(const ListArgs& args) {
  __shared__ int first_entry[kRowThreads];
  const auto thread = static_cast<int>(threadIdx.x);
  // Lengths that contradict one another have more tiles than there are entries, or numbers.
  const auto capped = [&](std::int64_t tiles) {
    return static_cast<int>(min_of<std::int64_t>(tiles, args.max_entries));
  };
  int listed = 0;
  for (int begin = 0; begin < args.batch; begin += kRowThreads) {
    const auto tiles_of_sequence = [&](int b) {
      if (b >= args.batch) return 0;
      const algorithm::SeqlenInfo info = algorithm::seqlen_info(args.lengths, b);
      const std::int64_t rows = args.side == Side::kKeys ? info.capacity_k : info.capacity_q;
      return capped(ceil_div<std::int64_t>(rows, args.held));
    };
    // Inclusive sums by doubling distances.
    int sum = tiles_of_sequence(begin + thread);
    for (int distance = 1; distance < kRowThreads; distance *= 2) {
      first_entry[thread] = sum;
      __syncthreads();
      if (thread >= distance) sum = capped(std::int64_t{sum} + first_entry[thread - distance]);
      __syncthreads();
    }
    first_entry[thread] = sum;
    __syncthreads();
    for (int s = warp_of_block(); s < kRowThreads; s += kRowThreads / 32) {
      const int from = s == 0 ? 0 : first_entry[s - 1];
      const int tiles = first_entry[s] - from;
      for (int t = lane_of_warp(); t < tiles; t += 32) {
        const std::int64_t entry = std::int64_t{listed} + from + t;
        if (entry >= args.max_entries) break;
        args.entries[1 + entry] = {begin + s, args.side == Side::kKeys ? t : tiles - 1 - t};
      }
    }
    listed = capped(std::int64_t{listed} + first_entry[kRowThreads - 1]);
    __syncthreads();
  }
  if (thread == 0) args.entries[0] = {listed, 0};
}

static __global__ void __launch_bounds__(kRowThreads)
    list_tiles_kernel(const __grid_constant__ ListArgs args) {
  list_tiles(args);
}

}  // namespace foveal::cuda::bwd
