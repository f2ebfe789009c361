// What comes between the product q.k and the weights, on a warp's fragment of scores: softcap,
// ALiBi, bias, the mask, and dropout after the softmax.
//
// Lane (g, t) of a fragment s[i][j][e] has packed rows `row + 16 i` (e < 2) and `row + 16 i + 8`,
// keys `key + 8 j + e % 2`, where row counts its g and key its 2t.
#pragma once

#include <cstdint>

#include "algorithm/dropout.hpp"
#include "algorithm/mask.hpp"
#include "algorithm/online_softmax.hpp"
#include "algorithm/score.hpp"
#include "cuda/portable/fwd/work.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/tile/element.cuh"

namespace foveal::cuda::portable {

/// Where a lane's fragment lies.
struct LanePlace {
  std::int32_t row;  ///< Packed row of the sequence.
  std::int32_t key;
};

/// The capped score, to 2^-22 of softcap for 16-bit operands, which leave much more.
template <class Element>
FOVEAL_DEVICE float cap(const ForwardArgs& args, float score) {
  const float softcap = args.attention.score.softcap;
  if (sizeof(Element) == 4) return algorithm::cap_score(score, softcap);
  return softcap - __fdividef(args.cap_double, ptx::exp2_approx(args.cap_log2 * score) + 1.0f);
}

template <class Element, int kRowTiles, int kKeyTiles>
FOVEAL_DEVICE void scale_and_cap(float (&s)[kRowTiles][kKeyTiles][4], const ForwardArgs& args) {
  const ScoreArgs& score = args.attention.score;
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = s[i][j][e];
        x *= score.softmax_scale;
        if (score.softcap > 0) x = cap<Element>(args, x);
      }
    }
  }
}

template <int kRowTiles, int kKeyTiles>
FOVEAL_DEVICE void add_alibi(float (&s)[kRowTiles][kKeyTiles][4], const ScoreArgs& score,
                             const ForwardWork& work, LanePlace place) {
  const auto shift = static_cast<std::int32_t>(work.lengths.seqlen_k - work.lengths.seqlen_q);
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int32_t r = place.row + 16 * i + 8 * half;
      // Rows past the last have no head that is their own; what they get is not stored.
      const float slope = score.alibi_slopes[work.b * score.alibi_batch_stride +
                                             work.query_head(r) * score.alibi_head_stride];
      const std::int32_t distance = work.query_row(r) + shift - place.key;
#pragma unroll
      for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          s[i][j][2 * half + e] -= slope * static_cast<float>(abs(distance - 8 * j - e));
        }
      }
    }
  }
}

FOVEAL_DEVICE float bias_value(const std::uint8_t& element) {
  return element != 0 ? 0.0f : algorithm::kNegativeInfinity;
}
template <class Element>
FOVEAL_DEVICE float bias_value(const Element& element) {
  return to_float(element);
}

/// Reads only what belongs to rows and keys that exist.
template <class BiasElement, int kRowTiles, int kKeyTiles>
FOVEAL_DEVICE void add_bias_elements(float (&s)[kRowTiles][kKeyTiles][4], const ScoreArgs& score,
                                     const ForwardWork& work, LanePlace place) {
  const BiasStrides& strides = score.bias_strides;
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int32_t r = place.row + 16 * i + 8 * half;
      if (r >= work.used_rows) continue;
      const auto* from = static_cast<const BiasElement*>(score.bias) + work.b * strides.batch +
                         work.query_head(r) * strides.head + work.query_row(r) * strides.row +
                         place.key * strides.column;
      const auto keys = static_cast<std::int32_t>(work.lengths.seqlen_k) - place.key;
#pragma unroll
      for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (8 * j + e >= keys) continue;
          s[i][j][2 * half + e] += bias_value(from[(8 * j + e) * strides.column]);
        }
      }
    }
  }
}

template <class Element, int kRowTiles, int kKeyTiles>
FOVEAL_DEVICE void add_bias(float (&s)[kRowTiles][kKeyTiles][4], const ScoreArgs& score,
                            const ForwardWork& work, LanePlace place) {
  if (score.bias_dtype == DType::kBool) {
    add_bias_elements<std::uint8_t>(s, score, work, place);
  } else if (score.bias_dtype == DType::kFloat32) {
    add_bias_elements<float>(s, score, work, place);
  } else {
    add_bias_elements<Element>(s, score, work, place);
  }
}

