// From a block's scores to its weights, and how the warps that share rows do it together.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/portable/fwd/key_stream.cuh"
#include "cuda/portable/fwd/scores.cuh"
#include "cuda/portable/fwd/softmax.cuh"
#include "cuda/portable/fwd/tile_config.hpp"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/tile/warp_products.cuh"

namespace foveal::cuda::portable {

/// A warp's share of the tile.
template <class Shape>
struct WarpPlace {
  int group;  ///< Column group.
  int row;    ///< First row of the tile.
  int key;    ///< First key of the block that it scores.

  FOVEAL_DEVICE static WarpPlace of_thread(unsigned thread) {
    constexpr ForwardTile kTile = Shape::kTile;
    const auto warp = static_cast<int>(thread / 32);
    const int group = warp % kTile.column_groups;
    return {group, warp / kTile.column_groups * kTile.rows_per_warp(),
            group * kTile.keys_per_warp()};
  }
};

/// A barrier of the warps that share rows, or of the block where one is due anyway: where k and v
/// come in chunks, their arrival must be known to all. True where any thread says so.
template <class Shape>
FOVEAL_DEVICE bool sharers_barrier_or(const WarpPlace<Shape>& place, bool value) {
  constexpr ForwardTile kTile = Shape::kTile;
  if constexpr (kTile.whole_blocks) {
    return ptx::named_barrier_or<32 * kTile.column_groups>(1 + place.row / kTile.rows_per_warp(),
                                                           value);
  }
  return __syncthreads_or(static_cast<int>(value)) != 0;
}

/// Column groups tell each other a value for each row: `values` of the warp's rows become the
/// fold of all groups' values. The caller has a barrier between publish and collect.
template <class Shape>
struct RowExchange {
  static constexpr int kRows = 2 * Shape::kRowTiles;
  std::uint32_t stats;
  WarpPlace<Shape> place;

  FOVEAL_DEVICE std::uint32_t address(int group, int row) const {
    const int lane_row = place.row + lane_index() / 4 + 8 * row;
    return stats + static_cast<std::uint32_t>(4 * (group * Shape::kTile.m + lane_row));
  }
  FOVEAL_DEVICE void publish(const float (&values)[kRows]) const {
    if (lane_index() % 4 != 0) return;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      ptx::store_shared_float(address(place.group, row), values[row]);
    }
  }
  template <class Fold>
  FOVEAL_DEVICE void collect(float (&values)[kRows], const Fold& fold) const {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      values[row] = ptx::load_shared_float(address(0, row));
#pragma unroll
      for (int group = 1; group < Shape::kTile.column_groups; ++group) {
        values[row] = fold(values[row], ptx::load_shared_float(address(group, row)));
      }
    }
  }
};

template <class Shape>
using ScoreFragment = float[Shape::kRowTiles][Shape::kKeyTiles][4];
template <class Shape>
using OutFragment = float[Shape::kRowTiles][Shape::kColumnTiles][4];

/// Two neighbouring weights as they lie in a tile.
template <class Element>
struct WeightPair {
  std::uint32_t bits;
  FOVEAL_DEVICE void set(float x, float y) { bits = ptx::pack_pair<Element>(x, y); }
  FOVEAL_DEVICE void drop(std::uint32_t dropped) {
    if ((dropped & 1u) != 0) bits &= 0xffff0000u;
    if ((dropped & 2u) != 0) bits &= 0x0000ffffu;
  }
  FOVEAL_DEVICE void store(std::uint32_t address) const { ptx::store_shared_4(address, bits); }
};
template <>
struct WeightPair<float> {
  float x, y;
  FOVEAL_DEVICE void set(float left, float right) {
    x = left;
    y = right;
  }
  FOVEAL_DEVICE void drop(std::uint32_t dropped) {
    if ((dropped & 1u) != 0) x = 0.0f;
    if ((dropped & 2u) != 0) y = 0.0f;
  }
  FOVEAL_DEVICE void store(std::uint32_t address) const { ptx::store_shared_float2(address, x, y); }
};

/// Weights of the warp's own keys, for the warps that share its rows.
template <class Shape>
struct OwnWeights {
  using Element = typename Shape::Element;
  WeightPair<Element> pair[Shape::kRowTiles][Shape::kKeyTiles][2];  ///< Rows g, g + 8.

