// One warp's attention over its blocks of keys. Products are transposed: S^T[16 keys, 8 rows] =
// K . Q^T and O^T[d, 8 rows] = V^T . P^T, so that both accumulators hold the packed query rows 2t
// and 2t + 1 in the same lanes and softmax's maxima and sums never change lanes.
#pragma once

#include <cstdint>

#include "algorithm/online_softmax.hpp"
#include "cuda/portable/decode/ring.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/matrix.cuh"

namespace foveal::cuda::decode {

inline constexpr float kLn2 = 0.6931471805599453f;

/// Running softmax of kTiles x 8 packed rows over the warp's keys, maxima in log2 units. Index h of
/// a tile is row 2t + h.
template <int kHeaddim, int kTiles>
struct WarpState {
  float row_max[kTiles][2];
  float row_sum[kTiles][2];             ///< Of this lane's keys alone.
  float acc[kTiles][kHeaddim / 16][4];  ///< O^T: d rows g and g + 8, packed rows 2t and 2t + 1.

  FOVEAL_DEVICE WarpState() {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        row_max[tile][h] = algorithm::kNegativeInfinity;
        row_sum[tile][h] = 0.0f;
      }
#pragma unroll
      for (int m = 0; m < kHeaddim / 16; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[tile][m][i] = 0.0f;
      }
    }
  }
};

/// Over the lanes that share t: all keys of a block.
FOVEAL_DEVICE float max_over_keys(float x) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, lanes));
  return x;
}
FOVEAL_DEVICE float sum_over_keys(float x) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) x += __shfl_xor_sync(~0u, x, lanes);
  return x;
}

/// tanh by one exponential: absolute error below 2^-21.
FOVEAL_DEVICE float tanh_approx(float x) {
  return 1.0f - 2.0f / (ptx::exp2_approx(2.0f * kLog2E * x) + 1.0f);
}

/// The queries of a tile, as the B operand of S^T = K . Q^T: in registers where the accumulators
/// leave room, else read from shared memory for each block of keys.
template <int kHeaddim, int kTiles>
class QueryTile {
 public:
  static constexpr bool kInRegisters = kTiles == 1 && kHeaddim <= 128;

  FOVEAL_DEVICE explicit QueryTile(std::uint32_t q_tile) : q_tile_(q_tile) {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int step = 0; step < kHeaddim / 32; ++step) read(registers_[step], 0, step);
    }
  }

  /// 32 elements of d from 32 * step on, as two k-steps of an MMA.
  FOVEAL_DEVICE void load(std::uint32_t (&q)[4], int tile, int step) const {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int i = 0; i < 4; ++i) q[i] = registers_[step][i];
    } else {
      read(q, tile, step);
    }
  }

 private:
  FOVEAL_DEVICE void read(std::uint32_t (&q)[4], int tile, int step) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    ptx::ldmatrix_x4(
        q, q_tile_ + swizzled<kHeaddim * 2>(tile * kTileRows + lane % 8, 4 * step + lane / 8));
  }

  std::uint32_t q_tile_;
  std::uint32_t registers_[kInRegisters ? kHeaddim / 32 : 1][4];
};

/// S^T of one block, before the scale: element i of a tile is key g + 8 * (i / 2), row 2t + i % 2.
template <class Element, int kHeaddim, int kTiles, class Queries>
FOVEAL_DEVICE void multiply_keys(float (&scores)[kTiles][4], std::uint32_t k_tile,
                                 const Queries& queries) {
  constexpr int kRowBytes = kHeaddim * 2;
  const int lane = static_cast<int>(threadIdx.x % 32);
  // One tile alone would wait for each product before the next: it gets a second chain of sums.
  constexpr bool kTwoChains = kTiles == 1;
  float odd[4] = {};
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[tile][i] = 0.0f;
  }
#pragma unroll
  for (int step = 0; step < kHeaddim / 32; ++step) {  // 32 elements of d
    std::uint32_t k[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ptx::ldmatrix_x4(k[half],
                       k_tile + swizzled<kRowBytes>(lane % 16, 4 * step + 2 * half + lane / 16));
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      std::uint32_t q[4];
      queries.load(q, tile, step);
      ptx::mma_m16n8k16<Element>(scores[tile], k[0], q[0], q[1]);
      ptx::mma_m16n8k16<Element>(kTwoChains ? odd : scores[tile], k[1], q[2], q[3]);
    }
  }
  if constexpr (kTwoChains) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[0][i] += odd[i];
  }
}

