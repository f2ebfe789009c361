#include "cpu/fwd/stream.hpp"

#include <algorithm>

namespace foveal::cpu {
namespace {

using algorithm::Range;

/// Keys that several heads take in turn: few, so that what lies side by side is read together, and
/// a multiple of those whose values are added up, so that bits don't depend on it.
constexpr std::int64_t kTurnKeys = 32;
static_assert(kForwardKeys % kTurnKeys == 0);

std::int64_t head_bytes(const KeyRows& keys) {
  return keys.locator.layout.head_stride * dtype_bytes(keys.loader.dtype);
}

/// Calls body(head, first, rows) for rows [first, first + rows.count) of `keys` and every head.
/// `at` and `next_at` are the addresses of the first head's rows, of `keys` and of what is read
/// next.
template <class Body>
void for_turns(const KeyRows& keys, const std::byte* const* at, const KeyRows& next,
               const std::byte* const* next_at, std::int64_t heads, Body&& body) {
  const std::int64_t count = keys.read().size();
  const std::int64_t turn = heads > 1 ? kTurnKeys : count;
  for (std::int64_t first = 0; first < count; first += turn) {
    const std::int64_t left = count - first;
    MemoryRows rows{.rows = at + first,
                    .count = min_of(turn, left),
                    .columns = keys.loader.count,
                    .dtype = keys.loader.dtype};
    const bool last = left <= turn;
    rows.ahead = last ? next_at : at + first + turn;
    rows.num_ahead = min_of(turn, last ? next.read().size() : left - turn);
    for (std::int64_t head = 0; head < heads; ++head) {
      body(head, first, rows);
      rows.offset += head_bytes(keys);
      rows.ahead_offset += head_bytes(last ? next : keys);
    }
  }
}

}  // namespace

void stream_products(const ForwardArgs& args, const ForwardScratch& scratch, const KeyRows& keys,
                     const KeyRows& values, const StreamedRows& rows) {
  const Range read = keys.read();
  locate_key_rows(keys, scratch.key_rows);
  locate_key_rows(values, scratch.next_rows);
  if (read.size() < args.tile.n) {
    for (std::int64_t head = 0; head < rows.heads; ++head) {
      std::fill_n(scratch.scores + head * rows.head_rows * scratch.ld_n, rows.rows * scratch.ld_n,
                  0.0f);
    }
  }
  for_turns(keys, scratch.key_rows, values, scratch.next_rows, rows.heads,
            [&](std::int64_t head, std::int64_t first, const MemoryRows& memory) {
              const std::int64_t row = head * rows.head_rows;
              const std::int64_t column = read.min - keys.keys.min + first;
              args.math->multiply_memory({.rows = rows.rows,
                                          .a = slot_at(scratch.q, row * scratch.ld_d),
                                          .lda = scratch.ld_d,
                                          .c = scratch.scores + row * scratch.ld_n + column,
                                          .ldc = scratch.ld_n},
                                         memory);
            });
}

void stream_values(const ForwardArgs& args, const ForwardScratch& scratch, const KeyRows& values,
                   const KeyRows& next, const StreamedRows& rows) {
  const std::int64_t origin = values.read().min - values.keys.min;
  locate_key_rows(next, scratch.key_rows);
  for_turns(values, scratch.next_rows, next, scratch.key_rows, rows.heads,
            [&](std::int64_t head, std::int64_t first, const MemoryRows& memory) {
              const std::int64_t row = head * rows.head_rows;
              const void* weights = slot_at(scratch.weights, row * scratch.ld_w);
              args.math->accumulate_memory({.rows = rows.rows,
                                            .a = args.math->term_at(weights, origin + first),
                                            .lda = scratch.ld_w,
                                            .c = scratch.acc + row * scratch.ld_dv,
                                            .ldc = scratch.ld_dv},
                                           memory);
            });
}

}  // namespace foveal::cpu
