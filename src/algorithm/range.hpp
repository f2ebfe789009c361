// Half-open ranges of rows, keys and blocks: [min, max). 64 bits everywhere but in GPU kernels
// whose positions fit in 32, which a GPU adds and compares in a third of the time.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "core/integer.hpp"

namespace foveal::algorithm {

template <class Integer>
struct BasicRange {
  Integer min = 0;
  Integer max = 0;

  FOVEAL_HOST_DEVICE constexpr bool empty() const { return max <= min; }
  FOVEAL_HOST_DEVICE constexpr Integer size() const { return empty() ? 0 : max - min; }
  FOVEAL_HOST_DEVICE constexpr bool contains(Integer i) const { return min <= i && i < max; }

  bool operator==(const BasicRange&) const = default;
};
using Range = BasicRange<std::int64_t>;

/// The empty range is always {0, 0}, so that equal sets compare equal.
template <class Integer>
FOVEAL_HOST_DEVICE constexpr BasicRange<Integer> make_basic_range(Integer min, Integer max) {
  return max <= min ? BasicRange<Integer>{0, 0} : BasicRange<Integer>{min, max};
}
FOVEAL_HOST_DEVICE constexpr Range make_range(std::int64_t min, std::int64_t max) {
  return make_basic_range<std::int64_t>(min, max);
}

template <class Integer>
FOVEAL_HOST_DEVICE constexpr BasicRange<Integer> intersect(BasicRange<Integer> a,
                                                           BasicRange<Integer> b) {
  return make_basic_range<Integer>(max_of(a.min, b.min), min_of(a.max, b.max));
}
FOVEAL_HOST_DEVICE constexpr Range intersect(Range a, Range b) {
  return intersect<std::int64_t>(a, b);
}

}  // namespace foveal::algorithm
