// Half-open ranges of rows, keys and blocks: [min, max).
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "core/integer.hpp"

namespace foveal::algorithm {

struct Range {
  std::int64_t min = 0;
  std::int64_t max = 0;

  FOVEAL_HOST_DEVICE constexpr bool empty() const { return max <= min; }
  FOVEAL_HOST_DEVICE constexpr std::int64_t size() const { return empty() ? 0 : max - min; }
  FOVEAL_HOST_DEVICE constexpr bool contains(std::int64_t i) const { return min <= i && i < max; }

  bool operator==(const Range&) const = default;
};

/// The empty range is always {0, 0}, so that equal sets compare equal.
FOVEAL_HOST_DEVICE constexpr Range make_range(std::int64_t min, std::int64_t max) {
  return max <= min ? Range{0, 0} : Range{min, max};
}

FOVEAL_HOST_DEVICE constexpr Range intersect(Range a, Range b) {
  return make_range(max_of(a.min, b.min), min_of(a.max, b.max));
}

}  // namespace foveal::algorithm
