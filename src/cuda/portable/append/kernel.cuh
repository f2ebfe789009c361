// A block moves a few rows of k_new, v_new or q with all their heads, a step of a head a thread.
#pragma once

#include "algorithm/rotary.hpp"
#include "core/integer.hpp"
#include "cuda/portable/append/args.hpp"
#include "cuda/tile/elementwise.cuh"

namespace foveal::cuda::append {

/// One head of one row: elements from `from` on go to where `to` begins.
template <class Element>
struct HeadMove {
  const Element* from = nullptr;
  Element* to = nullptr;
  std::int64_t from_stride = 1;
  std::int64_t to_stride = 1;
  std::int64_t position = 0;
};

/// kWidth values of a table's row from pair `pair` on, as fp32.
template <int kWidth>
FOVEAL_DEVICE void load_table(const RotaryTables& rotary, const void* table,
                              const std::int64_t (&strides)[2], std::int64_t row, std::int32_t pair,
                              float (&values)[kWidth]) {
  const std::int64_t offset = row * strides[0] + pair * strides[1];
  if constexpr (kWidth > 1) {
    if (rotary.vectorised) return load_floats(rotary.dtype, table, offset, values);
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    float one[1];
    load_floats(rotary.dtype, table, offset + i * strides[1], one);
    values[i] = one[0];
  }
}

/// Turns the kWidth pairs of two vectors. Halves: a pair has one element in each. Interleaved: its
/// elements lie side by side, first in one vector, then in the other.
template <bool kInterleaved, int kWidth, class Element>
FOVEAL_DEVICE void turn(Elements<Element, kWidth> (&vectors)[2], const float (&cos)[kWidth],
                        const float (&sin)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    // Where pair i lies among the 2 * kWidth elements; known when compiling, so that they stay in
    // registers.
    const int x = kInterleaved ? 2 * i : i;
    const int y = kInterleaved ? 2 * i + 1 : kWidth + i;
    Element& at_x = vectors[x / kWidth].at[x % kWidth];
    Element& at_y = vectors[y / kWidth].at[y % kWidth];
    const algorithm::RotatedPair turned =
        algorithm::rotate(to_float(at_x), to_float(at_y), cos[i], sin[i]);
    at_x = from_float<Element>(turned.first);
    at_y = from_float<Element>(turned.second);
  }
}

/// Turns kWidth pairs from `pair` on.
template <int kWidth, class Element>
FOVEAL_DEVICE void rotate_pairs(const RotaryTables& rotary, std::int32_t rotary_dim,
                                std::int32_t pair, const HeadMove<Element>& move) {
  const std::int32_t first = rotary.interleaved ? 2 * pair : pair;
  const std::int32_t second = rotary.interleaved ? first + kWidth : pair + rotary_dim / 2;
  float cos[kWidth];
  float sin[kWidth];
  const std::int64_t row = min_of(move.position, rotary.positions - 1);
  load_table(rotary, rotary.cos, rotary.cos_strides, row, pair, cos);
  load_table(rotary, rotary.sin, rotary.sin_strides, row, pair, sin);
  Elements<Element, kWidth> vectors[2] = {
      load_elements<Element, kWidth>(move.from + first * move.from_stride),
      load_elements<Element, kWidth>(move.from + second * move.from_stride)};
  if (rotary.interleaved) {
    turn<true>(vectors, cos, sin);
  } else {
    turn<false>(vectors, cos, sin);
  }
  store_elements(move.to + first * move.to_stride, vectors[0]);
  store_elements(move.to + second * move.to_stride, vectors[1]);
}

/// Step `step` of a head. Elements that do not turn are moved bit for bit.
template <int kWidth, class Element>
FOVEAL_DEVICE void move_step(const RotaryTables& rotary, const HeadSteps& steps, std::int32_t step,
                             const HeadMove<Element>& move) {
  const std::int32_t turning = steps.rotary_dim / 2 / kWidth;
  if (step < turning) return rotate_pairs<kWidth>(rotary, steps.rotary_dim, step * kWidth, move);
  const std::int32_t d = steps.rotary_dim + (step - turning) * kWidth;
  const auto elements = load_elements<Element, kWidth>(move.from + d * move.from_stride);
  store_elements(move.to + d * move.to_stride, elements);
}

/// The same for a row of q that is not in use: 0.
template <int kWidth, class Element>
FOVEAL_DEVICE void clear_step(const HeadSteps& steps, std::int32_t step,
                              const HeadMove<Element>& move) {
  const Elements<Element, kWidth> zeros{};
  const std::int32_t turning = steps.rotary_dim / 2 / kWidth;
  if (step < turning) {  // as many elements as rotate_pairs writes
    store_elements(move.to + 2 * step * kWidth * move.to_stride, zeros);
    store_elements(move.to + (2 * step + 1) * kWidth * move.to_stride, zeros);
  } else {
    const std::int32_t d = steps.rotary_dim + (step - turning) * kWidth;
    store_elements(move.to + d * move.to_stride, zeros);
  }
}

