// The gradient kernel of both sides. FlashAttention-2 (Dao 2023), Alg. 2; the keys' side computes
// scores transposed, so that weights are the left operand of dv and dk where they are.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/portable/bwd/epilogue.cuh"
#include "cuda/portable/bwd/held_tile.cuh"
#include "cuda/portable/bwd/products.cuh"
#include "cuda/portable/bwd/products_fp32.cuh"
#include "cuda/portable/bwd/score_gradients.cuh"
#include "cuda/portable/bwd/tile_stream.cuh"

namespace foveal::cuda::bwd {

/// What a GradientTile makes of a kernel's types and of the warp's place.
template <class Element_, class Tile>
struct Kernel {
  using Element = Element_;
  static constexpr GradientTile kTile = Tile::tile;
  static constexpr SharedMap kMap = shared_map(kTile, static_cast<int>(sizeof(Element)));
  static constexpr bool kKeysSide = kTile.side == Side::kKeys;
  static constexpr int kHeld = kTile.held();
  static constexpr int kStreamed = kTile.streamed;
  static constexpr int kThreads = kTile.threads();
  static constexpr int kHeaddim = kTile.headdim;
  static constexpr int kRowBlocks = kTile.row_blocks;
  static constexpr int kScoreTiles = kStreamed / kTile.score_warps() / 8;
  static constexpr int kSumTiles = kHeaddim / kTile.column_warps / 8;
  static constexpr bool kExchanges = kTile.exchanges();

  static constexpr int kPartTiles = kScoreTiles / kTile.score_parts;

  using Scores = Accumulator<kRowBlocks, kScoreTiles>;
  using PartScores = Accumulator<kRowBlocks, kPartTiles>;
  using Sums = Accumulator<kRowBlocks, kSumTiles>;
  using ScoreWeights = Weights<Element, kRowBlocks, kScoreTiles>;
  template <int kColumns>
  using Layout = TileLayout<Element, kColumns>;

  static FOVEAL_DEVICE int held_row() {
    return warp_of_block() / kTile.column_warps * 16 * kRowBlocks;
  }
  static FOVEAL_DEVICE int column_warp() { return warp_of_block() % kTile.column_warps; }

  /// Offsets of tiles; `which` is 0 for k or q, 1 for v or dout.
  static FOVEAL_DEVICE constexpr std::uint32_t held_at(int which) {
    return kMap.held + which * kMap.held_tile_bytes;
  }
  static FOVEAL_DEVICE constexpr std::uint32_t streamed_at(int stage, int which) {
    return kMap.streamed + (2 * stage + which) * kMap.streamed_tile_bytes;
  }
  static FOVEAL_DEVICE constexpr int stats_at(int step) {
    return kMap.streamed_stats + step % kTile.stats_stages() * 8 * kStreamed;
  }
};

/// One block's work on its held tile.
template <class K>
struct GradientBlock {
  using Element = typename K::Element;

  const BackwardArgs& args;
  const BlockWork& work;
  const HeldTile& tile;

  /// To be followed by describe() and a barrier.
  FOVEAL_DEVICE explicit GradientBlock(const BackwardArgs& arguments)
      : args(arguments), work(*memory_at<BlockWork>(K::kMap.work)), tile(work.tile) {}

  /// By one thread.
  FOVEAL_DEVICE void describe(const HeldTile& held) const { stream().begin(held); }
  /// What comes after the streamed tile of `step`, by one thread.
  FOVEAL_DEVICE void describe_after(int step) const { stream().describe_after(step); }

  FOVEAL_DEVICE TileStream<K> stream() const { return {args, *memory_at<BlockWork>(K::kMap.work)}; }
  FOVEAL_DEVICE const StreamedTile& streamed(int step) const { return work.streamed[step % 4]; }
  /// The query head of what streams past.
  FOVEAL_DEVICE int query_head(const StreamedTile& at) const {
    return K::kKeysSide ? at.head : tile.head;
  }

