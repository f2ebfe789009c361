// cpu_blocked_fwd: attention of one tile of query rows over the blocks of keys that it sees.
#pragma once

#include <cstdint>

#include "algorithm/seqlen_info.hpp"
#include "cpu/fwd/config.hpp"
#include "cpu/fwd/work_index.hpp"
#include "cpu/score_tile.hpp"
#include "cpu/tile_load.hpp"
#include "cpu/tile_math.hpp"
#include "plan/kernel_entry.hpp"

namespace foveal::cpu {

/// What all workers of a launch share, read only.
struct ForwardArgs {
  ForwardArgs(const planner::LaunchContext& launch, const ForwardPartials& split_results);

  const planner::LaunchContext& context;
  const AttentionGeometry& geometry;
  planner::TileShape tile;
  const TileMath* math;
  ScoreOptions score;
  algorithm::SeqlenSource lengths;
  algorithm::KvLayout k_layout;
  algorithm::KvLayout v_layout;
  RowLoader q;
  RowLoader k;
  RowLoader v;
  bool can_stream;  ///< k's and v's rows are whole cache-line multiples of adjacent elements.
  RowStrides q_strides;
  RowStorer out;
  RowStrides out_strides;
  void* lse = nullptr;  ///< Null: not asked for.
  RowStrides lse_strides;
  const void* sinks = nullptr;  ///< Null: none.
  std::int64_t sink_stride = 0;
  ForwardPartials partials;
};

/// Computes one item and stores what it makes final: a tile that isn't split, or the merge of a
/// tile's splits when this was the last of them.
void attend(const ForwardArgs& args, const ForwardScratch& scratch, const WorkItem& item);

}  // namespace foveal::cpu