/// New token `row` of k or v, head `head`, into its slot of the cache; tokens that the cache has no
/// room for are dropped.
template <int kWidth, class Element>
FOVEAL_DEVICE void append_step(const AppendArgs& args, const AppendSide& side, std::int64_t row,
                               std::int32_t head, std::int32_t step) {
  const Quotient place = divide(row, args.seqlen_new);
  const std::int64_t b = place.quotient;
  const algorithm::SeqlenInfo info = algorithm::seqlen_info(args.lengths, b);
  const std::int64_t slot = info.seqlen_cache + place.remainder;
  if (slot >= info.capacity_k) return;
  const std::int64_t cache_row =
      args.cache_batch_idx == nullptr
          ? b
          : clamp_to<std::int64_t>(args.cache_batch_idx[b], 0, args.cache_rows - 1);
  const algorithm::KvLocator locator =
      algorithm::kv_locator(side.to_layout, b, cache_row, head, info.k_begin);
  const HeadMove<Element> move{
      static_cast<const Element*>(side.from) + side.from_strides.offset(b, place.remainder, head),
      static_cast<Element*>(side.to) + locator.row_offset(slot), side.from_strides.dim,
      side.to_layout.dim_stride,
      algorithm::rotary_position(info.seqlen_cache, place.remainder, true)};
  move_step<kWidth>(args.rotary, side.steps, step, move);
}

/// A row of q: its sequence, and its number there; false for rows of no sequence.
struct QueryRow {
  std::int64_t b;
  std::int64_t i;
  algorithm::SeqlenInfo info;
};
FOVEAL_DEVICE bool find_query_row(const AppendArgs& args, std::int64_t row, QueryRow& found) {
  if (args.lengths.cu_seqlens_q == nullptr) {
    const Quotient place = divide(row, args.lengths.rows_q);
    found = {place.quotient, place.remainder, algorithm::seqlen_info(args.lengths, place.quotient)};
    return true;
  }
  // The last sequence that begins at or before the row.
  std::int32_t low = 0;
  std::int32_t high = args.batch;
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    (args.lengths.cu_seqlens_q[middle] <= row ? low : high) = middle;
  }
  found.b = low;
  found.info = algorithm::seqlen_info(args.lengths, low);
  found.i = row - found.info.q_begin;
  return found.i >= 0 && found.i < found.info.capacity_q;
}

template <int kWidth, class Element>
FOVEAL_DEVICE void query_step(const AppendArgs& args, const AppendSide& side, std::int64_t row,
                              std::int32_t head, std::int32_t step) {
  QueryRow query;
  if (args.batch == 0 || !find_query_row(args, row, query)) return;
  const std::int64_t i = query.info.q_begin + query.i;
  const HeadMove<Element> move{
      static_cast<const Element*>(side.from) + side.from_strides.offset(query.b, i, head),
      static_cast<Element*>(side.to) + side.to_strides.offset(query.b, i, head),
      side.from_strides.dim, side.to_strides.dim,
      algorithm::rotary_position(query.info.seqlen_cache, query.i, args.q_advances)};
  if (query.i < query.info.seqlen_q) {
    move_step<kWidth>(args.rotary, side.steps, step, move);
  } else {
    clear_step<kWidth>(side.steps, step, move);
  }
}

/// The rows of block `block` of a side.
template <int kWidth, class Element, bool kQueries>
FOVEAL_DEVICE void move_rows(const AppendArgs& args, const AppendSide& side, std::int64_t block) {
  const std::int64_t first_row = block * side.rows_per_block;
  const auto rows = static_cast<std::int32_t>(
      min_of<std::int64_t>(side.rows_per_block, side.num_rows - first_row));
  const std::int32_t steps = side.steps.count(kWidth);
  for (auto index = static_cast<std::int32_t>(threadIdx.x); index < rows * side.nheads * steps;
       index += kThreads) {
    const std::int32_t step = index % steps;
    const std::int32_t head = index / steps % side.nheads;
    const std::int64_t row = first_row + index / steps / side.nheads;
    if constexpr (kQueries) {
      query_step<kWidth, Element>(args, side, row, head, step);
    } else {
      append_step<kWidth, Element>(args, side, row, head, step);
    }
  }
}

template <class Element, bool kQueries>
FOVEAL_DEVICE void move_rows(const AppendArgs& args, const AppendSide& side, std::int64_t block) {
  constexpr int kVector = 16 / sizeof(Element);
  if (side.steps.vectorised) {
    move_rows<kVector, Element, kQueries>(args, side, block);
  } else {
    move_rows<1, Element, kQueries>(args, side, block);
  }
}

namespace {

template <class Element>
__global__ void __launch_bounds__(kThreads) append_kernel(const __grid_constant__ AppendArgs args) {
  std::int64_t block = blockIdx.x;
  if (block < args.k.num_blocks) return move_rows<Element, false>(args, args.k, block);
  block -= args.k.num_blocks;
  if (block < args.v.num_blocks) return move_rows<Element, false>(args, args.v, block);
  move_rows<Element, true>(args, args.q, block - args.v.num_blocks);
}

}  // namespace
}  // namespace foveal::cuda::append