  template <class Visit>
  FOVEAL_DEVICE void for_each(const Visit& visit) {
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles; ++i) {
#pragma unroll
      for (int j = 0; j < Shape::kKeyTiles; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) visit(pair[i][j][half], i, j, half);
      }
    }
  }
  FOVEAL_DEVICE void set(const ScoreFragment<Shape>& p) {
    for_each([&](WeightPair<Element>& weights, int i, int j, int half) {
      weights.set(p[i][j][2 * half], p[i][j][2 * half + 1]);
    });
  }
  FOVEAL_DEVICE void drop(FragmentBits dropped) {
    for_each([&](WeightPair<Element>& weights, int i, int j, int half) {
      weights.drop(dropped >> (4 * (Shape::kKeyTiles * i + j) + 2 * half));
    });
  }
  FOVEAL_DEVICE void store(typename Shape::PTile tile, const WarpPlace<Shape>& place) {
    constexpr int kUnitKeys = Shape::PTile::kUnitElements;
    const int row = place.row + lane_index() / 4;
    const int key = 2 * (lane_index() % 4);
    for_each([&](const WeightPair<Element>& weights, int i, int j, int half) {
      const int unit = (place.key + 8 * j) / kUnitKeys + key / kUnitKeys;
      weights.store(tile.address(row + 16 * i + 8 * half, unit) +
                    Shape::kElementBytes * (key % kUnitKeys));
    });
  }
};

/// A block's weights between the softmax and the product with v: in shared memory where warps share
/// rows, else as mma's a in registers, half the size of the scores for 16-bit elements.
template <class Shape>
struct Weights {
  using Element = typename Shape::Element;
  static constexpr ForwardTile kTile = Shape::kTile;
  static constexpr int kRowTiles = Shape::kRowTiles;
  static constexpr int kStepKeys = sizeof(Element) == 2 ? 16 : 8;
  using Fragment = std::conditional_t<sizeof(Element) == 2, std::uint32_t, float>[kRowTiles][4];

  Fragment steps[kTile.shares_rows() ? 1 : kTile.n / kStepKeys];

  FOVEAL_DEVICE void keep(const ScoreFragment<Shape>& p) {
#pragma unroll
    for (int step = 0; step < kTile.n / kStepKeys; ++step) {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        if constexpr (sizeof(Element) == 2) {
          pack_weights<Element>(steps[step][i], p[i][2 * step], p[i][2 * step + 1]);
        } else {
#pragma unroll
          for (int e = 0; e < 4; ++e) steps[step][i][e] = p[i][step][e];
        }
      }
    }
  }

  /// Of the keys from `first_key` of the block on.
  FOVEAL_DEVICE static void load(Fragment& weights, typename Shape::PTile tile, int row,
                                 int first_key) {
    const int lane = lane_index();
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      if constexpr (sizeof(Element) == 2) {
        ptx::ldmatrix_x4(weights[i],
                         tile.address(row + 16 * i + lane % 16, first_key / 8 + lane / 16));
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 pair = ptx::load_shared_float2(
              tile.address(row + 16 * i + 8 * half + lane / 4, first_key / 4) + 8 * (lane % 4));
          weights[i][2 * half] = pair.x;
          weights[i][2 * half + 1] = pair.y;
        }
      }
    }
  }
};

/// Weights of a block, to shared memory, where warps share rows. They are computed from what was
/// subtracted so far while nobody knows of the others' scores; the barrier that they pass anyway
/// tells whether some row must move, and then all is done once more.
template <class Shape>
FOVEAL_DEVICE void weigh_together(const ScoreFragment<Shape>& s,
                                  RowStates<2 * Shape::kRowTiles>& state, OutFragment<Shape>& acc,
                                  float factor_log2, typename Shape::PTile shared_p,
                                  std::uint32_t stats, const WarpPlace<Shape>& place,
                                  float (&maxima)[2 * Shape::kRowTiles], bool drops,
                                  FragmentBits dropped) {
  const RowExchange<Shape> exchange{stats, place};
  if constexpr (!Shape::kTile.whole_blocks) KeyStream<Shape>::await();
#pragma unroll 1
  for (;;) {
    ScoreFragment<Shape> p;
    float sums[2 * Shape::kRowTiles] = {};
    exponentiate(s, state.max, factor_log2, p, sums);
    OwnWeights<Shape> weights;
    weights.set(p);
    if (drops) weights.drop(dropped);
    weights.store(shared_p, place);
    if (!sharers_barrier_or(place, any_must_move(state, maxima, factor_log2))) {
#pragma unroll
      for (int row = 0; row < 2 * Shape::kRowTiles; ++row) state.sum[row] += sums[row];
      return;
    }
    fold_lane_maxima(maxima);
    exchange.publish(maxima);
    sharers_barrier_or(place, false);
    exchange.collect(maxima, [](float a, float b) { return fmaxf(a, b); });
    move_maxima(state, maxima, factor_log2, acc);
  }
}

}  // namespace foveal::cuda::portable
