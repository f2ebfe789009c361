// portable_fwd: attention of one tile of query rows over the key blocks that it sees.
// FlashAttention-2 (Dao 2023), Alg. 1; for wide heads the warps of a row group share its rows.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/portable/fwd/args.hpp"
#include "cuda/portable/fwd/epilogue.cuh"
#include "cuda/portable/fwd/key_stream.cuh"
#include "cuda/portable/fwd/scores.cuh"
#include "cuda/portable/fwd/softmax.cuh"
#include "cuda/portable/fwd/tile_config.hpp"
#include "cuda/portable/fwd/tile_state.cuh"
#include "cuda/portable/fwd/work.cuh"
#include "cuda/ptx/special_registers.cuh"
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

/// Weights of the warp's own keys, for the warps that share its rows.
template <class Shape>
FOVEAL_DEVICE void store_weights(const ScoreFragment<Shape>& p, typename Shape::PTile tile,
                                 const WarpPlace<Shape>& place) {
  using Element = typename Shape::Element;
  const int g = lane_index() / 4;
  const int t = lane_index() % 4;
#pragma unroll
  for (int i = 0; i < Shape::kRowTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = place.row + 16 * i + 8 * half + g;
#pragma unroll
      for (int j = 0; j < Shape::kKeyTiles; ++j) {
        const float x = p[i][j][2 * half];
        const float y = p[i][j][2 * half + 1];
        if constexpr (sizeof(Element) == 2) {
          const std::uint32_t address = tile.address(row, place.key / 8 + j) + 4 * t;
          ptx::store_shared_4(address, ptx::pack_pair<Element>(x, y));
        } else {
          const std::uint32_t address = tile.address(row, place.key / 4 + 2 * j) + 8 * t;
          ptx::store_shared_float2(address, x, y);
        }
      }
    }
  }
}

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

/// acc += weights . v of one chunk of keys. `first_key` counts in the block.
template <class Shape>
FOVEAL_DEVICE void accumulate_chunk(OutFragment<Shape>& acc, const Weights<Shape>& weights,
                                    typename Shape::PTile shared_p, typename Shape::VChunk v,
                                    const WarpPlace<Shape>& place, int first_key) {
  constexpr ForwardTile kTile = Shape::kTile;
  constexpr int kStepKeys = Weights<Shape>::kStepKeys;
  const auto values_at = values_address<kTile.column_groups>(v, place.group);
#pragma unroll
  for (int step = 0; step < kTile.chunk_keys() / kStepKeys; ++step) {
    if constexpr (kTile.shares_rows()) {
      typename Weights<Shape>::Fragment fragment;
      Weights<Shape>::load(fragment, shared_p, place.row, first_key + kStepKeys * step);
      accumulate_keys<kTile.column_groups>(acc, fragment, values_at, kStepKeys * step);
    } else {
      accumulate_keys<kTile.column_groups>(acc, weights.steps[step], values_at, kStepKeys * step);
    }
  }
}

/// Starts the copy of the tile's query rows; rows past the last used one are 0.
template <class Shape>
FOVEAL_DEVICE void load_queries(const ForwardArgs& args, const ForwardWork& work,
                                std::uint32_t base) {
  using Element = typename Shape::Element;
  constexpr ForwardTile kTile = Shape::kTile;
  const AttentionArgs& attention = args.attention;
  const typename Shape::QTile tile{base};
  if (args.q_whole_units && attention.headdim == kTile.d && work.group == 1 &&
      work.row_min + kTile.m <= work.used_rows) {
    const auto* data = static_cast<const Element*>(attention.q.data);
    copy_whole_rows<kTile.m, kTile.num_threads()>(
        tile, data + work.offset(attention.q.strides, work.row_min), attention.q.strides.row);
    return;
  }
  const RowElements elements{attention.q.data, attention.q.strides.dim, attention.headdim,
                             args.q_whole_units};
  copy_rows<kTile.m, kTile.num_threads()>(tile, elements, 0, [&](int row) {
    const std::int32_t r = work.row_min + row;
    return r < work.used_rows ? work.offset(attention.q.strides, r) : kNoRow;
  });
}

/// Where the lane's scores of a block lie, computed anew: few blocks ask for it.
template <class Shape>
FOVEAL_DEVICE LanePlace lane_place(const TileState& tile, std::int32_t n_block) {
  const unsigned thread = ptx::thread_index_anew();
  const auto place = WarpPlace<Shape>::of_thread(thread);
  const auto lane = static_cast<int>(thread % 32);
  return {tile.work.row_min + place.row + lane / 4,
          n_block * Shape::kTile.n + place.key + 2 * (lane % 4)};
}