  FOVEAL_DEVICE void copy_held() const {
    const OperandPair pair = K::kKeysSide ? keys_and_values(args, tile.sequence, tile.head)
                                          : queries_and_dout(args, tile.sequence, tile.head);
    copy_rows<Element, K::kHeaddim, K::kHeld, K::kThreads>(K::held_at(0), pair.first, tile.first,
                                                           tile.readable);
    copy_rows<Element, K::kHeaddim, K::kHeld, K::kThreads>(K::held_at(1), pair.second, tile.first,
                                                           tile.readable);
  }

  template <int kWhich>
  FOVEAL_DEVICE void copy_streamed(const StreamedTile& at, int stage) const {
    const std::uint32_t to = K::streamed_at(stage, kWhich);
    if (at.plain) {
      copy_plain_rows<Element, K::kHeaddim, K::kStreamed, K::kThreads>(
          to, kWhich == 0 ? at.first : at.second, stream().row_stride(kWhich));
      return;
    }
    const OperandPair pair = stream().operands(at.head);
    copy_rows<Element, K::kHeaddim, K::kStreamed, K::kThreads>(
        to, kWhich == 0 ? pair.first : pair.second, at.row, work.streamed_readable);
  }

  /// lse and delta of the streamed rows, on the keys' side.
  FOVEAL_DEVICE void copy_streamed_stats(const StreamedTile& at, int step) const {
    const int thread = static_cast<int>(threadIdx.x);
    if (!K::kKeysSide || thread >= K::kStreamed) return;
    copy_stats(at.stats + thread, work.streamed_readable.contains(at.row + thread),
               K::stats_at(step) + 8 * thread);
  }

  /// lse and delta of the held rows, on the rows' side.
  FOVEAL_DEVICE void copy_held_stats() const {
    const int thread = static_cast<int>(threadIdx.x);
    if (K::kKeysSide || thread >= K::kHeld) return;
    const int i = tile.first + thread;
    const std::int64_t row =
        tile.head * args.total_q + args.row_index(tile.sequence.b, tile.sequence.q_begin) + i;
    copy_stats(args.stats + row, tile.readable.contains(i), K::kMap.held_stats + 8 * thread);
  }

  /// Scores and their gradients of the warp's share of the tile, as weights.
  template <bool kGeneral>
  FOVEAL_DEVICE void compute_weights(const ScoreTerms& terms, const StreamedTile& at, int step,
                                     typename K::ScoreWeights& p,
                                     typename K::ScoreWeights& ds) const {
#pragma unroll
    for (int part = 0; part < K::kTile.score_parts; ++part) {
      compute_part<kGeneral>(terms, at, step, part * K::kPartTiles, p, ds);
    }
  }

  /// Column tiles [first_tile, first_tile + kPartTiles) of that share.
  template <bool kGeneral>
  FOVEAL_DEVICE void compute_part(const ScoreTerms& terms, const StreamedTile& at, int step,
                                  int first_tile, typename K::ScoreWeights& p,
                                  typename K::ScoreWeights& ds) const {
    constexpr int kRowBytes = K::template Layout<K::kHeaddim>::kRowBytes;
    const int stage = step % K::kTile.stages;
    const WarpScores where{.row = K::held_row(),
                           .column = 8 * (K::column_warp() * K::kScoreTiles + first_tile),
                           .held_first = tile.first,
                           .streamed_first = at.row,
                           .held_stats = K::kMap.held_stats,
                           .streamed_stats = K::stats_at(step)};
    typename K::PartScores scores;
    typename K::PartScores gradients;
    scores.clear();
    gradients.clear();
    add_scores<Element, K::kHeaddim>(scores, K::held_at(0) + where.row * kRowBytes,
                                     K::streamed_at(stage, 0) + where.column * kRowBytes);
    add_scores<Element, K::kHeaddim>(gradients, K::held_at(1) + where.row * kRowBytes,
                                     K::streamed_at(stage, 1) + where.column * kRowBytes);
    const auto take = [&](int i, int j) {
      p.set(i, first_tile + j, scores.c[i][j]);
      ds.set(i, first_tile + j, gradients.c[i][j]);
      publish(where, i, j, scores.c[i][j], gradients.c[i][j]);
    };
    // The terms of a score cost more than its mask: one copy of their code for both.
    if (kGeneral || at.masked) {
      score_gradients<K::kTile.side, kGeneral, true>(terms, tile, where, scores, gradients, false,
                                                     take);
    } else {
      score_gradients<K::kTile.side, kGeneral, false>(terms, tile, where, scores, gradients, false,
                                                      take);
    }
  }

