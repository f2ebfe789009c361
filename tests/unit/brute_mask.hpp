// Visibility pair by pair, from the definition: what masks and block ranges are tested against.
#pragma once

#include <cstdint>
#include <ostream>

#include "algorithm/mask.hpp"
#include "algorithm/range.hpp"

namespace foveal::test {

/// One sequence and the problem's own options: -1 is unbounded.
struct BruteMask {
  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_k = 0;
  std::int64_t window_size_left = -1;
  std::int64_t window_size_right = -1;
  bool causal = false;

  [[nodiscard]] bool visible(std::int64_t i, std::int64_t j) const {
    if (i < 0 || i >= seqlen_q || j < 0 || j >= seqlen_k) return false;
    const std::int64_t shift = seqlen_k - seqlen_q;
    if (causal && j > i + shift) return false;
    if (window_size_left != -1 && j < i + shift - window_size_left) return false;
    return window_size_right == -1 || j <= i + shift + window_size_right;
  }

  [[nodiscard]] algorithm::Mask mask() const {
    return {seqlen_q, seqlen_k,
            algorithm::make_window(window_size_left, window_size_right, causal)};
  }
};

inline std::ostream& operator<<(std::ostream& stream, const BruteMask& mask) {
  return stream << "seqlen_q " << mask.seqlen_q << " seqlen_k " << mask.seqlen_k << " window ("
                << mask.window_size_left << ", " << mask.window_size_right << ") causal "
                << mask.causal;
}

/// Every mask with lengths up to `max_seqlen` and windows up to `max_window` on both sides.
template <class Visitor>
void for_each_mask(std::int64_t max_seqlen, std::int64_t max_window, Visitor visitor) {
  for (std::int64_t seqlen_q = 0; seqlen_q <= max_seqlen; ++seqlen_q) {
    for (std::int64_t seqlen_k = 0; seqlen_k <= max_seqlen; ++seqlen_k) {
      for (std::int64_t left = -1; left <= max_window; ++left) {
        for (std::int64_t right = -1; right <= max_window; ++right) {
          for (const bool causal : {false, true}) {
            visitor(BruteMask{seqlen_q, seqlen_k, left, right, causal});
          }
        }
      }
    }
  }
}

/// The members of [0, end) that satisfy `predicate`, which must be an interval.
struct Members {
  algorithm::Range range;
  bool contiguous = true;
};

template <class Predicate>
Members members(std::int64_t end, Predicate predicate) {
  Members found;
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < end; ++i) {
    if (!predicate(i)) continue;
    if (count++ == 0) found.range.min = i;
    found.range.max = i + 1;
  }
  found.contiguous = count == found.range.size();
  return found;
}

}  // namespace foveal::test

namespace foveal::algorithm {
inline std::ostream& operator<<(std::ostream& stream, Range range) {
  return stream << '[' << range.min << ", " << range.max << ')';
}
}  // namespace foveal::algorithm
