// The work of a launch as a line of items. Lengths are known only now, so the index is built at the
// start of a launch, in the workspace, one entry a sequence; an item finds its sequence by binary
// search. Sequences are in descending order of their heaviest tile and a sequence's tiles from the
// last rows to the first, so that under a causal mask the longest items come first.
#pragma once

#include <cstdint>
#include <span>

#include "algorithm/block_range.hpp"
#include "algorithm/mask.hpp"
#include "algorithm/seqlen_info.hpp"
#include "cpu/parallel.hpp"
#include "plan/kernel_entry.hpp"
#include "problem/geometry.hpp"

namespace foveal::cpu {

/// One sequence's items: (m_block, heads, split) for the tiles that have rows below seqlen_q, then
/// (m_block, heads) for those that only pad the sequence to its capacity.
struct SequenceWork {
  std::int64_t b = 0;
  std::int64_t cost = 0;            ///< (row, key) pairs of its heaviest tile
  std::int64_t m_blocks = 0;        ///< tiles with rows below seqlen_q
  std::int64_t padding_blocks = 0;  ///< tiles without
  std::int64_t num_splits = 1;
  std::int64_t first_item = 0;
  std::int64_t first_slot = 0;  ///< of its partial results, when num_splits > 1
};

/// One tile of a KV head, or of a few whose rows lie side by side, over all keys that it sees or
/// over one split of them.
struct WorkItem {
  const SequenceWork* sequence = nullptr;
  std::int64_t m_block = 0;
  std::int64_t head_k = 0;
  std::int64_t num_heads = 1;
  std::int64_t split = 0;

  /// Slot of the tile's first split.
  [[nodiscard]] std::int64_t first_slot(std::int64_t nheads_k) const {
    return sequence->first_slot + (m_block * nheads_k + head_k) * sequence->num_splits;
  }
};

struct WorkIndex {
  std::span<SequenceWork> sequences;
  WorkQueue* queue = nullptr;
  std::int64_t num_slots = 0;  ///< in use
  std::int64_t heads_per_item = 1;

  [[nodiscard]] WorkItem item(std::int64_t index, std::int64_t nheads_k) const;
};

[[nodiscard]] std::int64_t work_index_bytes(std::int64_t batch);

/// Builds the index in `storage`, which has work_index_bytes(batch).
[[nodiscard]] WorkIndex build_work_index(const AttentionGeometry& geometry,
                                         const planner::KernelConfig& config,
                                         const algorithm::SeqlenSource& lengths,
                                         std::byte* storage);

/// The mask of a sequence.
[[nodiscard]] inline algorithm::Mask sequence_mask(const algorithm::SeqlenInfo& info,
                                                   const AttentionGeometry& geometry) {
  return {info.seqlen_q, info.seqlen_k, geometry.window};
}

/// Key blocks of one split among those that a tile visits.
[[nodiscard]] algorithm::Range blocks_of_split(algorithm::Range visit, std::int64_t split,
                                               std::int64_t num_splits,
                                               const planner::KernelConfig& config);

}  // namespace foveal::cpu
