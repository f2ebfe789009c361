#include "cpu/fwd/work_index.hpp"

#include <algorithm>
#include <new>

#include "cpu/fwd/config.hpp"

namespace foveal::cpu {
namespace {

using algorithm::Mask;
using algorithm::Range;
using planner::KernelConfig;

constexpr std::int64_t kQueueBytes = 64;
static_assert(sizeof(WorkQueue) <= kQueueBytes);

/// Splits of a sequence, from its own lengths and the plan.
std::int64_t splits_of(const Mask& mask, std::int64_t packed_rows, const KernelConfig& config) {
  const Range visit = algorithm::n_block_range(mask, {0, mask.seqlen_q}, config.tile.n).visit;
  const std::int64_t blocks = max_of<std::int64_t>(visit.size(), 1);
  if (config.split_keys == 0) return min_of(config.num_splits, blocks);
  if (packed_rows > kInvariantSplitRows) return 1;
  return ceil_div(blocks, config.split_keys / config.tile.n);
}

SequenceWork sequence_work(const AttentionGeometry& geometry, const KernelConfig& config,
                           const algorithm::SeqlenSource& lengths, std::int64_t b) {
  const algorithm::SeqlenInfo info = algorithm::seqlen_info(lengths, b);
  const Mask mask = sequence_mask(info, geometry);
  const std::int64_t group = geometry.qhead_per_khead;
  const std::int64_t packed_rows = info.seqlen_q * group;
  SequenceWork work;
  work.b = b;
  work.m_blocks = ceil_div(packed_rows, config.tile.m);
  work.padding_blocks = ceil_div(info.capacity_q * group, config.tile.m) - work.m_blocks;
  if (work.m_blocks == 0) return work;
  work.num_splits = splits_of(mask, packed_rows, config);
  const Range last{(work.m_blocks - 1) * config.tile.m, packed_rows};
  work.cost = mask.keys_of_rows(algorithm::query_rows(last, group)).size() *
              min_of(packed_rows, config.tile.m) / work.num_splits;
  return work;
}

}  // namespace

std::int64_t work_index_bytes(std::int64_t batch) {
  return kQueueBytes + batch * static_cast<std::int64_t>(sizeof(SequenceWork));
}

WorkIndex build_work_index(const AttentionGeometry& geometry, const KernelConfig& config,
                           const algorithm::SeqlenSource& lengths, std::byte* storage) {
  auto* first = reinterpret_cast<SequenceWork*>(storage + kQueueBytes);
  for (std::int64_t b = 0; b < geometry.batch; ++b) {
    ::new (first + b) SequenceWork(sequence_work(geometry, config, lengths, b));
  }
  WorkIndex index;
  index.heads_per_item = config.heads_per_item;
  const std::int64_t head_groups = ceil_div(geometry.nheads_k, config.heads_per_item);
  index.sequences = {first, static_cast<std::size_t>(geometry.batch)};
  std::sort(index.sequences.begin(), index.sequences.end(),
            [](const SequenceWork& x, const SequenceWork& y) {
              return x.cost != y.cost ? x.cost > y.cost : x.b < y.b;
            });
  const std::int64_t capacity = partial_slots(config, geometry);
  std::int64_t num_items = 0;
  for (SequenceWork& work : index.sequences) {
    const std::int64_t tiles = work.m_blocks * geometry.nheads_k;
    if (work.num_splits > 1) {
      FOVEAL_ASSERT(index.num_slots + tiles * work.num_splits <= capacity);
      if (index.num_slots + tiles * work.num_splits > capacity) work.num_splits = 1;
    }
    work.first_item = num_items;
    work.first_slot = index.num_slots;
    num_items += (work.m_blocks * work.num_splits + work.padding_blocks) * head_groups;
    if (work.num_splits > 1) index.num_slots += tiles * work.num_splits;
  }
  index.queue = ::new (storage) WorkQueue(num_items);
  return index;
}

WorkItem WorkIndex::item(std::int64_t index, std::int64_t nheads_k) const {
  const auto after = std::upper_bound(
      sequences.begin(), sequences.end(), index,
      [](std::int64_t item, const SequenceWork& work) { return item < work.first_item; });
  WorkItem item;
  item.sequence = &*(after - 1);
  std::int64_t local = index - item.sequence->first_item;
  const std::int64_t num_splits = item.sequence->num_splits;
  const std::int64_t m_blocks = item.sequence->m_blocks;
  const std::int64_t head_groups = ceil_div(nheads_k, heads_per_item);
  const std::int64_t attending = m_blocks * head_groups * num_splits;
  if (local < attending) {
    item.split = local % num_splits;
    local /= num_splits;
    item.m_block = m_blocks - 1 - local / head_groups;
  } else {
    local -= attending;
    item.m_block = m_blocks + local / head_groups;
  }
  item.head_k = local % head_groups * heads_per_item;
  item.num_heads = min_of(heads_per_item, nheads_k - item.head_k);
  return item;
}

Range blocks_of_split(Range visit, std::int64_t split, std::int64_t num_splits,
                      const KernelConfig& config) {
  if (num_splits == 1) return visit;
  if (config.split_keys == 0) return algorithm::split_blocks(visit, split, num_splits);
  const std::int64_t blocks = config.split_keys / config.tile.n;
  const std::int64_t begin = visit.min + split * blocks;
  return algorithm::intersect(visit, {begin, begin + blocks});
}

}  // namespace foveal::cpu
