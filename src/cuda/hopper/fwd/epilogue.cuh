// The end of a tile: sums of the lanes together, sink, division, out and lse.
#pragma once

#include <cstdint>

#include "algorithm/online_softmax.hpp"
#include "cuda/hopper/fwd/softmax.cuh"
#include "cuda/ptx/special_registers.cuh"
#include "cuda/tile/element.cuh"

namespace foveal::cuda::hopper {

/// What a finished row's accumulator is multiplied by, and its lse.
struct FinishedRow {
  float factor = 0.0f;  ///< 0: the row's out is 0, whatever the accumulator holds.
  float lse = algorithm::kNegativeInfinity;
};

/// Rows past seqused_q are left empty.
FOVEAL_DEVICE FinishedRow finish_row(const ForwardArgs& args, const WorkTile& work,
                                     std::int32_t row, float max_log2, float sum) {
  FinishedRow finished;
  if (row >= work.mask.seqlen_q) return finished;
  algorithm::SoftmaxState state{max_log2 * kLn2, sum};
  finished.factor = 1.0f;
  if (args.attention.sinks != nullptr) {
    const float sink = args.attention.sinks[work.head * args.attention.sink_stride];
    finished.factor = algorithm::fold_sink(state, sink);
  }
  finished.factor *= algorithm::inverse_row_sum(state.row_sum);
  finished.lse = algorithm::row_lse(state);
  return finished;
}

/// Four lanes have a row's columns 2 t, 2 t + 1 of four groups of eight, packed; afterwards lane t
/// has the whole of group t.
FOVEAL_DEVICE void gather_group(std::uint32_t (&w)[4]) {
  const unsigned thread = ptx::thread_index_anew();
  const bool odd = thread % 2 != 0;
  const bool upper = thread % 4 >= 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t got = __shfl_xor_sync(~0u, odd ? w[i] : w[i + 1], 1);
    (odd ? w[i] : w[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t got = __shfl_xor_sync(~0u, upper ? w[i] : w[i + 2], 2);
    (upper ? w[i] : w[i + 2]) = got;
  }
}

/// One row, from its element at `offset` on, in units of 16 bytes; `width` elements of it are
/// left. All lanes take part; `stored` says whether the row exists.
template <class Element, int kCount>
FOVEAL_DEVICE void store_units(const ForwardArgs& args, std::int64_t offset, int width, bool stored,
                               const float (&acc)[kCount], int half, float factor) {
  const int t = static_cast<int>(ptx::thread_index_anew() % 4);
  auto* to = static_cast<Element*>(args.attention.out.data) + offset + 8 * t;
  const int columns = width - 8 * t;
#pragma unroll
  for (int j = 0; j < kCount / 4; j += 4) {
    std::uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = acc[4 * (j + i) + 2 * half];
      const float y = acc[4 * (j + i) + 2 * half + 1];
      w[i] = factor == 0.0f ? 0u : ptx::pack_pair<Element>(x * factor, y * factor);
    }
    gather_group(w);
    if (stored && 8 * j < columns) {
      *reinterpret_cast<uint4*>(to + 8 * j) = {w[0], w[1], w[2], w[3]};
    }
  }
}

/// One row pair by pair, or element by element.
template <class OutElement, int kCount>
FOVEAL_DEVICE void store_pairs(const ForwardArgs& args, std::int64_t offset, int width,
                               const float (&acc)[kCount], int half, float factor) {
  struct alignas(2 * sizeof(OutElement)) Pair {
    OutElement x, y;
  };
  const int column = 2 * (static_cast<int>(ptx::thread_index_anew() % 4));
  const std::int64_t dim_stride = args.attention.out.strides.dim;
  auto* to = static_cast<OutElement*>(args.attention.out.data) + offset;
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float x = factor == 0.0f ? 0.0f : acc[4 * j + 2 * half] * factor;
    const float y = factor == 0.0f ? 0.0f : acc[4 * j + 2 * half + 1] * factor;
    const int c = column + 8 * j;
    if (args.out_in_pairs && c + 1 < width) {
      *reinterpret_cast<Pair*>(to + c) = {from_float<OutElement>(x), from_float<OutElement>(y)};
    } else {
      if (c < width) to[c * dim_stride] = from_float<OutElement>(x);
      if (c + 1 < width) to[(c + 1) * dim_stride] = from_float<OutElement>(y);
    }
  }
}

/// A thread's rows: `first` and first + 8, where they are below `end`.
struct ThreadRows {
  std::int32_t first;
  std::int32_t end;
};

/// The accumulators are of out's columns from
/// `first_column` on.
template <class Element, int kCount>
FOVEAL_DEVICE void store_tile(const ForwardArgs& args, const WorkTile& work,
                              const float (&acc)[kCount], const RowStates& state, ThreadRows rows,
                              int first_column = 0) {
  const int width = args.attention.headdim_v - first_column;
  const RowOperand& out = args.attention.out;
  const RowValues& lse = args.attention.lse;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int32_t r = rows.first + 8 * half;
    const bool stored = r < rows.end;
    const float sum = quad_sum(state.sum[half]);
    const FinishedRow finished = finish_row(args, work, r, state.max_log2[half], sum);
    const std::int64_t offset =
        out.strides.offset(work.b, work.q_begin + r, work.head) + first_column * out.strides.dim;
    if (args.out_whole_units) {
      store_units<Element>(args, offset, width, stored, acc, half, finished.factor);
    } else if (stored && args.attention.out_dtype == DType::kFloat32) {
      store_pairs<float>(args, offset, width, acc, half, finished.factor);
    } else if (stored) {
      store_pairs<Element>(args, offset, width, acc, half, finished.factor);
    }
    if (stored && first_column == 0 && lse.data != nullptr && ptx::thread_index_anew() % 4 == 0) {
      lse.data[lse.strides.offset(work.b, work.q_begin + r, work.head)] = finished.lse;
    }
  }
}

}  // namespace foveal::cuda::hopper
