// The pass after the products: dq from its fp32 sums.
#pragma once

#include <cstdint>

#include "core/integer.hpp"
#include "cuda/hopper/bwd/args.hpp"
#include "cuda/hopper/bwd/epilogue.cuh"
#include "cuda/hopper/bwd/tile_config.hpp"
#include "cuda/hopper/bwd/work.cuh"
#include "cuda/portable/bwd/epilogue.cuh"
#include "cuda/portable/bwd/held_tile.cuh"
#include "cuda/ptx/grid_order.cuh"
#include "cuda/ptx/memory.cuh"

namespace foveal::cuda::hopper::bwd {

inline constexpr int kConvertThreads = 256;
/// Blocks of a multiprocessor: three with pieces of 48 columns, whose threads may take more
/// registers; four have not been timed.
constexpr int convert_blocks(const BackwardTile& tile) { return tile.d % 64 == 0 ? 4 : 3; }
/// Loads of a count, a microsecond each, before a block waits for the whole launch of the products.
inline constexpr int kConvertPolls = 1000;

/// A tile of rows of a query head, and its fp32 sums.
struct SumsTile {
  cuda::bwd::HeldTile tile;
  std::int64_t index = 0;  ///< Among the sums.
  int additions = 0;       ///< By tiles of keys; 0 where the rows see nothing.
};

/// The tile that a block has, in the order in which the products end with tiles of rows; none is
/// present beyond what packed sequences have.
template <class Config>
FOVEAL_DEVICE SumsTile find_sums_tile(const GradientArgs& args, std::uint32_t index) {
  constexpr BackwardTile kTile = Config::tile;
  const cuda::bwd::BackwardArgs& backward = args.backward;
  const int heads = backward.attention.nheads_q;
  const bool packed = backward.rows.entries != nullptr;
  const int pairs = packed ? heads : heads * backward.attention.batch;
  const bool packed_k = backward.keys.entries != nullptr;
  const KeyTileOrder order =
      row_tile_order(args.order, packed ? args.row_tiles : args.row_blocks, pairs,
                     backward.attention.qhead_per_khead, packed == packed_k);
  const KeyTilePlace place = row_tile_place(order, packed, index);
  cuda::bwd::TileEntry entry{place.pair / heads, place.block};
  if (packed) {
    if (place.block >= backward.rows.entries[0].b) return {};
    entry = backward.rows.entries[1 + place.block];
  }
  const int head = place.pair % heads;
  SumsTile found;
  found.tile = cuda::bwd::tile_of_entry<cuda::bwd::Side::kRows, kTile.m>(backward, entry, head);
  const int first_tile = packed ? packed_row_tile(kTile, found.tile.sequence.q_begin, entry.b)
                                : entry.b * args.row_blocks;
  found.index = static_cast<std::int64_t>(head) * args.row_tiles + first_tile + entry.block;
  const auto lengths =
      algorithm::basic_seqlen_info<std::int32_t>(backward.attention.lengths, entry.b);
  const algorithm::BasicMask<std::int32_t> mask{lengths.seqlen_q,
                                                lengths.seqlen_k,
                                                {narrow(backward.attention.score.window.left),
                                                 narrow(backward.attention.score.window.right)}};
  found.additions = dq_additions(kTile, mask, lengths.leftpad_k, found.tile.first);
  return found;
}

/// Waits until the products have made so many additions to tile `index` of the sums. All threads
/// call it.
FOVEAL_DEVICE void wait_for_additions(const GradientArgs& args, std::int64_t index, int count) {
  if (threadIdx.x == 0) {
    const std::uint64_t* additions = (args.turns != nullptr ? args.turns : args.additions) + index;
    int poll = 0;
    while (static_cast<std::uint32_t>(ptx::load_acquire(additions)) !=
           static_cast<std::uint32_t>(count)) {
      if (++poll == kConvertPolls) {
        ptx::wait_for_grid_before();
        break;
      }
      __nanosleep(500);
    }
  }
  __syncthreads();
}

/// 16 rows of a piece, as a warp of a consumer has held them: of every 8 columns the lane's two of
/// row `row` and of row + 8.
struct PieceRows {
  int row;     ///< Of the sequence.
  int column;  ///< The first.
  bool stored[2];
};

template <int kEights>
FOVEAL_DEVICE void store_piece(const GradientArgs& args, const cuda::bwd::OperandRows& dq,
                               const PieceRows& at, const float4 (&sums)[kEights]) {
  const float scale = args.backward.attention.score.softmax_scale;
  const cuda::bwd::GradientInfo& info = args.backward.dq_info;
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  const bool half_type = info.dtype == DType::kFloat16;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = dq.offset + (at.row + 8 * half) * dq.row_stride;
    float2 values[round_up(kEights, 4)] = {};
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      values[j] = half == 0 ? float2{scale * sums[j].x, scale * sums[j].y}
                            : float2{scale * sums[j].z, scale * sums[j].w};
    }
    if (args.dq_in_units) {
#pragma unroll
      for (int j = 0; j < kEights; j += 4) {
        std::uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          words[i] = half_type ? ptx::pack_pair<__half>(values[j + i].x, values[j + i].y)
                               : ptx::pack_pair<__nv_bfloat16>(values[j + i].x, values[j + i].y);
        }
        transpose_quad(words);
        const int column = at.column + 8 * (j + lane % 4);
        if (!at.stored[half] || j + lane % 4 >= kEights || column >= dq.columns) continue;
        auto* to = static_cast<std::uint16_t*>(const_cast<void*>(dq.data)) + row + column;
        *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
      }
    } else if (at.stored[half]) {
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
        const int column = at.column + 8 * j + 2 * (lane % 4);
        cuda::bwd::store_pair(const_cast<void*>(dq.data), info, row + column * dq.dim_stride,
                              dq.dim_stride, dq.columns - column, values[j].x, values[j].y);
      }
    }
  }
}

