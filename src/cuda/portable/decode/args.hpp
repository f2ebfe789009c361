// What the decode kernel is given: the attention itself and how its work is laid over blocks.
//
// A unit is one tile of packed query rows of one KV head and sequence; its keys may be split over
// several blocks, whose partial results are merged within the launch.
#pragma once

#include <cstdint>

#include "cuda/attention_args.hpp"
#include "cuda/portable/decode/shared_layout.hpp"

namespace foveal::cuda::decode {

enum class Schedule : std::int32_t {
  /// Each unit has num_splits blocks, a cluster (sm_90 and newer) where that is above 1, and the
  /// others send their results into the shared memory of the first. Least latency.
  kClusters = 0,
  /// The keys of all units, as their lengths on the device are, form one list of granules that the
  /// grid's blocks share evenly. A unit that several blocks have a part of is merged by the block
  /// with its last part, through global memory.
  kBalanced = 1,
};

struct DecodeArgs {
  AttentionArgs attention;
  Schedule schedule = Schedule::kClusters;
  std::int32_t num_stages = 2;
  std::int32_t row_tiles = 1;       ///< kClusters: of a sequence with the most query rows.
  std::int32_t num_splits = 1;      ///< kClusters
  std::int32_t granule_blocks = 0;  ///< kBalanced: key blocks of a granule.
  std::int32_t max_splits = 0;      ///< kBalanced: of a unit, when all have the same length.
  /// kBalanced: every granule leaves a result of its own, so that bits don't depend on where a
  /// block's share ends (batch_invariant).
  bool granules_apart = false;
  bool vectorised = true;       ///< Rows of k and v can be copied 16 bytes at a time.
  float* partials = nullptr;  ///< kBalanced: [slots][rows][partial_stride]
  /// kBalanced: [slots]. A slot's flag is `nonce` while it holds a result that is not merged yet;
  /// anything else before. No launch has the nonce of another, so the flags need no clearing.
  std::uint64_t* flags = nullptr;
  std::uint64_t nonce = 0;
};

}  // namespace foveal::cuda::decode