  /// Into shared memory, for the warps of the same rows and for dq.
  FOVEAL_DEVICE void publish(const WarpScores& where, int i, int j, const float (&p)[4],
                             const float (&ds)[4]) const {
    const int row = where.row + 16 * i + lane_of_warp() / 4;
    const int column = where.column + 8 * j + 2 * (lane_of_warp() % 4);
    if (K::kExchanges || K::kKeysSide) {
      store_weights<Element, K::kStreamed>(K::kMap.ds, row, column, ds[0], ds[1]);
      store_weights<Element, K::kStreamed>(K::kMap.ds, row + 8, column, ds[2], ds[3]);
    }
    if (K::kExchanges && K::kKeysSide) {
      store_weights<Element, K::kStreamed>(K::kMap.p, row, column, p[0], p[1]);
      store_weights<Element, K::kStreamed>(K::kMap.p, row + 8, column, p[2], p[3]);
    }
  }

  /// sums += weights . streamed tile `which`
  FOVEAL_DEVICE void accumulate(typename K::Sums& sums, const typename K::ScoreWeights& weights,
                                std::uint32_t shared_weights, std::uint32_t streamed) const {
    if constexpr (K::kExchanges) {
      constexpr int kRowBytes = K::template Layout<K::kStreamed>::kRowBytes;
      add_from_shared<Element, K::kHeaddim, K::kStreamed>(
          sums, shared_weights + K::held_row() * kRowBytes, streamed,
          K::column_warp() * K::kSumTiles);
    } else {
      add_from_registers<Element, K::kHeaddim>(sums, weights, streamed);
    }
  }

