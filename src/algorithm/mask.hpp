// Which keys a row sees, for one sequence: causal, sliding window and the lengths, as one interval
// a row. The diagonal is bottom-right aligned: row i sits at key i + seqlen_k - seqlen_q.
#pragma once

#include <cstdint>

#include "algorithm/range.hpp"
#include "core/host_device.hpp"
#include "core/integer.hpp"

namespace foveal::algorithm {

/// A window side without a bound. Far above any length, and far enough below the largest number
/// that sums with lengths don't overflow; in 32 bits lengths are at most 2^29.
template <class Integer>
inline constexpr Integer kUnboundedOf = Integer{1} << (sizeof(Integer) == 8 ? 60 : 30);
inline constexpr std::int64_t kUnbounded = kUnboundedOf<std::int64_t>;

/// Both sides of the diagonal, inclusive; kUnbounded where there is no limit.
template <class Integer>
struct BasicWindow {
  Integer left = kUnboundedOf<Integer>;
  Integer right = kUnboundedOf<Integer>;

  bool operator==(const BasicWindow&) const = default;
};
using Window = BasicWindow<std::int64_t>;

/// From the problem's options, where -1 is unbounded and causal forbids everything to the right.
FOVEAL_HOST_DEVICE constexpr Window make_window(std::int64_t window_size_left,
                                                std::int64_t window_size_right, bool causal) {
  Window window{window_size_left < 0 ? kUnbounded : min_of(window_size_left, kUnbounded),
                window_size_right < 0 ? kUnbounded : min_of(window_size_right, kUnbounded)};
  if (causal) window.right = 0;
  return window;
}

/// The mask of one sequence.
template <class Integer>
struct BasicMask {
  using Range = BasicRange<Integer>;

  Integer seqlen_q = 0;
  Integer seqlen_k = 0;
  BasicWindow<Integer> window;

  /// Key position of row 0's diagonal; negative when there are more queries than keys.
  FOVEAL_HOST_DEVICE constexpr Integer shift() const { return seqlen_k - seqlen_q; }

  /// First key of row i and one past its last. Only a row that sees nothing has max <= min.
  FOVEAL_HOST_DEVICE constexpr Integer first_key(Integer i) const {
    return max_of(Integer{0}, i + shift() - window.left);
  }
  FOVEAL_HOST_DEVICE constexpr Integer end_key(Integer i) const {
    return min_of(seqlen_k, i + shift() + window.right + 1);
  }

  /// First row that sees key j and one past the last.
  FOVEAL_HOST_DEVICE constexpr Integer first_row(Integer j) const {
    return max_of(Integer{0}, j - shift() - window.right);
  }
  FOVEAL_HOST_DEVICE constexpr Integer end_row(Integer j) const {
    return min_of(seqlen_q, j - shift() + window.left + 1);
  }

  /// Keys that row i sees.
  FOVEAL_HOST_DEVICE constexpr Range keys_of_row(Integer i) const {
    return make_basic_range<Integer>(first_key(i), end_key(i));
  }

  /// Rows that see key j.
  FOVEAL_HOST_DEVICE constexpr Range rows_of_key(Integer j) const {
    return make_basic_range<Integer>(first_row(j), end_row(j));
  }

  /// Keys that at least one of the rows sees: row intervals move right with i and leave no gap, so
  /// their union is an interval. Rows that see nothing don't widen it.
  FOVEAL_HOST_DEVICE constexpr Range keys_of_rows(Range rows) const {
    rows = algorithm::intersect<Integer>(rows, {0, seqlen_q});
    if (rows.empty()) return {};
    return make_basic_range<Integer>(first_key(rows.min), end_key(rows.max - 1));
  }

  /// Rows that see at least one of the keys.
  FOVEAL_HOST_DEVICE constexpr Range rows_of_keys(Range keys) const {
    keys = algorithm::intersect<Integer>(keys, {0, seqlen_k});
    if (keys.empty()) return {};
    return make_basic_range<Integer>(first_row(keys.min), end_row(keys.max - 1));
  }

  /// Keys that every one of the rows sees; empty for no rows.
  FOVEAL_HOST_DEVICE constexpr Range keys_of_every_row(Range rows) const {
    if (rows.empty()) return {};
    return make_basic_range<Integer>(first_key(rows.max - 1), end_key(rows.min));
  }

  /// Rows that see every one of the keys; empty for no keys.
  FOVEAL_HOST_DEVICE constexpr Range rows_of_every_key(Range keys) const {
    if (keys.empty()) return {};
    return make_basic_range<Integer>(first_row(keys.max - 1), end_row(keys.min));
  }

  FOVEAL_HOST_DEVICE constexpr bool visible(Integer i, Integer j) const {
    return keys_of_row(i).contains(j);
  }

  bool operator==(const BasicMask&) const = default;
};
using Mask = BasicMask<std::int64_t>;

namespace detail {

/// sum over i in [0, rows) of clamp(i + start, 0, limit), in closed form: a ramp between plateaus.
FOVEAL_HOST_DEVICE constexpr double clamped_ramp_sum(std::int64_t rows, std::int64_t start,
                                                     std::int64_t limit) {
  const std::int64_t ramp_min = clamp_to<std::int64_t>(-start, 0, rows);
  const std::int64_t ramp_max = clamp_to<std::int64_t>(limit - start, ramp_min, rows);
  const auto ramp_rows = static_cast<double>(ramp_max - ramp_min);
  const double ramp_mean = 0.5 * static_cast<double>((ramp_min + start) + (ramp_max - 1 + start));
  const double ramp = ramp_rows == 0 ? 0.0 : ramp_rows * ramp_mean;
  return ramp + static_cast<double>(rows - ramp_max) * static_cast<double>(limit);
}

}  // namespace detail

/// Visible (query, key) pairs of one sequence and head.
FOVEAL_HOST_DEVICE constexpr double visible_pairs(const Mask& mask) {
  const std::int64_t shift = mask.shift();
  return detail::clamped_ramp_sum(mask.seqlen_q, shift + mask.window.right + 1, mask.seqlen_k) -
         detail::clamped_ramp_sum(mask.seqlen_q, shift - mask.window.left, mask.seqlen_k);
}

}  // namespace foveal::algorithm
