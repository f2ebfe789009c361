// Which tiles a kernel visits, and which of them need the mask: derived once here, from Mask, so
// that every kernel skips the same blocks.
#pragma once

#include <cstdint>

#include "algorithm/mask.hpp"
#include "algorithm/range.hpp"
#include "core/host_device.hpp"
#include "core/integer.hpp"

namespace foveal::algorithm {

/// Blocks [visit.min, visit.max) hold something visible; of these, [full.min, full.max) are wholly
/// visible, so that no element of theirs needs a mask. `full` is within `visit`.
struct BlockRange {
  Range visit;
  Range full;

  FOVEAL_HOST_DEVICE constexpr bool needs_mask(std::int64_t block) const {
    return !full.contains(block);
  }
  bool operator==(const BlockRange&) const = default;
};

namespace detail {

/// Blocks of `tile` that meet `some`, and those that lie wholly within `every`.
FOVEAL_HOST_DEVICE constexpr BlockRange blocks_of(Range some, Range every, std::int64_t tile) {
  BlockRange range;
  if (some.empty()) return range;
  range.visit = {some.min / tile, ceil_div(some.max, tile)};
  if (!every.empty()) {
    range.full = intersect(range.visit, make_range(ceil_div(every.min, tile), every.max / tile));
  }
  return range;
}

}  // namespace detail

/// Key blocks of `tile_n` keys that the query rows [rows.min, rows.max) visit.
FOVEAL_HOST_DEVICE constexpr BlockRange n_block_range(const Mask& mask, Range rows,
                                                      std::int64_t tile_n) {
  return detail::blocks_of(mask.keys_of_rows(rows), mask.keys_of_every_row(rows), tile_n);
}

/// Query blocks of `tile_m` rows that see any of the keys [keys.min, keys.max): the backward's
/// outer loop runs over keys.
FOVEAL_HOST_DEVICE constexpr BlockRange m_block_range(const Mask& mask, Range keys,
                                                      std::int64_t tile_m) {
  return detail::blocks_of(mask.rows_of_keys(keys), mask.rows_of_every_key(keys), tile_m);
}

/// Query rows behind the packed rows [packed.min, packed.max), where the query heads of one KV
/// head share a tile: packed row r is query row r / qhead_per_khead, head r % qhead_per_khead.
FOVEAL_HOST_DEVICE constexpr Range query_rows(Range packed, std::int64_t qhead_per_khead) {
  if (packed.empty()) return {};
  return {packed.min / qhead_per_khead, ceil_div(packed.max, qhead_per_khead)};
}

/// Split `split` of `num_splits` over the blocks of a range, sizes differing by at most one block.
FOVEAL_HOST_DEVICE constexpr Range split_blocks(Range blocks, std::int64_t split,
                                                std::int64_t num_splits) {
  const std::int64_t count = blocks.size();
  return make_range(blocks.min + count * split / num_splits,
                    blocks.min + count * (split + 1) / num_splits);
}

}  // namespace foveal::algorithm