  /// dq += ds^T k of the streamed rows, by atomics.
  FOVEAL_DEVICE void add_dq(const StreamedTile& at) const {
    if constexpr (K::kKeysSide && sizeof(Element) == 2) {
      // Parts as tall as come out even: the taller, the less is read for them.
      constexpr int kWarps = K::kThreads / 32;
      constexpr int kColumnParts = K::kHeaddim / 32;
      constexpr int kPartRows = even_part_rows(K::kStreamed, kColumnParts, kWarps);
      constexpr int kParts = K::kStreamed / kPartRows * kColumnParts;
      const DqSums sums{at.dq, args.dq_ld, at.row, work.streamed_readable};
#pragma unroll 1
      for (int part = warp_of_block(); part < kParts; part += kWarps) {
        const int first_row = part / kColumnParts * kPartRows;
        const int first_column = part % kColumnParts * 32;
        if (first_column >= args.dq_ld) continue;
        Accumulator<kPartRows / 16, 4> product;
        product.clear();
        add_transposed<Element, K::kHeaddim, K::kHeld, K::kStreamed>(
            product, K::kMap.ds, first_row, K::held_at(0), first_column / 8);
        if (at.plain) {
          sums.template add_whole<K::kHeaddim>(product, first_row, first_column);
        } else {
          sums.add(product, first_row, first_column);
        }
      }
    }
  }
};

template <class K, bool kGeneral>
FOVEAL_DEVICE void sum_gradients(const GradientBlock<K>& block, typename K::Sums& first,
                                 typename K::Sums& second) {
  const BackwardArgs& args = block.args;
  constexpr bool kOneStage = K::kTile.stages == 1;
  constexpr bool kTwoStats = K::kTile.stats_stages() == 2;
  const bool sums_dq = K::kKeysSide && args.dq_sums != nullptr;
  ScoreTerms terms(args.attention, kGeneral ? args.attention.dropout.load() : algorithm::Dropout{});
  int head = -1;
  block.copy_held();
  block.copy_held_stats();
  block.template copy_streamed<0>(block.streamed(0), 0);
  block.template copy_streamed<1>(block.streamed(0), 0);
  block.copy_streamed_stats(block.streamed(0), 0);
  ptx::copy_async_commit();

#pragma unroll 1
  for (int step = 0; step < block.work.steps; ++step) {
    const int stage = step % K::kTile.stages;
    const int next = step + 1;
    const bool more = next < block.work.steps;
    ptx::copy_async_wait<0>();
    __syncthreads();  // tile `step` is there, and nobody reads tile `step - 1` or its weights
    if (more && !kOneStage) {
      block.template copy_streamed<0>(block.streamed(next), next % K::kTile.stages);
      block.template copy_streamed<1>(block.streamed(next), next % K::kTile.stages);
    }
    if (more && kTwoStats) block.copy_streamed_stats(block.streamed(next), next);
    if (more && threadIdx.x == 0) block.describe_after(next);
    if (kGeneral && block.streamed(step).head != head) {
      head = block.streamed(step).head;
      terms.enter(args.attention, block.tile.sequence, block.query_head(block.streamed(step)));
    }

    typename K::ScoreWeights p;
    typename K::ScoreWeights ds;
    if (K::column_warp() < K::kTile.score_warps()) {
      block.template compute_weights<kGeneral>(terms, block.streamed(step), step, p, ds);
    }
    if (K::kExchanges || sums_dq) __syncthreads();  // weights are in shared memory
    if (more && !kTwoStats) block.copy_streamed_stats(block.streamed(next), next);

    // Atomics are on their way while the other sums are computed; with one stage the copies are,
    // while dq is.
    if (!kOneStage && sums_dq) block.add_dq(block.streamed(step));
    if constexpr (K::kKeysSide) {
      if (args.dv_info.dtype != DType::kNone) {
        block.accumulate(second, p, K::kMap.p, K::streamed_at(stage, 1));
      }
    }
    if (kOneStage) {
      __syncthreads();  // v or dout is free
      if (more) block.template copy_streamed<1>(block.streamed(next), 0);
    }
    if (!K::kKeysSide || args.dk_info.dtype != DType::kNone) {
      block.accumulate(first, ds, K::kMap.ds, K::streamed_at(stage, 0));
    }
    if (kOneStage) {
      __syncthreads();  // k or q is free
      if (more) block.template copy_streamed<0>(block.streamed(next), 0);
    }
    ptx::copy_async_commit();
    if (kOneStage && sums_dq) block.add_dq(block.streamed(step));
  }
  ptx::copy_async_wait<0>();
}

template <class Element, class Tile, bool kGeneral>
static __global__ void __launch_bounds__(Tile::tile.threads(), Tile::tile.blocks_per_sm)
    gradient_kernel(const __grid_constant__ BackwardArgs args) {
  using K = Kernel<Element, Tile>;
  const GradientBlock<K> block(args);
  if (threadIdx.x == 0) block.describe(held_tile<K::kTile.side, K::kHeld>(args));
  __syncthreads();
  if (!block.tile.present) return;
  typename K::Sums first;   // dk or dq
  typename K::Sums second;  // dv
  first.clear();
  second.clear();
  if (block.work.steps > 0) sum_gradients<K, kGeneral>(block, first, second);
  const WarpSums where{.row = K::held_row(), .column = K::column_warp() * 8 * K::kSumTiles};
  if constexpr (K::kKeysSide) {
    store_key_gradient(args.dk, args.dk_info, block.tile, where, args.attention.headdim,
                       args.attention.score.softmax_scale, first);
    store_key_gradient(args.dv, args.dv_info, block.tile, where, args.attention.headdim_v, 1.0f,
                       second);
  } else {
    store_dq(args, block.tile, where, first);
  }
}

}  // namespace foveal::cuda::bwd
