// The products of products.cuh for floats: three TF32 products for each. Tensor cores truncate as
// they accumulate, so no sum runs there over more than 64 columns or one tile; longer ones are
// added in fp32.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/portable/bwd/products.cuh"
#include "cuda/tile/tf32_product.cuh"

namespace foveal::cuda::bwd {

FOVEAL_DEVICE int fragment_g() { return lane_of_warp() / 4; }
FOVEAL_DEVICE int fragment_t() { return lane_of_warp() % 4; }

/// mma's a for 8 of depth from rows g and g + 8 of a pair of adjacent columns: depth is taken in
/// the order 0, 2, 4, 6, 1, 3, 5, 7, by the right operand as well.
FOVEAL_DEVICE void left_operand(Tf32Pair (&a)[4], float2 upper, float2 lower) {
  a[0] = split_tf32(upper.x);
  a[1] = split_tf32(lower.x);
  a[2] = split_tf32(upper.y);
  a[3] = split_tf32(lower.y);
}

template <class Element, int kDepth, int kRowBlocks, int kColumnTiles>
  requires(sizeof(Element) == 4)
FOVEAL_DEVICE void add_scores(Accumulator<kRowBlocks, kColumnTiles>& scores, std::uint32_t held,
                              std::uint32_t streamed) {
  using Layout = TileLayout<float, kDepth>;
  constexpr int kPiece = 64;
  const int g = fragment_g();
  const int pair = 2 * fragment_t();
  const auto load = [=](std::uint32_t tile, int row, int column) {
    return *reinterpret_cast<const float2*>(Layout::element(tile, row, column));
  };
#pragma unroll 1
  for (int piece = 0; piece < kDepth; piece += kPiece) {
    Accumulator<kRowBlocks, kColumnTiles> sums;
    sums.clear();
#pragma unroll 2
    for (int depth = piece + pair; depth < piece + kPiece; depth += 8) {
      Tf32Pair a[kRowBlocks][4];
#pragma unroll
      for (int i = 0; i < kRowBlocks; ++i) {
        left_operand(a[i], load(held, 16 * i + g, depth), load(held, 16 * i + g + 8, depth));
      }
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        const float2 b = load(streamed, 8 * j + g, depth);
#pragma unroll
        for (int i = 0; i < kRowBlocks; ++i) {
          accumulate_tf32_product(sums.c[i][j], a[i], split_tf32(b.x), split_tf32(b.y));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) scores.c[i][j][e] += sums.c[i][j][e];
      }
    }
  }
}

/// sums += a . streamed for one row block over kDepthTiles steps of 8; columns from 8 * first_tile.
template <int kColumns, int kDepthTiles, int kColumnTiles>
FOVEAL_DEVICE void add_row_block(float (&sums)[kColumnTiles][4],
                                 const Tf32Pair (&a)[kDepthTiles][4], std::uint32_t streamed,
                                 int first_tile) {
  using Layout = TileLayout<float, kColumns>;
  const int pair = 2 * fragment_t();
#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j) {
    const int column = 8 * (first_tile + j) + fragment_g();
    float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int step = 0; step < kDepthTiles; ++step) {
      const Tf32Pair b0 = split_tf32(*Layout::element(streamed, 8 * step + pair, column));
      const Tf32Pair b1 = split_tf32(*Layout::element(streamed, 8 * step + pair + 1, column));
      accumulate_tf32_product(c, a[step], b0, b1);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[j][e] += c[e];
  }
}

template <class Element, int kColumns, int kRowBlocks, int kDepthTiles, int kColumnTiles>
  requires(sizeof(Element) == 4)
FOVEAL_DEVICE void add_from_registers(Accumulator<kRowBlocks, kColumnTiles>& sums,
                                      const Weights<Element, kRowBlocks, kDepthTiles>& weights,
                                      std::uint32_t streamed) {
#pragma unroll
  for (int i = 0; i < kRowBlocks; ++i) {
    Tf32Pair a[kDepthTiles][4];
#pragma unroll
    for (int step = 0; step < kDepthTiles; ++step) {
      const float(&c)[4] = weights.c[i][step];
      left_operand(a[step], {c[0], c[1]}, {c[2], c[3]});
    }
    add_row_block<kColumns>(sums.c[i], a, streamed, 0);
  }
}

template <class Element, int kColumns, int kDepth, int kRowBlocks, int kColumnTiles>
  requires(sizeof(Element) == 4)
FOVEAL_DEVICE void add_from_shared(Accumulator<kRowBlocks, kColumnTiles>& sums,
                                   std::uint32_t weights, std::uint32_t streamed, int first_tile) {
  using Layout = TileLayout<float, kDepth>;
  const int g = fragment_g();
  const int pair = 2 * fragment_t();
#pragma unroll
  for (int i = 0; i < kRowBlocks; ++i) {
    Tf32Pair a[kDepth / 8][4];
#pragma unroll
    for (int step = 0; step < kDepth / 8; ++step) {
      const auto load = [&](int row) {
        return *reinterpret_cast<const float2*>(
            Layout::element(weights, 16 * i + row, 8 * step + pair));
      };
      left_operand(a[step], load(g), load(g + 8));
    }
    add_row_block<kColumns>(sums.c[i], a, streamed, first_tile);
  }
}

}  // namespace foveal::cuda::bwd
