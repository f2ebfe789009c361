#include "cpu/bwd/work_tiles.hpp"

#include <algorithm>

#include "algorithm/block_range.hpp"
#include "core/integer.hpp"

namespace foveal::cpu {
namespace {

using algorithm::make_range;
using algorithm::Range;

/// Longest first; ties in the order of the batch, so that the list is a function of the lengths.
std::span<const WorkTile> sorted(std::span<WorkTile> tiles) {
  std::ranges::sort(tiles, [](const WorkTile& a, const WorkTile& b) {
    if (a.pairs != b.pairs) return a.pairs > b.pairs;
    if (a.b != b.b) return a.b < b.b;
    return a.block < b.block;
  });
  return tiles;
}

}  // namespace

std::span<const WorkTile> list_row_tiles(const BackwardArgs& args, WorkTile* storage) {
  std::size_t count = 0;
  for (std::int64_t b = 0; b < args.geometry.batch; ++b) {
    const Sequence sequence = sequence_of(args, b);
    const std::int64_t rows = sequence.lengths.capacity_q * args.group;
    for (std::int64_t block = 0; block * args.tile.m < rows; ++block) {
      const auto index = static_cast<std::int32_t>(block);
      const Range used = used_packed_rows(args, sequence, index);
      const Range keys = sequence.mask.keys_of_rows(algorithm::query_rows(used, args.group));
      storage[count++] = {.pairs = keys.size(), .b = static_cast<std::int32_t>(b), .block = index};
    }
  }
  return sorted({storage, count});
}

std::span<const WorkTile> list_key_tiles(const BackwardArgs& args, WorkTile* storage) {
  std::size_t count = 0;
  for (std::int64_t b = 0; b < args.geometry.batch; ++b) {
    const Sequence sequence = sequence_of(args, b);
    const std::int64_t begin = -sequence.lengths.leftpad_k;
    const std::int64_t end = begin + sequence.lengths.capacity_k;
    for (std::int64_t block = floor_div(begin, args.tile.n); block * args.tile.n < end; ++block) {
      const auto index = static_cast<std::int32_t>(block);
      const Range rows = sequence.mask.rows_of_keys(used_keys(args, sequence, index));
      storage[count++] = {.pairs = rows.size(), .b = static_cast<std::int32_t>(b), .block = index};
    }
  }
  return sorted({storage, count});
}

Range packed_rows(const BackwardArgs& args, const Sequence& sequence, std::int32_t block) {
  const std::int64_t begin = block * args.tile.m;
  return make_range(begin, min_of(begin + args.tile.m, sequence.lengths.capacity_q * args.group));
}

Range used_packed_rows(const BackwardArgs& args, const Sequence& sequence, std::int32_t block) {
  return algorithm::intersect(packed_rows(args, sequence, block),
                              {0, sequence.mask.seqlen_q * args.group});
}

Range key_positions(const BackwardArgs& args, const Sequence& sequence, std::int32_t block) {
  const std::int64_t begin = -sequence.lengths.leftpad_k;
  return algorithm::intersect({block * args.tile.n, (std::int64_t{block} + 1) * args.tile.n},
                              {begin, begin + sequence.lengths.capacity_k});
}

Range used_keys(const BackwardArgs& args, const Sequence& sequence, std::int32_t block) {
  return algorithm::intersect(key_positions(args, sequence, block), {0, sequence.mask.seqlen_k});
}

}  // namespace foveal::cpu