/// A block a tile of rows and query head. Where additions are counted, a tile is converted as soon
/// as all have been made to it, while others are still being summed.
template <class Config>
static __global__ void __launch_bounds__(kConvertThreads, convert_blocks(Config::tile))
    convert_dq_kernel(const __grid_constant__ GradientArgs args) {
  constexpr BackwardTile kTile = Config::tile;
  constexpr int kUnits = kTile.m / 16 * kTile.dq_column_pieces();
  constexpr int kEights = kTile.dq_piece_columns() / 8;
  const cuda::bwd::BackwardArgs& backward = args.backward;
  if constexpr (kTile.is_wide()) ptx::wait_for_grid_before();
  const SumsTile sums = find_sums_tile<Config>(args, blockIdx.x);
  if (sums.tile.present) {
    const cuda::bwd::HeldTile& tile = sums.tile;
    const cuda::bwd::OperandRows dq = cuda::bwd::query_rows(
        backward.dq, {}, backward.attention.headdim, tile.sequence, tile.head);
    // As a flag it takes registers that headdim 192 has not.
    const std::int32_t summed_columns = sums.additions > 0 ? kTile.d : 0;
    if constexpr (!kTile.is_wide()) {
      if (summed_columns > 0) wait_for_additions(args, sums.index, sums.additions);
    }
    const auto lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
    for (int unit = static_cast<int>(threadIdx.x) / 32; unit < kUnits;
         unit += kConvertThreads / 32) {
      const int piece = unit / 4;
      const int row = piece / kTile.dq_column_pieces() * 64 + unit % 4 * 16 + lane / 4;
      const int column = piece % kTile.dq_column_pieces() * kTile.dq_piece_columns();
      const auto* from = reinterpret_cast<const float4*>(
          backward.dq_sums + sums.index * kTile.dq_floats() + dq_place(kTile, row, column));
      float4 values[kEights];
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
        const bool read = column + 8 * j < summed_columns;
        values[j] = read ? __ldcs(from + j * kGroupThreads + lane % 4) : float4{0, 0, 0, 0};
      }
      const PieceRows at{
          tile.first + row,
          column,
          {tile.stored.contains(tile.first + row), tile.stored.contains(tile.first + row + 8)}};
      store_piece(args, dq, at, values);
    }
  }
  // Whatever comes next in the stream may rely on the products too.
  if constexpr (!kTile.is_wide()) ptx::wait_for_grid_before();
}

}  // namespace foveal::cuda::hopper::bwd
