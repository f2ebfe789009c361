// What hopper_fwd is given: the attention, descriptions of q, k and v for the copy engine, and how
// its tiles are numbered.
#pragma once

#include <cstddef>
#include <cstdint>

#include "algorithm/mask.hpp"
#include "core/host_device.hpp"
#include "cuda/attention_args.hpp"
#include "cuda/runtime/tensor_map.hpp"

namespace foveal::cuda::hopper {

/// Tiles in the order in which they are begun, the longest first.
struct ForwardSchedule {
  std::int32_t tile_m = 0;
  std::int32_t m_blocks = 0;  ///< Dense q: tiles of a sequence and head.
  /// (Sequence, head) pairs whose tiles are begun side by side: as many as share the L2 cache with
  /// their keys. Packed q: heads, each of all sequences.
  std::int32_t section = 1;
  std::int32_t num_tiles = 0;  ///< Packed q: an upper bound.
  bool packed = false;
  /// Dense q: a tile's consumers have rows from different parts of the sequence, so that tiles of a
  /// causal mask are alike. Else they have adjacent ones.
  bool spread = false;
};

/// Weights that a lane adds up of a row and block, at most.
inline constexpr int kMaxLaneKeys = 32;

/// An odd polynomial in place of softcap's tanh, everything that is constant multiplied into its
/// coefficients: a score in the exponent's unit is x (terms[0] + terms[1] x^2 + ...), with x = q.k.
/// Its last coefficient has the first one's sign: like tanh, it is monotone.
template <std::size_t kTerms>
struct CapPolynomial {
  float limit = 0;  ///< Of |x|, up to which it holds.
  /// It may take the place of tanh in a block where the sums of 2^score that a lane has of a row
  /// are between these: no score is above what it holds for, and those below don't count.
  float min_sum = 0;
  float max_sum = -1.0f;
  float terms[kTerms] = {};

  [[nodiscard]] FOVEAL_HOST_DEVICE bool is_usable() const { return max_sum > min_sum; }
};

/// softcap of scores, which are in the exponent's unit.
struct ScoreCap {
  float max_log2 = 0;  ///< The cap; 0: there is none.
  float double_max_log2 = 0;
  float double_factor_log2 = 0;  ///< tanh(z): 2 to this times q.k is e^(2 z).
  CapPolynomial<3> quintic;
  CapPolynomial<5> ninth;
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
  std::int32_t box_rows = 0;  ///< Keys that one copy brings: a whole block, or a part of a page.
  bool scale_first = false;   ///< Before the softmax, not in its exponent.
  float scale_log2 = 0;       ///< softmax_scale in the exponent's unit.
  ScoreCap cap;
  bool out_whole_units = false;  ///< Out's rows are whole aligned units of 16 bytes.
  bool out_in_pairs = false;     ///< Two adjacent elements of out can be stored at once.
};

}  // namespace foveal::cuda::hopper
