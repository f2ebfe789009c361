// What hopper_bwd is given: the backward as the passes over rows have it, descriptions of its
// operands for the copy engine, and how its tiles are numbered.
#pragma once

#include <cstdint>

#include "cuda/hopper/backward_softcap.hpp"
#include "cuda/hopper/bwd/tile_config.hpp"
#include "cuda/portable/bwd/args.hpp"
#include "cuda/runtime/tensor_map.hpp"

namespace foveal::cuda::hopper::bwd {

/// An addition that has begun, in a count of those that are done.
inline constexpr std::uint64_t kBegun = std::uint64_t{1} << 32;

struct GradientArgs {
  TensorMap q;  ///< (column, row, head, sequence); packed: one sequence.
  TensorMap dout;
  TensorMap k;
  TensorMap v;
  TensorMap k_part;  ///< k again where heads are wider than 128, in panels of a block's part of dq.
  cuda::bwd::BackwardArgs backward;
  KeyTileOrder order;
  float scale_log2 = 0;  ///< softmax_scale for powers of two; 1 for capped scores.
  Softcap softcap;
  std::int32_t row_tiles = 0;        ///< Tiles of dq's sums of a head, of all sequences.
  std::int32_t row_blocks = 0;       ///< Dense q: of a sequence.
  std::uint64_t* tickets = nullptr;  ///< How many tiles of keys have been taken.
  /// How many tiles of keys have added to each tile of dq's sums, [nheads_q, row_tiles]; those that
  /// have begun are counted too, kBegun each. Null where heads are wide, or additions have turns.
  std::uint64_t* additions = nullptr;
  /// How many have added in turn, [nheads_q, row_tiles, blocks of a cluster]: the next one's turn.
  /// Null where the order does not matter.
  std::uint64_t* turns = nullptr;
  std::int32_t key_tiles = 0;  ///< Of all KV heads, at most.
  /// Gradients of the operands' type whose rows are whole, aligned units of 16 bytes.
  bool dq_in_units = false;
  bool dk_in_units = false;
  bool dv_in_units = false;
};

}  // namespace foveal::cuda::hopper::bwd
