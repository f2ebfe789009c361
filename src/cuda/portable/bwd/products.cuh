// The products of the backward on a warp's fragments. Accumulators have mma's layout: lane (g, t) =
// (lane / 4, lane % 4) holds rows g and g + 8 of each 16, columns 2t and 2t + 1 of each 8. Tiles
// are named by the offset of the warp's first row in shared memory, a multiple of 8 rows.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/portable/bwd/operand_tile.cuh"
#include "cuda/ptx/matrix.cuh"

namespace foveal::cuda::bwd {

/// Sums of kRowBlocks x 16 rows and kColumnTiles x 8 columns.
template <int kRowBlocks, int kColumnTiles>
struct Accumulator {
  float c[kRowBlocks][kColumnTiles][4];

  FOVEAL_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) c[i][j][e] = 0.0f;
      }
    }
  }
};

// Lanes give the addresses of the 8x8 matrices' rows. `Tall`: two matrices below each other, then
// the two to their right. `Wide`: two side by side, then the two below.
FOVEAL_DEVICE int tall_row() { return lane_of_warp() % 16; }
FOVEAL_DEVICE int tall_unit() { return lane_of_warp() / 16; }
FOVEAL_DEVICE int wide_row() { return lane_of_warp() % 8 + lane_of_warp() / 16 * 8; }
FOVEAL_DEVICE int wide_unit() { return lane_of_warp() / 8 % 2; }

/// Weights (or gradients of scores) as the left operand of the next product.
template <class Element, int kRowBlocks, int kColumnTiles>
struct Weights {
  std::uint32_t pair[kRowBlocks][kColumnTiles][2];  ///< Rows g, g + 8.

  FOVEAL_DEVICE void set(int i, int j, const float (&c)[4]) {
    pair[i][j][0] = ptx::pack_pair<Element>(c[0], c[1]);
    pair[i][j][1] = ptx::pack_pair<Element>(c[2], c[3]);
  }
};
template <int kRowBlocks, int kColumnTiles>
struct Weights<float, kRowBlocks, kColumnTiles> {
  float c[kRowBlocks][kColumnTiles][4];

  FOVEAL_DEVICE void set(int i, int j, const float (&values)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) c[i][j][e] = values[e];
  }
};

