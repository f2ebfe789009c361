// Products of a few rows with k and v where they lie in memory, some keys of every head of an item
// in turn (docs/kernels/cpu_blocked_fwd.md: the order in which memory is read, and why).
#pragma once

#include <cstdint>

#include "cpu/fwd/config.hpp"
#include "cpu/tile_load.hpp"
#include "cpu/tile_math.hpp"

namespace foveal::cpu {

/// k and v of an item, turn by turn: k of all heads, then their v. While rows are used the caches
/// are asked for those that are used soon after.
class KvStream {
 public:
  /// `k` and `v` are the rows of the item's first head; both have the item's keys, all of which are
  /// seen.
  KvStream(const TileMath& math, const KeyRows& k, const KeyRows& v, std::int64_t heads,
           const ForwardScratch& scratch);

  /// Goes on to the next turn; false when there is none.
  bool advance();
  /// The keys of the turn. The first turn may have some before the item's, which aren't read.
  [[nodiscard]] algorithm::Range keys() const { return now_.keys; }

  /// scores = q . k^T of `rows` rows of `part`, those of a head; 0 for keys that aren't read.
  void multiply(const ForwardScratch& part, std::int64_t rows, std::int64_t head) const;
  /// acc += weights . v
  void accumulate(const ForwardScratch& part, std::int64_t rows, std::int64_t head) const;

 private:
  struct Turn {
    algorithm::Range keys;
    algorithm::Range read;
    const std::byte** rows = nullptr;  ///< of the first head: where k of each key lies, then v
  };
  [[nodiscard]] Turn turn_from(std::int64_t begin, const std::byte** rows) const;
  /// This turn's rows of a head, of v if `values` or of k, and what is asked for meanwhile.
  [[nodiscard]] MemoryRows rows_of(std::int64_t head, bool values) const;

  const TileMath& math_;
  KeyRows k_;
  KeyRows v_;
  std::int64_t heads_;
  std::int64_t turn_keys_;
  const std::byte** rows_;  ///< those of this turn, and behind them those of the next
  Turn now_;
  Turn next_;
};

}  // namespace foveal::cpu
