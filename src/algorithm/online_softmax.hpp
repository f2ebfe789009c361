// Softmax over a row whose scores arrive block by block.
// Milakov & Gimelshein 2018, Alg. 3; the accumulator's rescaling is FlashAttention's (Dao 2022).
#pragma once

#include <cmath>
#include <limits>

#include "core/host_device.hpp"

namespace foveal::algorithm {

inline constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

/// Running state of one row. Weights are exp(score - row_max); out so far is acc / row_sum.
struct SoftmaxState {
  float row_max = kNegativeInfinity;
  float row_sum = 0.0f;
};

/// What to subtract before exp: a row that has seen only -inf keeps weights exp(-inf - 0) = 0 in
/// place of exp(-inf + inf) = NaN.
FOVEAL_HOST_DEVICE constexpr float softmax_offset(float row_max) {
  return row_max == kNegativeInfinity ? 0.0f : row_max;
}

/// The factor for row_sum and the accumulator when the maximum moves from old_max to new_max. It is
/// 0 for a row without a key so far, whose sum and accumulator are 0 anyway.
FOVEAL_HOST_DEVICE inline float rescale_factor(float old_max, float new_max) {
  return old_max == new_max ? 1.0f : std::exp(old_max - softmax_offset(new_max));
}

/// The log-sum-exp of a finished row; -inf when it saw no key and no sink.
FOVEAL_HOST_DEVICE inline float row_lse(const SoftmaxState& state) {
  return state.row_sum == 0.0f ? kNegativeInfinity
                               : softmax_offset(state.row_max) + std::log(state.row_sum);
}

/// 1 / row_sum, and 0 for a row that saw nothing, whose output is 0.
FOVEAL_HOST_DEVICE constexpr float inverse_row_sum(float row_sum) {
  return row_sum == 0.0f ? 0.0f : 1.0f / row_sum;
}

/// A sink takes part in the sum and adds no value: fold it in after the last key. Returns the
/// factor for the accumulator. A sink of -inf changes nothing.
FOVEAL_HOST_DEVICE inline float fold_sink(SoftmaxState& state, float sink) {
  const float new_max = sink > state.row_max ? sink : state.row_max;
  const float factor = rescale_factor(state.row_max, new_max);
  state.row_sum = state.row_sum * factor + std::exp(sink - softmax_offset(new_max));
  state.row_max = new_max;
  return factor;
}

}  // namespace foveal::algorithm
