// What portable_fwd decides before any data is there: tile, packing of heads, splits of the keys,
// and the workspace.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/portable/fwd/args.hpp"
#include "cuda/portable/fwd/tile_config.hpp"
#include "plan/kernel_entry.hpp"

namespace foveal::cuda::portable {

/// Parts of the workspace, in KernelConfig::workspace's order; absent where nothing is split.
enum class ForwardPart : std::size_t { kOut = 0, kRows = 1 };

/// The tile for a problem and what a block may have of shared memory.
[[nodiscard]] const ForwardTile& choose_forward_tile(const AttentionProblem& problem,
                                                     const AttentionGeometry& geometry,
                                                     std::int64_t smem_per_block_bytes);

/// The tile that `config` was made with.
[[nodiscard]] const ForwardTile& planned_forward_tile(DType dtype,
                                                      const AttentionGeometry& geometry,
                                                      const planner::KernelConfig& config);

/// Whether more than softmax_scale lies between the product and the softmax. A scale that isn't
/// positive is such a term: it can't be taken into the exponent.
[[nodiscard]] bool has_score_terms(const AttentionProblem& problem,
                                   const AttentionGeometry& geometry);

/// Whether the rows of an operand can begin at multiples of `bytes`, their elements adjacent: that
/// they do is then a matter of the pointer's alignment.
[[nodiscard]] bool rows_can_begin_at(const TensorSpec& spec, std::int64_t bytes);

/// The same for rows that are copied 16 bytes at a time, whole (RowElements::whole_units).
[[nodiscard]] bool can_be_whole_units(const TensorSpec& spec);

/// How the blocks of a launch are numbered, as `config` has decided.
[[nodiscard]] ForwardSchedule forward_schedule(const AttentionProblem& problem,
                                               const AttentionGeometry& geometry,
                                               const planner::KernelConfig& config);

[[nodiscard]] planner::KernelConfig configure_forward(const AttentionProblem& problem,
                                                      const AttentionGeometry& geometry,
                                                      const DeviceInfo& device);

[[nodiscard]] double predict_forward(const AttentionProblem& problem,
                                     const AttentionGeometry& geometry,
                                     const planner::KernelConfig& config, const DeviceInfo& device);

}  // namespace foveal::cuda::portable
