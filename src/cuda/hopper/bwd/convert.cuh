// The pass after the products: dq from its fp32 sums.
#pragma once

#include <cstdint>

#include "cuda/hopper/bwd/args.hpp"
#include "cuda/hopper/bwd/tile_config.hpp"
#include "cuda/portable/bwd/epilogue.cuh"
#include "cuda/portable/bwd/held_tile.cuh"
#include "cuda/ptx/grid_order.cuh"

namespace foveal::cuda::hopper::bwd {

inline constexpr int kConvertThreads = 256;

/// dq = softmax_scale * sums of 8 columns of a row.
FOVEAL_DEVICE void convert_row(const GradientArgs& args, const cuda::bwd::OperandRows& dq, int row,
                               int column, const float (&sums)[8]) {
  const float scale = args.backward.attention.score.softmax_scale;
  const cuda::bwd::GradientInfo& info = args.backward.dq_info;
  const std::int64_t to = dq.offset + row * dq.row_stride + column * dq.dim_stride;
  if (args.dq_in_units) {
    if (column >= dq.columns) return;
    const bool half = info.dtype == DType::kFloat16;
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = scale * sums[2 * i];
      const float y = scale * sums[2 * i + 1];
      words[i] = half ? ptx::pack_pair<__half>(x, y) : ptx::pack_pair<__nv_bfloat16>(x, y);
    }
    auto* data = static_cast<std::uint16_t*>(const_cast<void*>(dq.data)) + to;
    *reinterpret_cast<uint4*>(data) = {words[0], words[1], words[2], words[3]};
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    cuda::bwd::store_pair(const_cast<void*>(dq.data), info, to + i * dq.dim_stride, dq.dim_stride,
                          dq.columns - column - i, scale * sums[i], scale * sums[i + 1]);
  }
}

/// A block a tile of rows and query head, rows in turn of all sequences as the products have them.
template <class Config>
static __global__ void __launch_bounds__(kConvertThreads)
    convert_dq_kernel(const __grid_constant__ GradientArgs args) {
  constexpr BackwardTile kTile = Config::tile;
  ptx::wait_for_grid_before();
  const cuda::bwd::BackwardArgs& backward = args.backward;
  const auto heads = static_cast<std::uint32_t>(backward.attention.nheads_q);
  const auto head = static_cast<int>(blockIdx.x % heads);
  const std::uint32_t index = blockIdx.x / heads;
  cuda::bwd::TileEntry entry;
  if (backward.rows.entries != nullptr) {
    if (index >= static_cast<std::uint32_t>(backward.rows.entries[0].b)) return;
    entry = backward.rows.entries[1 + index];
  } else {
    const auto blocks = static_cast<std::uint32_t>(args.row_blocks);
    entry = {static_cast<std::int32_t>(index / blocks), static_cast<std::int32_t>(index % blocks)};
  }
  const cuda::bwd::HeldTile tile =
      cuda::bwd::tile_of_entry<cuda::bwd::Side::kRows, kTile.m>(backward, entry, head);
  const cuda::bwd::OperandRows dq =
      cuda::bwd::query_rows(backward.dq, {}, backward.attention.headdim, tile.sequence, tile.head);
  const int first_tile = backward.rows.entries != nullptr
                             ? packed_row_tile(kTile, tile.sequence.q_begin, entry.b)
                             : entry.b * args.row_blocks;
  const std::int64_t sums_tile =
      static_cast<std::int64_t>(head) * args.row_tiles + first_tile + entry.block;
  const float* sums = backward.dq_sums + sums_tile * kTile.dq_floats();
  // A thread has 8 columns of the rows r and r + 8: four times four floats that lie side by side.
  for (int item = static_cast<int>(threadIdx.x); item < kTile.dq_floats() / 16;
       item += kConvertThreads) {
    const int column = item % (kTile.d / 8) * 8;
    const int pair = item / (kTile.d / 8);
    const int row = pair / 8 * 16 + pair % 8;
    const auto* from = reinterpret_cast<const float4*>(sums + dq_place(kTile, row, column));
    float upper[8];
    float lower[8];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float4 four = from[t];
      upper[2 * t] = four.x;
      upper[2 * t + 1] = four.y;
      lower[2 * t] = four.z;
      lower[2 * t + 1] = four.w;
    }
    if (tile.stored.contains(tile.first + row))
      convert_row(args, dq, tile.first + row, column, upper);
    if (tile.stored.contains(tile.first + row + 8)) {
      convert_row(args, dq, tile.first + row + 8, column, lower);
    }
  }
}

}  // namespace foveal::cuda::hopper::bwd
