// portable_fwd: attention of one tile of query rows over the key blocks that it sees.
// FlashAttention-2 (Dao 2023), Alg. 1; for wide heads the warps of a row group share its rows.
#pragma once

#include <cstdint>

#include "cuda/portable/fwd/args.hpp"
#include "cuda/portable/fwd/epilogue.cuh"
#include "cuda/portable/fwd/key_stream.cuh"
#include "cuda/portable/fwd/scores.cuh"
#include "cuda/portable/fwd/softmax.cuh"
#include "cuda/portable/fwd/tile_config.hpp"
#include "cuda/portable/fwd/tile_state.cuh"
#include "cuda/portable/fwd/weights.cuh"
#include "cuda/portable/fwd/work.cuh"
#include "cuda/ptx/special_registers.cuh"
#include "cuda/tile/warp_products.cuh"

namespace foveal::cuda::portable {

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
      const bool drops = !kTile.plain && attention.dropout.p > 0;
      FragmentBits dropped = 0;
      if constexpr (!kTile.plain) {
        if (drops) {
          dropped = dropped_elements<Shape::kRowTiles, Shape::kKeyTiles>(
              tile.dropout, attention.nheads_q, work, lane_place<Shape>(tile, n_block));
        }
      }
      float maxima[2 * Shape::kRowTiles];
      lane_maxima(s, maxima);
      if constexpr (kTile.shares_rows()) {
        weigh_together<Shape>(s, state, acc, factor_log2, shared_p, shared + kLayout.stats, place,
                              maxima, drops, dropped);
        values = kTile.whole_blocks ? stream.acquire(n_block, kTile.chunks)
                                    : stream.take(n_block, kTile.chunks);
      } else {
        fold_lane_maxima(maxima);
        move_maxima(state, maxima, factor_log2, acc);
        exponentiate(s, state.max, factor_log2, s, state.sum);
        if constexpr (!kTile.plain) {
          if (drops) drop_weights(s, dropped);
        }
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
    // The last maxima have been read: a barrier came after.
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
