#include "cpu/fwd/stream.hpp"

#include <algorithm>

namespace foveal::cpu {
namespace {

using algorithm::Range;

/// Where heads lie side by side, the rows of one are far apart and no hardware prefetcher follows:
/// what is asked for are the rows of so many heads later.
constexpr std::int64_t kHeadsAhead = 2;

}  // namespace

KvStream::KvStream(const TileMath& math, const KeyRows& k, const KeyRows& v, std::int64_t heads,
                   const ForwardScratch& scratch)
    : math_(math),
      k_(k),
      v_(v),
      heads_(heads),
      turn_keys_(turn_keys(k.loader, v.loader)),
      rows_(scratch.kv_rows) {
  next_ = turn_from(k.keys.min / turn_keys_ * turn_keys_, rows_);
}

/// Turns begin at multiples of their length: bits don't depend on which keys of a turn are seen.
KvStream::Turn KvStream::turn_from(std::int64_t begin, const std::byte** rows) const {
  const Range keys{begin, clamp_to(k_.keys.max, begin, begin + turn_keys_)};
  const Turn turn{keys, algorithm::intersect(keys, k_.keys), rows};
  locate_key_rows({k_.loader, k_.locator, keys, k_.seen}, rows);
  locate_key_rows({v_.loader, v_.locator, keys, v_.seen}, rows + turn.read.size());
  return turn;
}

bool KvStream::advance() {
  now_ = next_;
  if (now_.read.empty()) return false;
  const std::int64_t count = 2 * now_.read.size();
  now_.rows = std::copy_n(next_.rows, count, rows_) - count;
  next_ = turn_from(now_.keys.max, rows_ + count);
  return true;
}

MemoryRows KvStream::rows_of(std::int64_t head, bool values) const {
  const KeyRows& all = values ? v_ : k_;
  const std::int64_t head_bytes = all.locator.layout.head_stride * dtype_bytes(all.loader.dtype);
  const std::int64_t count = now_.read.size();
  MemoryRows memory{.rows = now_.rows + (values ? count : 0),
                    .count = count,
                    .columns = all.loader.count,
                    .dtype = all.loader.dtype,
                    .offset = head * head_bytes};
  if (heads_ == 1) {  // half a turn ahead in the order k, v, next k, next v
    memory.ahead = memory.rows + turn_keys_ / 2;
    memory.num_ahead = next_.rows + 2 * next_.read.size() - memory.ahead;
  } else {
    const std::int64_t later = head + min_of(kHeadsAhead, heads_);
    const Turn& turn = later < heads_ ? now_ : next_;
    memory.ahead = turn.rows + (values ? turn.read.size() : 0);
    memory.num_ahead = turn.read.size();
    memory.ahead_offset = later % heads_ * head_bytes;
  }
  return memory;
}

void KvStream::multiply(const ForwardScratch& part, std::int64_t rows, std::int64_t head) const {
  if (now_.read.size() < turn_keys_) {
    for (std::int64_t row = 0; row < rows; ++row) {
      std::fill_n(part.scores + row * part.ld_n, turn_keys_, 0.0f);
    }
  }
  math_.multiply_memory({.rows = rows,
                         .a = part.q,
                         .lda = part.ld_d,
                         .c = part.scores + (now_.read.min - now_.keys.min),
                         .ldc = part.ld_n},
                        rows_of(head, false));
}

void KvStream::accumulate(const ForwardScratch& part, std::int64_t rows, std::int64_t head) const {
  math_.accumulate_memory({.rows = rows,
                           .a = math_.term_at(part.weights, now_.read.min - now_.keys.min),
                           .lda = part.ld_w,
                           .c = part.acc,
                           .ldc = part.ld_dv},
                          rows_of(head, true));
}

}  // namespace foveal::cpu
