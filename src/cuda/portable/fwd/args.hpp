// What portable_fwd is given: the attention, how its tiles are numbered over blocks, and where the
// partial results of splits go.
#pragma once

#include <cstdint>

#include "cuda/attention_args.hpp"

namespace foveal::cuda::portable {

/// A tile's keys are split into at most so many parts.
inline constexpr int kMaxForwardSplits = 128;

/// A launch has one block for each (tile of query rows, head, split of the keys).
struct ForwardSchedule {
  std::int32_t tile_m = 0;
  std::int32_t group = 1;  ///< Query heads that share a tile's rows: qhead_per_khead, or 1.
  std::int32_t heads = 0;  ///< nheads_q / group
  /// Dense q: tiles of a sequence. Packed: an upper bound of the tiles of all sequences together;
  /// which sequence a tile belongs to is found from cu_seqlens_q.
  std::int32_t m_blocks = 0;
  std::int32_t num_splits = 1;
  /// Dense q: (sequence, head) pairs whose tiles are started side by side, the longest first: as
  /// many as share the L2 cache with their keys.
  std::int32_t section = 1;
  bool packed = false;

  [[nodiscard]] FOVEAL_HOST_DEVICE std::int64_t num_tiles(std::int32_t batch) const {
    return static_cast<std::int64_t>(m_blocks) * heads * (packed ? 1 : batch);
  }
};

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

/// What a row's weights are relative to, in the unit of its scores, and their sum. Splits leave
/// these and not their lse, whose rounding grows with the scores and would be taken for a weight.
struct RowState {
  float max = 0.0f;
  float sum = 0.0f;
};

/// Results of splits: slot (tile * num_splits + split) has tile_m rows.
struct ForwardPartials {
  float* out = nullptr;      ///< (slot, row, ld): weights times values, not yet divided by the sum
  RowState* rows = nullptr;  ///< (slot, row)
  std::int32_t ld = 0;
};

struct ForwardArgs {
  AttentionArgs attention;
  ForwardSchedule schedule;
  ForwardPartials partials;
  bool q_whole_units = false;  ///< See RowElements::whole_units.
  bool k_whole_units = false;
  bool v_whole_units = false;
  bool out_in_pairs = false;  ///< Two adjacent elements of out can be stored at once.
  /// Scores need more than softmax_scale between the product and the softmax; so does a scale that
  /// isn't positive, which can't be taken into the exponent.
  bool has_score_terms = false;
  /// softcap * tanh(x / softcap) = softcap - cap_double / (2^(cap_log2 * x) + 1)
  float cap_log2 = 0;
  float cap_double = 0;

  /// What turns a difference of scores into powers of two.
  [[nodiscard]] FOVEAL_HOST_DEVICE float factor_log2() const {
    return has_score_terms ? 1.0f : attention.score.softmax_scale * kLog2E;
  }
};

}  // namespace foveal::cuda::portable