/// Scale, softcap and ALiBi, into log2 units; -inf where the row does not see the key.
template <int kTiles>
FOVEAL_DEVICE void finish_scores(float (&scores)[kTiles][4], const ScoreArgs& args,
                                 const RowInfo* rows, int first_key, bool masked) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int g = lane / 4;
  const int t = lane % 4;
  const bool plain = args.softcap == 0.0f && args.alibi_slopes == nullptr;
  const float scale_log2 = args.softmax_scale * kLog2E;
  if (plain) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[tile][i] *= scale_log2;
    }
    if (!masked) return;
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const RowInfo row = rows[tile * kTileRows + 2 * t + h];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& score = scores[tile][2 * half + h];
        const int key = first_key + g + 8 * half;
        if (!plain) {
          score *= args.softmax_scale;
          if (args.softcap != 0.0f) score = args.softcap * tanh_approx(score / args.softcap);
          score = score * kLog2E - row.slope * fabsf(static_cast<float>(row.diagonal - key));
        }
        if (key < row.first_key || key >= row.end_key) score = algorithm::kNegativeInfinity;
      }
    }
  }
}

/// How far, in log2 units, a score may lie above a row's reference maximum before the state moves
/// to a new one: weights up to 2^8 are as precise as those up to 1.
inline constexpr float kMaxAboveReference = 8.0f;

/// The state moves to maxima that are not below any score of the block.
/// Milakov & Gimelshein 2018, Alg. 3.
template <int kHeaddim, int kTiles>
FOVEAL_DEVICE void raise_maxima(WarpState<kHeaddim, kTiles>& state,
                                const float (&scores)[kTiles][4]) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float old_max = state.row_max[tile][h];
      const float new_max =
          fmaxf(old_max, max_over_keys(fmaxf(scores[tile][h], scores[tile][h + 2])));
      const float factor = ptx::exp2_approx(old_max - algorithm::softmax_offset(new_max));
      state.row_max[tile][h] = new_max;
      state.row_sum[tile][h] *= factor;
#pragma unroll
      for (int m = 0; m < kHeaddim / 16; ++m) {
        state.acc[tile][m][h] *= factor;
        state.acc[tile][m][h + 2] *= factor;
      }
    }
  }
}

/// Scores become weights exp2(score - row_max). row_max is the maximum of the keys so far, or less
/// by at most kMaxAboveReference: most blocks leave it and the accumulators alone.
template <int kHeaddim, int kTiles>
FOVEAL_DEVICE void online_softmax(WarpState<kHeaddim, kTiles>& state, float (&scores)[kTiles][4]) {
  bool above = false;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      above |= scores[tile][i] > state.row_max[tile][i % 2] + kMaxAboveReference;
    }
  }
  if (__any_sync(~0u, above)) raise_maxima<kHeaddim, kTiles>(state, scores);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float offset = algorithm::softmax_offset(state.row_max[tile][i % 2]);
      scores[tile][i] = ptx::exp2_approx(scores[tile][i] - offset);
      state.row_sum[tile][i % 2] += scores[tile][i];
    }
  }
}

/// O^T += V^T . P^T over one block.
template <class Element, int kHeaddim, int kTiles>
FOVEAL_DEVICE void multiply_values(WarpState<kHeaddim, kTiles>& state,
                                   const float (&weights)[kTiles][4], std::uint32_t v_tile) {
  constexpr int kRowBytes = kHeaddim * 2;
  const int lane = static_cast<int>(threadIdx.x % 32);
  std::uint32_t p[kTiles][2];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      p[tile][half] = ptx::movmatrix_trans(
          ptx::pack_pair<Element>(weights[tile][2 * half], weights[tile][2 * half + 1]));
    }
  }
  const int row = lane % 8 + lane / 16 * 8;
#pragma unroll
  for (int m = 0; m < kHeaddim / 16; ++m) {
    std::uint32_t v[4];
    ptx::ldmatrix_x4_trans(v, v_tile + swizzled<kRowBytes>(row, 2 * m + lane / 8 % 2));
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      ptx::mma_m16n8k16<Element>(state.acc[tile][m], v, p[tile][0], p[tile][1]);
    }
  }
}

/// The warp's share of a segment: 1. copy ahead, 2. scores, 3. mask, 4. softmax, 5. accumulate.
/// `whole` are the keys that every row of the tile sees.
template <class Element, int kHeaddim, int kTiles>
FOVEAL_DEVICE void attend_segment(WarpState<kHeaddim, kTiles>& state, const DecodeArgs& args,
                                  KeyRing<Element, kHeaddim>& ring, std::uint32_t q_tile,
                                  const RowInfo* rows, KeyRange whole) {
  const QueryTile<kHeaddim, kTiles> queries(q_tile);
#pragma unroll 1
  for (int i = 0; ring.has(i); ++i) {
    ring.load(i + args.num_stages - 1);
    wait_for_copies(args.num_stages - 1);
    __syncwarp();
    const int first_key = ring.first_key(i);
    const bool masked = first_key < whole.min || first_key + kBlockKeys > whole.max;
    float scores[kTiles][4];
    multiply_keys<Element, kHeaddim, kTiles>(scores, ring.k_tile(i), queries);
    finish_scores<kTiles>(scores, args.attention.score, rows, first_key, masked);
    online_softmax<kHeaddim, kTiles>(state, scores);
    multiply_values<Element, kHeaddim, kTiles>(state, scores, ring.v_tile(i));
    __syncwarp();  // the block's ring slot may be overwritten
  }
  wait_for_copies(0);
}

}  // namespace foveal::cuda::decode
