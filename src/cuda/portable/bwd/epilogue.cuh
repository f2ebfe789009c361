// How sums leave the registers: gradients of the held rows, and dq by atomics.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/portable/bwd/held_tile.cuh"
#include "cuda/portable/bwd/products.cuh"
#include "cuda/ptx/reduction.cuh"

namespace foveal::cuda::bwd {

/// The tile's row and column of a warp's first sum.
struct WarpSums {
  int row = 0;
  int column = 0;
};

/// Two adjacent columns of a gradient's row.
FOVEAL_DEVICE void store_pair(void* data, const GradientInfo& info, std::int64_t offset,
                              std::int64_t dim_stride, int count, float left, float right) {
  if (info.in_pairs && count >= 2) {
    if (info.dtype == DType::kFloat32) {
      *reinterpret_cast<float2*>(static_cast<float*>(data) + offset) = {left, right};
    } else {
      const std::uint32_t pair = info.dtype == DType::kFloat16
                                     ? ptx::pack_pair<__half>(left, right)
                                     : ptx::pack_pair<__nv_bfloat16>(left, right);
      *reinterpret_cast<std::uint32_t*>(static_cast<__half*>(data) + offset) = pair;
    }
    return;
  }
  if (count >= 1) store_as(info.dtype, data, offset, left);
  if (count >= 2) store_as(info.dtype, data, offset + dim_stride, right);
}

/// scale * sums at the held rows that the gradient has a place for; `columns` of the head exist.
/// Rows that are not used met nothing: their sums are 0.
template <int kRowBlocks, int kColumnTiles>
FOVEAL_DEVICE void store_sums(const OperandRows& gradient, const GradientInfo& info,
                              const HeldTile& tile, const WarpSums& at, float scale,
                              const Accumulator<kRowBlocks, kColumnTiles>& sums) {
  const int g = lane_of_warp() / 4;
  const int pair = 2 * (lane_of_warp() % 4);
#pragma unroll
  for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int index = tile.first + at.row + 16 * i + 8 * half + g;
      if (!tile.stored.contains(index)) continue;
      const bool used = tile.used.contains(index);
      const std::int64_t row = gradient.offset + index * gradient.row_stride;
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        const int column = at.column + 8 * j + pair;
        const float left = used ? scale * sums.c[i][j][2 * half] : 0.0f;
        const float right = used ? scale * sums.c[i][j][2 * half + 1] : 0.0f;
        store_pair(const_cast<void*>(gradient.data), info, row + column * gradient.dim_stride,
                   gradient.dim_stride, gradient.columns - column, left, right);
      }
    }
  }
}

template <int kRowBlocks, int kColumnTiles>
FOVEAL_DEVICE void store_key_gradient(const KeyOperand& gradient, const GradientInfo& info,
                                      const HeldTile& tile, const WarpSums& at, int columns,
                                      float scale,
                                      const Accumulator<kRowBlocks, kColumnTiles>& sums) {
  if (info.dtype == DType::kNone) return;
  store_sums(key_rows(gradient, {}, columns, tile.sequence, tile.head), info, tile, at, scale,
             sums);
}

template <int kRowBlocks, int kColumnTiles>
FOVEAL_DEVICE void store_dq(const BackwardArgs& args, const HeldTile& tile, const WarpSums& at,
                            const Accumulator<kRowBlocks, kColumnTiles>& sums) {
  store_sums(query_rows(args.dq, {}, args.attention.headdim, tile.sequence, tile.head),
             args.dq_info, tile, at, args.attention.score.softmax_scale, sums);
}

/// dq's fp32 sums of a streamed tile. Within 16 columns they lie as a lane holds them: lane t of a
/// row has columns 2t, 2t + 1, 2t + 8 and 2t + 9, at places 4t to 4t + 3.
struct DqSums {
  float* data;  ///< Of the tile's row 0.
  int ld;
  int first;  ///< Index of that row in the sequence.
  IntRange rows;

  template <int kRowBlocks, int kColumnTiles>
  FOVEAL_DEVICE void add(const Accumulator<kRowBlocks, kColumnTiles>& product, int tile_row,
                         int column) const {
    const int g = lane_of_warp() / 4;
    const int t = lane_of_warp() % 4;
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile_row + 16 * i + 8 * half + g;
        if (!rows.contains(first + row)) continue;
        float* to = data + static_cast<std::int64_t>(row) * ld + column + 4 * t;
#pragma unroll
        for (int j = 0; j < kColumnTiles; j += 2) {
          if (column + 8 * j >= ld) break;
          add_four(to + 8 * j, product, i, half, j);
        }
      }
    }
  }

  /// The same where all rows are there and `ld` is kLd: one address, then constants.
  template <int kLd, int kRowBlocks, int kColumnTiles>
  FOVEAL_DEVICE void add_whole(const Accumulator<kRowBlocks, kColumnTiles>& product, int tile_row,
                               int column) const {
    const int g = lane_of_warp() / 4;
    const int t = lane_of_warp() % 4;
    float* to = data + (tile_row + g) * kLd + column + 4 * t;
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < kColumnTiles; j += 2) {
          add_four(to + (16 * i + 8 * half) * kLd + 8 * j, product, i, half, j);
        }
      }
    }
  }

 private:
  template <int kRowBlocks, int kColumnTiles>
  FOVEAL_DEVICE static void add_four(float* to,
                                     const Accumulator<kRowBlocks, kColumnTiles>& product, int i,
                                     int half, int j) {
    ptx::red_add_4(to, product.c[i][j][2 * half], product.c[i][j][2 * half + 1],
                   product.c[i][j + 1][2 * half], product.c[i][j + 1][2 * half + 1]);
  }
};

/// Rows of the parts of 32 columns that warps share out evenly, where that can be. 64 take too many
/// registers where a warp goes through several.
FOVEAL_HOST_DEVICE constexpr int even_part_rows(int rows, int column_parts, int warps) {
  if (rows == 64 && column_parts == warps) return 64;
  return rows % 32 == 0 && rows / 32 * column_parts % warps == 0 ? 32 : 16;
}

/// The place of a column among 16 in dq's sums.
FOVEAL_DEVICE constexpr int dq_place(int column) {
  return column % 8 / 2 * 4 + column / 8 * 2 + column % 2;
}

}  // namespace foveal::cuda::bwd