/// scores += held . streamed^T over kDepth columns of both.
template <class Element, int kDepth, int kRowBlocks, int kColumnTiles>
FOVEAL_DEVICE void add_scores(Accumulator<kRowBlocks, kColumnTiles>& scores, std::uint32_t held,
                              std::uint32_t streamed) {
  using Layout = TileLayout<Element, kDepth>;
  const std::uint32_t base = ptx::shared_address(block_memory);
  const std::uint32_t a_lane = base + held + Layout::offset(tall_row(), tall_unit());
  const std::uint32_t b_lane = base + streamed + Layout::offset(wide_row(), wide_unit());
#pragma unroll 16
  for (int step = 0; step < kDepth / 16; ++step) {
    std::uint32_t a[kRowBlocks][4];
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
      ptx::ldmatrix_x4(a[i], Layout::moved(a_lane, 2 * step) + 16 * i * Layout::kRowBytes);
    }
    if constexpr (kColumnTiles == 1) {
      std::uint32_t b[2];
      ptx::ldmatrix_x2(b, Layout::moved(b_lane, 2 * step));
#pragma unroll
      for (int i = 0; i < kRowBlocks; ++i) {
        ptx::mma_m16n8k16<Element>(scores.c[i][0], a[i], b[0], b[1]);
      }
    } else {
      static_assert(kColumnTiles % 2 == 0);
#pragma unroll
      for (int j = 0; j < kColumnTiles; j += 2) {
        std::uint32_t b[4];
        ptx::ldmatrix_x4(b, Layout::moved(b_lane, 2 * step) + 8 * j * Layout::kRowBytes);
#pragma unroll
        for (int i = 0; i < kRowBlocks; ++i) {
          ptx::mma_m16n8k16<Element>(scores.c[i][j], a[i], b[0], b[1]);
          ptx::mma_m16n8k16<Element>(scores.c[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }
}

/// The right operand of sums over a tile's rows: columns from 8 * first_tile on.
template <class Element, int kColumns>
struct RightOperand {
  using Layout = TileLayout<Element, kColumns>;
  std::uint32_t lane;  ///< The lane's address in rows 0 to 15 of the tile, column 0,
  int first_tile = 0;

  FOVEAL_DEVICE RightOperand(std::uint32_t tile, int first)
      : lane(ptx::shared_address(block_memory) + tile + Layout::offset(tall_row(), tall_unit())),
        first_tile(first) {}

  /// Where columns begin at whole spreads of a group of kColumnTiles, later moves can be constants.
  template <int kColumnTiles>
  FOVEAL_DEVICE void enter() {
    if constexpr (kColumnTiles % Layout::kSpread == 0 || Layout::kSpread % kColumnTiles == 0) {
      lane = Layout::moved(lane, first_tile);
      first_tile = 0;
    }
  }
  FOVEAL_DEVICE std::uint32_t address(int step, int j) const {
    return Layout::moved(lane, first_tile + j) + 16 * step * Layout::kRowBytes;
  }
};

/// One step of 16 of depth: sums += a . rows [16 * step, + 16) of the right operand.
template <class Element, int kColumns, int kRowBlocks, int kColumnTiles>
FOVEAL_DEVICE void add_step(Accumulator<kRowBlocks, kColumnTiles>& sums,
                            const std::uint32_t (&a)[kRowBlocks][4],
                            const RightOperand<Element, kColumns>& right, int step) {
#pragma unroll
  for (int j = 0; j < kColumnTiles; j += 2) {
    std::uint32_t b[4];
    ptx::ldmatrix_x4_trans(b, right.address(step, j));
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
      ptx::mma_m16n8k16<Element>(sums.c[i][j], a[i], b[0], b[1]);
      ptx::mma_m16n8k16<Element>(sums.c[i][j + 1], a[i], b[2], b[3]);
    }
  }
}

/// sums += weights . streamed, weights in registers; streamed has kColumns columns, all of which
/// are summed.
template <class Element, int kColumns, int kRowBlocks, int kDepthTiles, int kColumnTiles>
FOVEAL_DEVICE void add_from_registers(Accumulator<kRowBlocks, kColumnTiles>& sums,
                                      const Weights<Element, kRowBlocks, kDepthTiles>& weights,
                                      std::uint32_t streamed) {
  const RightOperand<Element, kColumns> right(streamed, 0);
#pragma unroll
  for (int step = 0; step < kDepthTiles / 2; ++step) {
    std::uint32_t a[kRowBlocks][4];
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) a[i][e] = weights.pair[i][2 * step + e / 2][e % 2];
    }
    add_step(sums, a, right, step);
  }
}

/// The same with weights as a tile (held, kDepth) in shared memory, and streamed's columns from
/// 8 * first_tile on.
template <class Element, int kColumns, int kDepth, int kRowBlocks, int kColumnTiles>
FOVEAL_DEVICE void add_from_shared(Accumulator<kRowBlocks, kColumnTiles>& sums,
                                   std::uint32_t weights, std::uint32_t streamed, int first_tile) {
  using Layout = TileLayout<Element, kDepth>;
  const std::uint32_t a_lane =
      ptx::shared_address(block_memory) + weights + Layout::offset(tall_row(), tall_unit());
  RightOperand<Element, kColumns> right(streamed, first_tile);
  right.template enter<kColumnTiles>();
#pragma unroll
  for (int step = 0; step < kDepth / 16; ++step) {
    std::uint32_t a[kRowBlocks][4];
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
      ptx::ldmatrix_x4(a[i], Layout::moved(a_lane, 2 * step) + 16 * i * Layout::kRowBytes);
    }
    add_step(sums, a, right, step);
  }
}

/// sums += weights^T . held: 16 * kRowBlocks streamed rows from `first_row` on, and columns from
/// 8 * first_tile on; the depth is the kHeld held rows. weights is the tile (kHeld, kStreamed).
template <class Element, int kColumns, int kHeld, int kStreamed, int kRowBlocks, int kColumnTiles>
FOVEAL_DEVICE void add_transposed(Accumulator<kRowBlocks, kColumnTiles>& sums,
                                  std::uint32_t weights, int first_row, std::uint32_t held,
                                  int first_tile) {
  using Layout = TileLayout<Element, kStreamed>;
  const std::uint32_t a_lane = Layout::moved(
      ptx::shared_address(block_memory) + weights + Layout::offset(wide_row(), wide_unit()),
      first_row / 8);
  RightOperand<Element, kColumns> right(held, first_tile);
  right.template enter<kColumnTiles>();
#pragma unroll
  for (int step = 0; step < kHeld / 16; ++step) {
    std::uint32_t a[kRowBlocks][4];
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
      ptx::ldmatrix_x4_trans(a[i], Layout::moved(a_lane, 2 * i) + 16 * step * Layout::kRowBytes);
    }
    add_step(sums, a, right, step);
  }
}

/// Weights of a pair of adjacent columns into the tile (held, kStreamed).
template <class Element, int kStreamed>
FOVEAL_DEVICE void store_weights(std::uint32_t tile, int row, int column, float left, float right) {
  using Layout = TileLayout<Element, kStreamed>;
  const std::uint32_t at = tile + Layout::offset(row, column / Layout::kUnitElements) +
                           column % Layout::kUnitElements * static_cast<int>(sizeof(Element));
  if constexpr (sizeof(Element) == 2) {
    *memory_at<std::uint32_t>(at) = ptx::pack_pair<Element>(left, right);
  } else {
    *memory_at<float2>(at) = float2{left, right};
  }
}

}  // namespace foveal::cuda::bwd
