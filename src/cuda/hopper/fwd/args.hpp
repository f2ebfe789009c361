// What hopper_fwd is given: the attention, descriptions of q, k and v for the copy engine, and how
// its tiles are numbered.
#pragma once

#include <cstddef>
#include <cstdint>

#include "algorithm/mask.hpp"
#include "cuda/attention_args.hpp"
#include "cuda/runtime/tensor_map.hpp"

namespace foveal::cuda::hopper {

/// Tiles in the order in which they are begun, the longest first.
struct ForwardSchedule {
  std::int32_t tile_m = 0;
  std::int32_t m_blocks = 0;  ///< Dense q: tiles of a sequence and head.
  /// Dense q: (sequence, head) pairs whose tiles are begun side by side: as many as share the L2
  /// cache with their keys.
  std::int32_t section = 1;
  std::int32_t num_tiles = 0;  ///< Packed q: an upper bound.
  bool packed = false;
  /// Dense q: a tile's consumers have rows from different parts of the sequence, so that tiles of a
  /// causal mask are alike. Else they have adjacent ones.
  bool spread = false;
};

/// An odd polynomial in place of softcap's tanh, everything that is constant multiplied into its
/// coefficients: a score in the exponent's unit is x (terms[0] + terms[1] x^2 + ...), with x = q.k.
template <std::size_t kTerms>
struct CapPolynomial {
  float max_square = -1.0f;  ///< Of x, up to which it holds; < 0: for no score.
  float terms[kTerms] = {};
};

/// softcap of scores that are well below the cap, without the special-function unit.
struct LowScores {
  CapPolynomial<2> cubic;
  CapPolynomial<3> quintic;
};

struct ForwardArgs {
  TensorMap q;  ///< (column, row, head, sequence); packed: one sequence.
  TensorMap k;  ///< (column, row, head, sequence or page)
  TensorMap v;
  AttentionArgs attention;
  algorithm::BasicWindow<std::int32_t> window;
  ForwardSchedule schedule;
  /// The number of tiles begun, in the lower half; valid where the upper half is the nonce's. Null
  /// where every tile has a block of its own.
  unsigned long long* begun = nullptr;
  std::uint32_t nonce = 0;
  std::int32_t box_rows = 0;     ///< Keys that one copy brings: a whole block, or a part of a page.
  bool scale_first = false;      ///< Before the softmax, not in its exponent.
  float scale_first_factor = 0;  ///< softmax_scale, over softcap where there is one.
  LowScores low_scores;
  bool out_whole_units = false;  ///< Out's rows are whole aligned units of 16 bytes.
  bool out_in_pairs = false;     ///< Two adjacent elements of out can be stored at once.
};

}  // namespace foveal::cuda::hopper