/// Products become scores times log2(e), all terms but the mask in them.
template <class Element, int kRowTiles, int kKeyTiles>
FOVEAL_DEVICE void add_score_terms(float (&s)[kRowTiles][kKeyTiles][4], const ForwardArgs& args,
                                   const ForwardWork& work, LanePlace place) {
  const ScoreArgs& score = args.attention.score;
  scale_and_cap<Element>(s, args);
  if (score.alibi_slopes != nullptr) add_alibi(s, score, work, place);
  if (score.bias != nullptr) add_bias<Element>(s, score, work, place);
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[i][j][e] *= kLog2E;
    }
  }
}

/// -inf where the mask hides the key.
template <int kRowTiles, int kKeyTiles>
FOVEAL_DEVICE void mask_scores(float (&s)[kRowTiles][kKeyTiles][4], const ScoreArgs& score,
                               const ForwardWork& work, LanePlace place) {
  const algorithm::Mask mask{work.lengths.seqlen_q, work.lengths.seqlen_k, score.window};
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const algorithm::Range keys = mask.keys_of_row(work.query_row(place.row + 16 * i + 8 * half));
      constexpr std::int64_t kEnd = 8 * kKeyTiles;
      const int min = static_cast<int>(clamp_to<std::int64_t>(keys.min - place.key, 0, kEnd));
      const int max = static_cast<int>(clamp_to<std::int64_t>(keys.max - place.key, 0, kEnd));
#pragma unroll
      for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (8 * j + e < min || 8 * j + e >= max) {
            s[i][j][2 * half + e] = algorithm::kNegativeInfinity;
          }
        }
      }
    }
  }
}

/// One bit for each element of a fragment, s[i][j][e] at 4 (kKeyTiles i + j) + e.
using FragmentBits = std::uint32_t;

/// The elements that dropout takes away. A Philox call gives four columns of a row, which two
/// neighbouring lanes hold: of the two rows that they share, the even lane draws for row g and the
/// odd one for row g + 8, and they exchange.
template <int kRowTiles, int kKeyTiles>
FOVEAL_DEVICE FragmentBits dropped_elements(const algorithm::Dropout& dropout,
                                            std::int32_t nheads_q, const ForwardWork& work,
                                            LanePlace place) {
  static_assert(4 * kRowTiles * kKeyTiles <= 32);
  const bool odd = threadIdx.x % 2 != 0;
  FragmentBits dropped = 0;
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    const std::int32_t r = place.row + 16 * i + (odd ? 8 : 0);
    const std::int64_t batch_head =
        static_cast<std::int64_t>(work.b) * nheads_q + work.query_head(r);
    const std::int32_t row = work.query_row(r);
#pragma unroll
    for (int j = 0; j < kKeyTiles; ++j) {
      const algorithm::PhiloxWords own =
          algorithm::dropout_words(dropout, batch_head, row, (place.key + 8 * j) / 4);
      const std::uint32_t got[2] = {
          __shfl_xor_sync(~0u, odd ? own.word[0] : own.word[2], 1),
          __shfl_xor_sync(~0u, odd ? own.word[1] : own.word[3], 1),
      };
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const std::uint32_t top = odd ? got[e] : own.word[e];
        const std::uint32_t bottom = odd ? own.word[2 + e] : got[e];
        const int bit = 4 * (kKeyTiles * i + j) + e;
        if (top < dropout.threshold) dropped |= 1u << bit;
        if (bottom < dropout.threshold) dropped |= 1u << (bit + 2);
      }
    }
  }
  return dropped;
}

/// Weights of dropped elements become 0; those that stay are scaled in the end, with the row.
template <int kRowTiles, int kKeyTiles>
FOVEAL_DEVICE void drop_weights(float (&p)[kRowTiles][kKeyTiles][4], FragmentBits dropped) {
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if ((dropped >> (4 * (kKeyTiles * i + j) + e) & 1u) != 0) p[i][j][e] = 0.0f;
      }
    }
  }
}

}  // namespace foveal::cuda::portable
