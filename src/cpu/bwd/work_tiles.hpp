// The work of a launch as lines of items: tiles of rows, and blocks of keys. Lengths are known only
// now, so the index is built at the start of a launch, in the workspace, one entry a sequence, the
// heaviest sequence first; an item finds its sequence by binary search.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/bwd/args.hpp"

namespace foveal::cpu {

struct BackwardSequence {
  std::int64_t b = 0;
  double cost = 0;                   ///< visible pairs
  std::int64_t row_tiles = 0;        ///< of all rows of q that belong to it, used or not
  std::int64_t first_row_item = 0;   ///< row tiles before it, over all heads
  std::int64_t key_blocks = 0;       ///< of all rows of k that belong to it
  std::int64_t first_key_block = 0;  ///< negative in the left padding: key 0 begins block 0
  std::int64_t first_key_item = 0;
};

/// One tile of packed rows, or one block of keys, of one KV head.
struct BackwardItem {
  const BackwardSequence* sequence = nullptr;
  std::int64_t rank = 0;   ///< of the sequence in the index
  std::int64_t block = 0;  ///< packed rows [block * tile.m, ...) or keys [block * tile.n, ...)
  std::int64_t head_k = 0;
};

struct BackwardIndex {
  std::span<BackwardSequence> sequences;
  std::int64_t heads = 0;
  std::int64_t heads_together = 1;  ///< KV heads whose blocks of keys are handed out in turn
  std::int64_t num_row_items = 0;
  std::int64_t num_key_items = 0;

  [[nodiscard]] BackwardItem row_item(std::int64_t index) const;
  /// By groups of heads; in a group by blocks of keys in ascending order, the heads in turn. So
  /// workers find blocks of different heads, and the accumulators of a group are enough.
  [[nodiscard]] BackwardItem key_item(std::int64_t index) const;
  [[nodiscard]] std::int64_t unit(const BackwardItem& item) const {
    return item.rank * heads + item.head_k;
  }
};

/// Builds the index in `storage`, which has an entry a sequence.
[[nodiscard]] BackwardIndex build_backward_index(const BackwardArgs& args,
                                                 std::int64_t heads_together,
                                                 BackwardSequence* storage);

/// Packed rows of a row tile that belong to the sequence, and those of them that are used.
[[nodiscard]] algorithm::Range packed_rows(const BackwardArgs& args, const Sequence& sequence,
                                           std::int64_t block);
[[nodiscard]] algorithm::Range used_packed_rows(const BackwardArgs& args, const Sequence& sequence,
                                                std::int64_t block);

/// Blocks of keys that the used rows of a row tile see.
[[nodiscard]] algorithm::Range key_blocks_of(const BackwardArgs& args, const Sequence& sequence,
                                             std::int64_t row_tile);

/// Key positions of a block of keys that belong to the sequence (negative in the left padding), and
/// those of them that are keys.
[[nodiscard]] algorithm::Range key_positions(const BackwardArgs& args, const Sequence& sequence,
                                             std::int64_t block);
[[nodiscard]] algorithm::Range used_keys(const BackwardArgs& args, const Sequence& sequence,
                                         std::int64_t block);

}  // namespace foveal::cpu
