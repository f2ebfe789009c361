#include "cpu/bwd/dq_sums.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

namespace foveal::cpu {
namespace {

/// Spins for a while, since a turn is a few microseconds away; then leaves the core to others.
void wait_until(std::int32_t& value, std::int32_t wanted) {
  constexpr int kSpins = 2000;
  const std::atomic_ref<std::int32_t> watched(value);
  for (int spin = 0; watched.load(std::memory_order_acquire) != wanted; ++spin) {
    if (spin >= kSpins) std::this_thread::yield();
  }
}

}  // namespace

DqSums::DqSums(Slab& slab, const Extent& extent) : extent_(extent) {
  sums_ = slab.take<float>(extent.num_slots * extent.rows * extent.ld);
  turns_ = slab.take<std::int32_t>(extent.num_slots * extent.num_tiles);
  tiles_left_ = slab.take<std::int32_t>(extent.num_units);
}

void DqSums::reset() const {
  std::fill_n(turns_, extent_.num_slots * extent_.num_tiles, 0);
  std::fill_n(tiles_left_, extent_.num_units, 0);
}

void DqSums::expect(std::int64_t unit, std::int64_t num_tiles) const {
  tiles_left_[unit] = static_cast<std::int32_t>(num_tiles);
}

void DqSums::wait_for_slot(std::int64_t unit) const {
  if (unit >= extent_.num_slots) wait_until(tiles_left_[unit - extent_.num_slots], 0);
}

void DqSums::wait_for_turn(std::int64_t unit, std::int64_t row_tile, std::int64_t turn) const {
  wait_until(turn_of(unit, row_tile), static_cast<std::int32_t>(turn));
}

void DqSums::pass_turn(std::int64_t unit, std::int64_t row_tile, std::int64_t turn) const {
  const std::atomic_ref<std::int32_t> turns(turn_of(unit, row_tile));
  turns.store(static_cast<std::int32_t>(turn + 1), std::memory_order_release);
}

void DqSums::finish_tile(std::int64_t unit, std::int64_t row_tile) const {
  turn_of(unit, row_tile) = 0;  // for the accumulator's next unit
  const std::atomic_ref<std::int32_t> left(tiles_left_[unit]);
  left.fetch_sub(1, std::memory_order_acq_rel);
}

}  // namespace foveal::cpu
