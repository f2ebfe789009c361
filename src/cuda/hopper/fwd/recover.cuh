// A block's scores from the raw products on, and those products once more.
#pragma once

#include <cstdint>

#include "cuda/hopper/fwd/shared_memory.cuh"
#include "cuda/hopper/fwd/softmax.cuh"
#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/special_registers.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tile/swizzled_panels.hpp"

namespace foveal::cuda::hopper {

/// Row of the tile's 64 of a consumer that a lane addresses for ldmatrix, and its unit of 8 columns
/// among the 16 of a step.
struct FragmentPlace {
  int row;
  int unit;
};
FOVEAL_DEVICE FragmentPlace fragment_place() {
  const auto thread = static_cast<int>(ptx::thread_index_anew() % kWarpgroupThreads);
  return {thread / 32 * 16 + thread % 16, thread % 32 / 16};
}

/// A consumer's queries, where they lie; where there are registers for them, as left factors too.
template <class Shape>
struct Queries {
  static constexpr bool kInRegisters = Shape::kTile.q_in_registers;
  static constexpr int kSteps = Shape::kTile.d / 16;

  std::uint32_t rows;  ///< Of the tile's q, the consumer's first.
  std::uint32_t fragments[kInRegisters ? kSteps : 1][4];  ///< Of 16 columns a step.

  FOVEAL_DEVICE void load_fragment(std::uint32_t (&a)[4], int step) const {
    const FragmentPlace place = fragment_place();
    constexpr PanelLayout kLayout = Shape::kQLayout;
    ptx::ldmatrix_x4(a, rows + kLayout.unit_offset(place.row, 2 * step + place.unit));
  }
};

/// Where a block's scores come from and how they are masked.
template <class Shape>
struct ScoreBlock {
  const WorkTile& work;
  const WorkRows& rows;
  const Queries<Shape>& queries;
  std::uint32_t k;  ///< The block's keys.
  std::int32_t first_key;
  bool masked;

  FOVEAL_DEVICE std::int32_t first_row() const {
    const auto thread = static_cast<std::int32_t>(ptx::thread_index_anew() % kWarpgroupThreads);
    return rows.row_min + thread / 32 * 16 + thread % 32 / 4;
  }
  /// How many of the thread's first row and those below it exist.
  FOVEAL_DEVICE std::int32_t num_rows() const { return work.mask.seqlen_q - first_row(); }

  /// q.k of `key` keys on become scores, in the exponent's unit but for a factor.
  template <int kCount>
  FOVEAL_DEVICE void finish_scores(const ForwardArgs& args, float (&s)[kCount],
                                   std::int32_t key = 0) const {
    if constexpr (Shape::kTile.capped) scale_and_cap(s, args);
    if (!masked) return;
    const auto lane = static_cast<std::int32_t>(ptx::thread_index_anew() % 4);
    mask_scores(s, work.mask, first_row(), first_key + key + 2 * lane);
  }
};

/// Scores of the rows that lost them, by the warp alone; all lanes call it.
template <class Shape>
FOVEAL_DEVICE void recover_scores(const ForwardArgs& args, const ScoreBlock<Shape>& block,
                                  float (&s)[Shape::kTile.n / 2], const bool (&lost)[2]) {
  constexpr PanelLayout kQLayout = Shape::kQLayout;
  constexpr PanelLayout kKLayout = Shape::kKLayout;
  ptx::wgmma_wait<0>();  // of the weights before, whose registers are needed here
  const auto thread = static_cast<int>(ptx::thread_index_anew() % kWarpgroupThreads);
  const int row = thread / 32 * 16 + thread % 16;
#pragma unroll
  for (int j = 0; j < Shape::kTile.n / 8; ++j) {
    float t[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
    for (int unit = 0; unit < Shape::kTile.d / 8; unit += 2) {
      std::uint32_t a[4];
      std::uint32_t b[2];
      ptx::ldmatrix_x4(a, block.queries.rows + kQLayout.unit_offset(row, unit + thread % 32 / 16));
      ptx::ldmatrix_x2(b,
                       block.k + kKLayout.unit_offset(8 * j + thread % 8, unit + thread % 16 / 8));
      ptx::mma_m16n8k16<typename Shape::Element>(t, a, b[0], b[1]);
    }
    block.finish_scores(args, t, 8 * j);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (lost[i / 2]) s[4 * j + i] = t[i];
    }
  }
}

}  // namespace foveal::cuda::hopper
