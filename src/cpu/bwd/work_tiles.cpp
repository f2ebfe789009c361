#include "cpu/bwd/work_tiles.hpp"

#include <algorithm>
#include <new>

#include "algorithm/block_range.hpp"
#include "core/integer.hpp"

namespace foveal::cpu {
namespace {

using algorithm::make_range;
using algorithm::Range;

BackwardSequence sequence_entry(const BackwardArgs& args, std::int64_t b) {
  const Sequence sequence = sequence_of(args, b);
  const std::int64_t first_key = -sequence.lengths.leftpad_k;
  BackwardSequence entry;
  entry.b = b;
  entry.cost = algorithm::visible_pairs(sequence.mask);
  entry.row_tiles = ceil_div(sequence.lengths.capacity_q * args.group, args.tile.m);
  entry.first_key_block = floor_div(first_key, args.tile.n);
  entry.key_blocks =
      ceil_div(first_key + sequence.lengths.capacity_k, args.tile.n) - entry.first_key_block;
  return entry;
}

}  // namespace

BackwardIndex build_backward_index(const BackwardArgs& args, std::int64_t heads_together,
                                   BackwardSequence* storage) {
  for (std::int64_t b = 0; b < args.geometry.batch; ++b) {
    ::new (storage + b) BackwardSequence(sequence_entry(args, b));
  }
  BackwardIndex index;
  index.heads = args.geometry.nheads_k;
  index.heads_together =
      clamp_to<std::int64_t>(heads_together, 1, max_of<std::int64_t>(index.heads, 1));
  index.sequences = {storage, static_cast<std::size_t>(args.geometry.batch)};
  std::ranges::sort(index.sequences, [](const BackwardSequence& x, const BackwardSequence& y) {
    return x.cost != y.cost ? x.cost > y.cost : x.b < y.b;
  });
  for (BackwardSequence& entry : index.sequences) {
    entry.first_row_item = index.num_row_items;
    entry.first_key_item = index.num_key_items;
    index.num_row_items += entry.row_tiles * index.heads;
    index.num_key_items += entry.key_blocks * index.heads;
  }
  return index;
}

BackwardItem BackwardIndex::row_item(std::int64_t index) const {
  const auto after =
      std::ranges::upper_bound(sequences, index, {}, &BackwardSequence::first_row_item);
  BackwardItem item;
  item.rank = after - sequences.begin() - 1;
  item.sequence = &sequences[static_cast<std::size_t>(item.rank)];
  const std::int64_t local = index - item.sequence->first_row_item;
  item.block = local / heads;
  item.head_k = local % heads;
  return item;
}

BackwardItem BackwardIndex::key_item(std::int64_t index) const {
  const auto after =
      std::ranges::upper_bound(sequences, index, {}, &BackwardSequence::first_key_item);
  BackwardItem item;
  item.rank = after - sequences.begin() - 1;
  item.sequence = &sequences[static_cast<std::size_t>(item.rank)];
  const std::int64_t local = index - item.sequence->first_key_item;
  const std::int64_t group_items = item.sequence->key_blocks * heads_together;
  const std::int64_t first_head = local / group_items * heads_together;
  const std::int64_t group = min_of(heads_together, heads - first_head);
  const std::int64_t rest = local % group_items;
  item.block = item.sequence->first_key_block + rest / group;
  item.head_k = first_head + rest % group;
  return item;
}

Range packed_rows(const BackwardArgs& args, const Sequence& sequence, std::int64_t block) {
  const std::int64_t begin = block * args.tile.m;
  return make_range(begin, min_of(begin + args.tile.m, sequence.lengths.capacity_q * args.group));
}

Range used_packed_rows(const BackwardArgs& args, const Sequence& sequence, std::int64_t block) {
  return algorithm::intersect(packed_rows(args, sequence, block),
                              {0, sequence.mask.seqlen_q * args.group});
}

Range key_blocks_of(const BackwardArgs& args, const Sequence& sequence, std::int64_t row_tile) {
  const Range rows = used_packed_rows(args, sequence, row_tile);
  if (rows.empty()) return {};
  return algorithm::n_block_range(sequence.mask, algorithm::query_rows(rows, args.group),
                                  args.tile.n)
      .visit;
}

Range key_positions(const BackwardArgs& args, const Sequence& sequence, std::int64_t block) {
  const std::int64_t begin = -sequence.lengths.leftpad_k;
  return algorithm::intersect({block * args.tile.n, (block + 1) * args.tile.n},
                              {begin, begin + sequence.lengths.capacity_k});
}

Range used_keys(const BackwardArgs& args, const Sequence& sequence, std::int64_t block) {
  return algorithm::intersect(key_positions(args, sequence, block), {0, sequence.mask.seqlen_k});
}

}  // namespace foveal::cpu
