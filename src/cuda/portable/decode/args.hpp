// What the decode kernel is given: the attention itself and how its work is laid over blocks.
//
// A unit is one tile of packed query rows of one KV head and sequence; its keys may be split over
// several blocks, whose partial results are merged within the launch.
#pragma once

#include <cstdint>

#include "cuda/attention_args.hpp"
#include "cuda/portable/decode/shared_layout.hpp"

namespace foveal::cuda::decode {

/// Scores are in log2 units from the scale on.
inline constexpr float kLog2E = 1.4426950408889634f;

enum class Schedule : std::int32_t {
  /// Each unit has num_splits blocks, a cluster (sm_90 and newer) where that is above 1, and the
  /// others send their results into the shared memory of the first. Least latency.
  kClusters = 0,
  /// The keys of all units, as their lengths on the device are, form one list of granules that the
  /// grid's blocks share evenly. A unit that several blocks have a part of is merged by the block
  /// with its last part, through global memory.
  kBalanced = 1,
};

/// One sequence of the batch. Its key blocks count from `first_block` of kBlockKeys keys.
struct Sequence {
  algorithm::BasicSeqlenInfo<std::int32_t> lengths;
  algorithm::BasicMask<std::int32_t> mask;
  algorithm::BasicRange<std::int32_t> keys;  ///< Those that some row sees.
  std::int32_t first_block;
  std::int32_t num_blocks;  ///< Blocks with a key that some row sees.
  std::int32_t row_tiles;   ///< Tiles of packed rows, padding rows included; 0 without rows.
};

/// Sequence b; `tile_rows` are the packed rows of a tile.
FOVEAL_HOST_DEVICE inline Sequence make_sequence(const algorithm::SeqlenSource& source,
                                                 algorithm::BasicWindow<std::int32_t> window,
                                                 std::int32_t group, std::int32_t tile_rows,
                                                 std::int32_t b) {
  Sequence sequence{};
  sequence.lengths = algorithm::basic_seqlen_info<std::int32_t>(source, b);
  sequence.mask = {sequence.lengths.seqlen_q, sequence.lengths.seqlen_k, window};
  sequence.keys = sequence.mask.keys_of_rows({0, sequence.lengths.seqlen_q});
  sequence.first_block = sequence.keys.min / kBlockKeys;
  sequence.num_blocks =
      sequence.keys.empty() ? 0 : ceil_div(sequence.keys.max, kBlockKeys) - sequence.first_block;
  sequence.row_tiles = ceil_div(sequence.lengths.capacity_q * group, tile_rows);
  return sequence;
}

/// Most parts that batch_invariant makes of a unit under kClusters.
inline constexpr std::int32_t kMaxInvariantParts = 8;

/// kClusters: key blocks of each of a unit's parts; the last may have less, and some none.
/// `splits` divides by num_splits. With `split_blocks` > 0 (batch_invariant) the size depends on
/// nothing but the unit's own blocks; num_splits is then as many as the longest sequence can have.
FOVEAL_HOST_DEVICE constexpr std::int32_t part_blocks(std::int32_t num_blocks,
                                                      std::int32_t split_blocks,
                                                      std::int32_t num_splits,
                                                      const Divisor& splits) {
  if (split_blocks > 0) return max_of(split_blocks, ceil_div(num_blocks, kMaxInvariantParts));
  return splits.quotient(num_blocks + num_splits - 1);
}

struct DecodeArgs {
  AttentionArgs attention;
  algorithm::BasicWindow<std::int32_t> window;  ///< The attention's, in 32 bits.
  bool lengths_fixed = false;  ///< All sequences are as `sequence`: no length is on the device.
  Sequence sequence{};
  Divisor group;   ///< qhead_per_khead
  Divisor splits;  ///< num_splits
  Divisor tiles;   ///< row_tiles
  Schedule schedule = Schedule::kClusters;
  std::int32_t num_stages = 2;
  std::int32_t row_tiles = 1;       ///< kClusters: of a sequence with the most query rows.
  std::int32_t num_splits = 1;      ///< kClusters
  std::int32_t split_blocks = 0;    ///< kClusters: as for part_blocks.
  std::int32_t granule_blocks = 0;  ///< kBalanced: key blocks of a granule.
  std::int32_t task_granules = 0;   ///< kBalanced: granules without keys of each unit.
  std::int32_t max_splits = 0;      ///< kBalanced: of a unit, when all have the same length.
  /// kBalanced: every granule leaves a result of its own, so that bits don't depend on where a
  /// block's share ends (batch_invariant).
  bool granules_apart = false;
  bool vectorised = true;          ///< Rows of k and v can be copied 16 bytes at a time.
  bool queries_vectorised = true;  ///< Rows of q as well.
  float* partials = nullptr;       ///< kBalanced: [slots][rows][partial_stride]
  /// kBalanced: [slots]. A slot's flag is `nonce` while it holds a result that is not merged yet;
  /// anything else before. No launch has the nonce of another, so the flags need no clearing.
  std::uint64_t* flags = nullptr;
  std::uint64_t nonce = 0;
};

}  // namespace foveal::cuda::decode