template <class Config, DType kDType>
FOVEAL_DEVICE void attend(const ForwardArgs& args, const TileState& tile, std::uint32_t shared) {
  using Shape = ForwardShape<Config, kDType>;
  using Element = typename Shape::Element;
  constexpr ForwardTile kTile = Shape::kTile;
  constexpr ForwardLayout kLayout = Shape::kLayout;
  const ForwardWork& work = tile.work;
  const typename Shape::QTile q{shared + kLayout.q};
  const typename Shape::PTile shared_p{shared + kLayout.p};
  const float factor_log2 = args.factor_log2();

  OutFragment<Shape> acc = {};
  RowStates<2 * Shape::kRowTiles> state;
  state.clear();
  if (tile.n_min < tile.n_max) {
    const AttentionArgs& attention = args.attention;
    KeyStream<Shape> stream(args.attention, tile, shared + kLayout.slots);
    load_queries<Shape>(args, work, q.base);
    stream.start(tile.n_min);

#pragma unroll 1
    for (std::int32_t n_block = tile.n_min; n_block < tile.n_max; ++n_block) {
      const auto place = WarpPlace<Shape>::of_thread(ptx::thread_index_anew());
      const RowExchange<Shape> exchange{shared + kLayout.stats, place};
      ScoreFragment<Shape> s = {};
#pragma unroll 1
      for (int chunk = 0; chunk < kTile.chunks; ++chunk) {
        const typename Shape::KChunk keys{stream.acquire(n_block, chunk)};
        multiply_scores(s, q, place.row, chunk * Shape::KChunk::kUnits, keys, place.key);
      }
      if (!kTile.plain && args.has_score_terms) {
        add_score_terms<Element>(s, args, work, lane_place<Shape>(tile, n_block));
      }
      if (n_block < tile.full_min || n_block >= tile.full_max) {
        mask_scores(s, attention.score, work, lane_place<Shape>(tile, n_block));
      }
      Weights<Shape> weights;
      std::uint32_t values;
      float maxima[2 * Shape::kRowTiles];
      row_maxima(s, maxima);
      if constexpr (kTile.shares_rows()) {
        exchange.publish(maxima);
        values = stream.acquire(n_block, kTile.chunks);
        if constexpr (kTile.whole_blocks) __syncthreads();  // else acquire has one
        exchange.collect(maxima, [](float a, float b) { return fmaxf(a, b); });
      }
      move_maxima(state, maxima, factor_log2, acc);
      exponentiate(s, state, factor_log2);
      if (!kTile.plain && attention.dropout.p > 0) {
        drop_weights(s, tile.dropout, attention.nheads_q, work, lane_place<Shape>(tile, n_block));
      }
      if constexpr (kTile.shares_rows()) {
        store_weights(s, shared_p, place);
        __syncthreads();
      } else {
        weights.keep(s);
        values = stream.acquire(n_block, kTile.chunks);
      }
      accumulate_chunk<Shape>(acc, weights, shared_p, typename Shape::VChunk{values}, place, 0);
#pragma unroll 1
      for (int chunk = 1; chunk < kTile.chunks; ++chunk) {
        values = stream.acquire(n_block, kTile.chunks + chunk);
        accumulate_chunk<Shape>(acc, weights, shared_p, typename Shape::VChunk{values}, place,
                                chunk * kTile.chunk_keys());
      }
    }
    ptx::copy_async_wait<0>();
  }
  const auto place = WarpPlace<Shape>::of_thread(ptx::thread_index_anew());
#pragma unroll
  for (float& sum : state.sum) sum = quad_sum(sum);
  if constexpr (kTile.shares_rows()) {
    // The last block's maxima have been read: a barrier came after.
    const RowExchange<Shape> exchange{shared + kLayout.stats, place};
    exchange.publish(state.sum);
    __syncthreads();
    exchange.collect(state.sum, [](float a, float b) { return a + b; });
  }
  store_rows<Element, kTile.column_groups>(args, tile, acc, state, lane_place<Shape>(tile, 0).row,
                                           place.group);
}

namespace {

template <class Config, DType kDType>
__global__ void __launch_bounds__(Config::tile.num_threads(), Config::tile.min_blocks)
    portable_fwd(const __grid_constant__ ForwardArgs args) {
  extern __shared__ __align__(128) unsigned char shared[];
  using Shape = ForwardShape<Config, kDType>;
  auto& tile = *reinterpret_cast<TileState*>(shared + Shape::kLayout.state);
  prepare_tile<Shape>(args, static_cast<std::int32_t>(blockIdx.x), tile);
  if (tile.has_rows) attend<Config, kDType>(args, tile, ptx::shared_address(shared));
}

}  // namespace

}  // namespace foveal::cuda::portable
