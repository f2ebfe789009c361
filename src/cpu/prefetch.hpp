// Requests to the caches for what is read soon.
#pragma once

#include <cstddef>

namespace foveal::cpu {

inline constexpr int kCacheLineBytes = 64;

/// Asks the second-level cache for a line, and once more for the one that was asked for two lines
/// ago: a core that has many requests under way drops some.
[[gnu::always_inline]] inline void prefetch(const std::byte* line) {
  __builtin_prefetch(line, /*rw=*/0, /*locality=*/2);
  __builtin_prefetch(line - 2 * kCacheLineBytes, /*rw=*/0, /*locality=*/2);
}

}  // namespace foveal::cpu
