// The sums of dq, which many blocks of keys add to: an fp32 accumulator for each of the KV heads
// that are under way. The blocks of keys that a tile of rows sees add to it in ascending order,
// each when its turn has come, so the bits depend on neither the number of threads nor their
// timing.
#pragma once

#include <cstdint>

#include "algorithm/range.hpp"
#include "cpu/slab.hpp"
#include "plan/kernel_entry.hpp"

namespace foveal::cpu {

/// A unit is one KV head of one sequence. Units are numbered in the order in which their work is
/// handed out; unit u has accumulator u % num_slots, once unit u - num_slots is done with it.
///
/// Nobody waits for work that is handed out later, so with any number of workers somebody always
/// goes on.
class DqSums {
 public:
  /// Sizes that a launch can need, from the plan.
  struct Extent {
    std::int64_t num_units = 0;
    std::int64_t num_slots = 0;
    std::int64_t num_tiles = 0;  ///< of rows, in an accumulator
    std::int64_t rows = 0;       ///< packed rows of an accumulator
    std::int64_t ld = 0;         ///< floats from one to the next
  };

  DqSums() = default;
  DqSums(Slab& slab, const Extent& extent);

  /// Before any unit begins: nothing has been added.
  void reset() const;
  /// The tiles of rows that unit `unit` has to finish.
  void expect(std::int64_t unit, std::int64_t num_tiles) const;

  /// Waits until the unit's accumulator is free.
  void wait_for_slot(std::int64_t unit) const;
  /// Waits until `turn` blocks of keys have been added to a tile of rows.
  void wait_for_turn(std::int64_t unit, std::int64_t row_tile, std::int64_t turn) const;
  /// Lets block of keys `turn` + 1 go on.
  void pass_turn(std::int64_t unit, std::int64_t row_tile, std::int64_t turn) const;
  /// After the last block of keys, when the rows have been stored.
  void finish_tile(std::int64_t unit, std::int64_t row_tile) const;

  /// Packed row r of the unit.
  [[nodiscard]] float* row(std::int64_t unit, std::int64_t r) const {
    return sums_ + (unit % extent_.num_slots * extent_.rows + r) * extent_.ld;
  }
  [[nodiscard]] std::int64_t ld() const { return extent_.ld; }
  /// Whether the plan counted on a tile of rows: not where a sequence is longer than max_seqlen_q.
  [[nodiscard]] bool holds(std::int64_t row_tile) const { return row_tile < extent_.num_tiles; }

 private:
  [[nodiscard]] std::int32_t& turn_of(std::int64_t unit, std::int64_t row_tile) const {
    return turns_[unit % extent_.num_slots * extent_.num_tiles + row_tile];
  }

  Extent extent_;
  float* sums_ = nullptr;
  std::int32_t* turns_ = nullptr;       ///< (slot, tile): blocks of keys that were added
  std::int32_t* tiles_left_ = nullptr;  ///< (unit)
};

}  // namespace foveal::cpu
