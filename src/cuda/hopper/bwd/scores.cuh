// What a consumer does to its accumulators of scores between products. Thread (g, t) = (lane / 4,
// lane % 4) of warp w has keys 16 w + g and 16 w + g + 8, and of every 8 rows 2 t and 2 t + 1.
#pragma once

#include <cstdint>

#include "cuda/hopper/backward_softcap.cuh"
#include "cuda/hopper/bwd/args.hpp"
#include "cuda/hopper/bwd/shared_memory.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/special_registers.cuh"

namespace foveal::cuda::hopper::bwd {

/// Place of the thread in its warpgroup. Registers are scarcer than instructions: what is computed
/// from it is computed anew where it is used.
FOVEAL_DEVICE int thread_of_group() {
  return static_cast<int>(ptx::thread_index_anew() % kGroupThreads);
}

/// A number of each row, of rows 2 t and 2 t + 1 of the first eight; those of the next lie 4 pairs
/// further.
FOVEAL_DEVICE const float2* row_pairs(const float* values) {
  return reinterpret_cast<const float2*>(values) + thread_of_group() % 4;
}

/// Scores become weights.
template <int kCount>
FOVEAL_DEVICE void exponentiate(const GradientArgs& args, const float* lse, float (&s)[kCount]) {
  if (args.softcap.is_on()) cap_products(args.softcap, s);
  const float2* all = row_pairs(lse);
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float2 pair = all[4 * j];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[4 * j + e] =
          ptx::exp2_approx(fmaf(s[4 * j + e], args.scale_log2, e % 2 == 0 ? -pair.x : -pair.y));
    }
  }
}

/// dp becomes ds = p (dp - delta).
template <int kCount>
FOVEAL_DEVICE void differentiate(const GradientArgs& args, const float* lse, const float* delta,
                                 const float (&p)[kCount], float (&dp)[kCount]) {
  const float2* all = row_pairs(delta);
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float2 pair = all[4 * j];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      dp[4 * j + e] = p[4 * j + e] * (dp[4 * j + e] - (e % 2 == 0 ? pair.x : pair.y));
    }
  }
  if (args.softcap.is_on()) apply_slopes(args.softcap, p, row_pairs(lse), dp);
}

/// What the mask hides becomes 0, whatever it was. first_key: of the consumer's. Of a tile that
/// needs a mask there are warps whose keys all rows see.
template <int kCount>
FOVEAL_DEVICE void hide(const BlockWork& work, int first_key, int first_row,
                        float (&values)[kCount]) {
  constexpr int kRows = 2 * kCount;
  const int lane = thread_of_group() % 32;
  const int key = first_key + thread_of_group() / 32 * 16 + lane / 4;
  const int row = first_row + 2 * (lane % 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const algorithm::BasicRange<std::int32_t> seen = work.rows_of_key(key + 8 * half);
    const int min = seen.min - row;
    const int max = seen.max - row;
    if (!__any_sync(~0u, min > 0 || max < kRows)) continue;
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (8 * j + e < min || 8 * j + e >= max) values[4 * j + 2 * half + e] = 0.0f;
      }
    }
  }
}

/// Rounded, as a left operand of wgmma.
template <class Element, int kCount>
FOVEAL_DEVICE void pack(const float (&values)[kCount], std::uint32_t (&weights)[kCount / 8][4]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    weights[i / 4][i % 4] = ptx::pack_pair<Element>(values[2 * i], values[2 * i + 1]);
  }
}

}  // namespace foveal::cuda::hopper::bwd
