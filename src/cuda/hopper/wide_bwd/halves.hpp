// Which halves of streamed tiles a block reads, and where they lie in its shared memory.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/hopper/wide_bwd/tile_config.hpp"

namespace foveal::cuda::hopper::wide_bwd {

/// The halves of a step's tiles. "First" is multiplied by gradients of scores (q where keys are
/// held, k where rows are), "second" is the other (dout, v). A block's role is its rank in the
/// cluster: role 0 computes scores of first, role 1 their gradients of second. Sum 0 is of
/// gradients of scores, sum 1 of weights.
///
/// | half | role 0             | read by        | role 1             | read by        |
/// | 0    | first, columns 1   | scores         | first, columns 1   | sum 0          |
/// | 1    | first, columns 0   | scores, sum 0  | second, columns 1  | scores, sum 1  |
/// | 2    | second, columns 0  | sum 1          | second, columns 0  | scores         |
///
/// Where rows are held there is no sum 1: role 0 then has no half 2.
inline constexpr int kHalves = 3;
inline constexpr int kOwnHalf = 1;
[[nodiscard]] FOVEAL_HOST_DEVICE constexpr int early_half(int role) { return 2 * role; }
[[nodiscard]] FOVEAL_HOST_DEVICE constexpr int late_half(int role) { return 2 - 2 * role; }
[[nodiscard]] FOVEAL_HOST_DEVICE constexpr int half_of_sum(int role, int sum) {
  return role == sum ? kOwnHalf : late_half(role);
}
[[nodiscard]] FOVEAL_HOST_DEVICE constexpr bool is_first(int role, int half) {
  return half == 0 || half + role == 1;
}
[[nodiscard]] FOVEAL_HOST_DEVICE constexpr int columns_of(int role, int half) {
  return half == kOwnHalf ? role : half == 0 ? 1 : 0;
}

/// Where a half lies, and the parity of its round: of waits for "full" by whoever reads and,
/// inverted, of waits for "empty" by whoever writes.
struct HalfPlace {
  int stage = 0;
  std::uint32_t parity = 0;
};

/// The rules of a side's kernel.
struct HalfRules {
  WidePlan plan;
  Side side = Side::kKeys;

  /// Places of a half in shared memory.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int places(int half) const {
    if (half == kOwnHalf) return 2;
    return half == 0 ? plan.first_places : plan.second_places;
  }
  /// A block's own half has the last two: what is held in registers comes through them.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr HalfPlace place(int half, int step) const {
    const int first = half == kOwnHalf ? plan.stages() - 2 : half == 0 ? 0 : places(0);
    if (places(half) == 1) return {first, static_cast<std::uint32_t>(step % 2)};
    return {first + step % 2, static_cast<std::uint32_t>(step / 2 % 2)};
  }
  /// Whether a half of the held tile takes the place first.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr bool is_held_first(int stage) const {
    return stage >= plan.stages() - plan.held_in_registers;
  }

  /// Whether a block of that role reads it.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr bool has(int role, int half) const {
    return side == Side::kKeys || role == 1 || half != 2;
  }
  /// Arrivals a warp of the block's readers, which free it there: kLanes in all.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int score_arrivals(int role, int half) const {
    return half == kOwnHalf && (side == Side::kKeys || role == 0) ? kLanes / 2 : kLanes;
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int sum_arrivals(int half) const {
    return half == kOwnHalf ? kLanes / 2 : kLanes;
  }
};

}  // namespace foveal::cuda::hopper::wide_bwd
