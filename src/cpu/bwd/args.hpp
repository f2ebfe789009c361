// What every pass of the backward reads, gathered once a launch.
#pragma once

#include <cstdint>

#include "algorithm/kv_locator.hpp"
#include "algorithm/mask.hpp"
#include "algorithm/seqlen_info.hpp"
#include "cpu/bwd/dq_sums.hpp"
#include "cpu/score_tile.hpp"
#include "cpu/tile_load.hpp"
#include "cpu/tile_math.hpp"
#include "plan/kernel_entry.hpp"

namespace foveal::cpu {

/// An operand in q's layout, and one in k's.
struct RowOperand {
  RowLoader loader;
  RowStrides strides;
};
struct KeyOperand {
  RowLoader loader;
  algorithm::KvLayout layout;
};

/// A gradient in q's layout, and one in k's.
struct RowGradient {
  bool wanted = false;
  RowStorer storer;
  RowStrides strides;
};
struct KeyGradient {
  bool wanted = false;
  RowStorer storer;
  algorithm::KvLayout layout;
};

/// One fp32 value a row and head.
struct RowValues {
  const void* base = nullptr;  ///< Null: none.
  RowStrides strides;
};

struct BackwardArgs {
  BackwardArgs(const planner::LaunchContext& launch, const DqSums& sums_of_dq);

  const AttentionProblem& problem;
  const AttentionGeometry& geometry;
  const AttentionTensors& tensors;
  planner::TileShape tile;
  const TileMath& math;
  ScoreOptions scores;
  algorithm::SeqlenSource lengths;
  std::int64_t group = 0;  ///< qhead_per_khead; 0 without query heads.

  RowOperand q, out, dout;
  KeyOperand k, v;
  RowValues lse, dlse;
  RowGradient dq;
  KeyGradient dk, dv;

  float* delta = nullptr;    ///< delta - dlse of every row and head
  RowStrides delta_strides;  ///< [total_q, nheads_q]
  DqSums dq_sums;
};

/// One sequence of the batch.
struct Sequence {
  std::int64_t b = 0;
  algorithm::SeqlenInfo lengths;
  algorithm::Mask mask;
};

[[nodiscard]] Sequence sequence_of(const BackwardArgs& args, std::int64_t b);

/// Where the keys of a sequence and KV head lie in k, v or a gradient of theirs.
[[nodiscard]] algorithm::KvLocator locate_keys(const algorithm::KvLayout& layout,
                                               const Sequence& sequence, std::int64_t head_k);

}  // namespace foveal::cpu
