// dbias = ds, summed over whatever bias is broadcast to: a block owns a tile of dbias and goes
// through everything that belongs to it in a fixed order, so that nothing is added by atomics.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/portable/bwd/kernel.cuh"

namespace foveal::cuda::bwd {

/// Along one axis, the indices that go into a tile of dbias: its own, or all where bias has one.
struct DbiasRange {
  int min = 0;
  int max = 0;
};
FOVEAL_DEVICE DbiasRange summed_range(int index, int shape, int full, int tile) {
  if (shape == 1) return {0, full};
  return {index * tile, min_of(index * tile + tile, full)};
}

/// One block's tile of dbias: sequences, heads, and its place among rows and columns.
struct DbiasTile {
  DbiasRange batch, heads;
  int b = 0;
  int head = 0;
  int row_tile = 0;
  int column_tile = 0;
};

FOVEAL_DEVICE DbiasTile dbias_tile(const DbiasArgs& args) {
  DbiasTile tile;
  std::uint32_t rest = blockIdx.x;
  tile.column_tile = static_cast<int>(rest % args.column_tiles);
  rest /= args.column_tiles;
  tile.row_tile = args.row_tiles - 1 - static_cast<int>(rest % args.row_tiles);
  rest /= args.row_tiles;
  tile.head = static_cast<int>(rest % args.shape[1]);
  tile.b = static_cast<int>(rest / args.shape[1]);
  const AttentionArgs& attention = args.backward.attention;
  tile.batch = summed_range(tile.b, args.shape[0], attention.batch, 1);
  tile.heads = summed_range(tile.head, args.shape[1], attention.nheads_q, 1);
  return tile;
}

/// Adds ds of rows [row, + held) and keys [key, + streamed) of one sequence and head.
template <class K>
FOVEAL_DEVICE void add_score_tile(const BackwardArgs& args, const ScoreTerms& terms,
                                  const HeldTile& tile, int key, typename K::Scores& sums) {
  using Element = typename K::Element;
  constexpr int kRowBytes = K::template Layout<K::kHeaddim>::kRowBytes;
  const GradientBlock<K> block(args);
  __syncthreads();  // nobody reads the tiles of the step before
  if (threadIdx.x == 0) block.describe(tile);
  __syncthreads();
  block.copy_held();
  const OperandPair pair =
      keys_and_values(args, tile.sequence, tile.head / args.attention.qhead_per_khead);
  copy_rows<Element, K::kHeaddim, K::kStreamed, K::kThreads>(K::streamed_at(0, 0), pair.first, key,
                                                             block.work.streamed_readable);
  copy_rows<Element, K::kHeaddim, K::kStreamed, K::kThreads>(K::streamed_at(0, 1), pair.second, key,
                                                             block.work.streamed_readable);
  block.copy_held_stats();
  ptx::copy_async_commit();
  ptx::copy_async_wait<0>();
  __syncthreads();
  if (K::column_warp() >= K::kTile.score_warps()) return;
  const WarpScores where{.row = K::held_row(),
                         .column = K::column_warp() * 8 * K::kScoreTiles,
                         .held_first = tile.first,
                         .streamed_first = key,
                         .held_stats = K::kMap.held_stats};
  typename K::Scores scores;
  typename K::Scores gradients;
  scores.clear();
  gradients.clear();
  add_scores<Element, K::kHeaddim>(scores, K::held_at(0) + where.row * kRowBytes,
                                   K::streamed_at(0, 0) + where.column * kRowBytes);
  add_scores<Element, K::kHeaddim>(gradients, K::held_at(1) + where.row * kRowBytes,
                                   K::streamed_at(0, 1) + where.column * kRowBytes);
  score_gradients<K::kTile.side, true, true>(terms, block.tile, where, scores, gradients, true,
                                             [&](int i, int j) {
#pragma unroll
                                               for (int e = 0; e < 4; ++e)
                                                 sums.c[i][j][e] += gradients.c[i][j][e];
                                             });
}

/// Adds everything of one sequence and head that belongs to the tile.
template <class K>
FOVEAL_DEVICE void add_sequence(const DbiasArgs& dbias, const DbiasTile& at, ScoreTerms& terms,
                                int b, int head, typename K::Scores& sums) {
  const BackwardArgs& args = dbias.backward;
  HeldTile tile;
  tile.sequence = make_sequence(args, b, algorithm::seqlen_info(args.attention.lengths, b));
  tile.head = head;
  tile.used = {0, static_cast<int>(tile.sequence.mask.seqlen_q)};
  tile.readable = tile.sequence.seeing_rows();
  terms.enter(args.attention, tile.sequence, head);
  const DbiasRange rows = summed_range(at.row_tile, dbias.shape[2], dbias.seqlen_q, K::kHeld);
  const DbiasRange keys =
      summed_range(at.column_tile, dbias.shape[3], dbias.seqlen_k, K::kStreamed);
  for (int row = rows.min; row < min_of(rows.max, tile.used.max); row += K::kHeld) {
    tile.first = row;
    const Range seen = tile.sequence.mask.keys_of_rows({row, row + K::kHeld});
    const Range wanted = algorithm::intersect(seen, {keys.min, keys.max});
    if (wanted.empty()) continue;
    int key = keys.min + static_cast<int>(wanted.min - keys.min) / K::kStreamed * K::kStreamed;
    for (; key < wanted.max; key += K::kStreamed) {
      add_score_tile<K>(args, terms, tile, key, sums);
    }
  }
}

/// The tile's sums, through shared memory, to dbias: an element a thread, which also adds up the
/// tile's rows and columns where dbias has one.
template <class K>
FOVEAL_DEVICE void store_dbias(const DbiasArgs& args, const DbiasTile& at,
                               const typename K::Scores& sums) {
  constexpr int kHeld = K::kHeld;
  constexpr int kStreamed = K::kStreamed;
  static_assert(kHeld * kStreamed * 4 <= K::kMap.ds);
  auto* tile = memory_at<float>(0);
  __syncthreads();
  if (K::column_warp() < K::kTile.score_warps()) {
    const int row = K::held_row() + lane_of_warp() / 4;
    const int column = K::column_warp() * 8 * K::kScoreTiles + 2 * (lane_of_warp() % 4);
#pragma unroll
    for (int i = 0; i < K::kRowBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < K::kScoreTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          tile[(row + 16 * i + 8 * (e / 2)) * kStreamed + column + 8 * j + e % 2] = sums.c[i][j][e];
        }
      }
    }
  }
  __syncthreads();
  const int rows = args.shape[2] == 1 ? 1 : min_of(kHeld, args.shape[2] - at.row_tile * kHeld);
  const int columns =
      args.shape[3] == 1 ? 1 : min_of(kStreamed, args.shape[3] - at.column_tile * kStreamed);
  const int rows_each = args.shape[2] == 1 ? kHeld : 1;
  const int columns_each = args.shape[3] == 1 ? kStreamed : 1;
  for (int index = static_cast<int>(threadIdx.x); index < rows * columns; index += K::kThreads) {
    const int row = index / columns;
    const int column = index % columns;
    float sum = 0.0f;
    for (int r = row; r < row + rows_each; ++r) {
      for (int c = column; c < column + columns_each; ++c) sum += tile[r * kStreamed + c];
    }
    store_as(args.dtype, args.dbias,
             at.b * args.strides.batch + at.head * args.strides.head +
                 (at.row_tile * kHeld + row) * args.strides.row +
                 (at.column_tile * kStreamed + column) * args.strides.column,
             sum);
  }
}

template <class Element, class Tile>
static __global__ void __launch_bounds__(Tile::tile.threads(), Tile::tile.blocks_per_sm)
    dbias_kernel(const __grid_constant__ DbiasArgs args) {
  using K = Kernel<Element, Tile>;
  static_assert(!K::kKeysSide);
  const DbiasTile at = dbias_tile(args);
  ScoreTerms terms(args.backward.attention, args.backward.attention.dropout.load());
  typename K::Scores sums;
  sums.clear();
  for (int b = at.batch.min; b < at.batch.max; ++b) {
    for (int head = at.heads.min; head < at.heads.max; ++head) {
      add_sequence<K>(args, at, terms, b, head, sums);
    }
  }
  store_dbias<K>(args, at, sums);
}

}  // namespace foveal::cuda::bwd
