// How a decode problem is laid over a GPU: tile of rows, warps, stages, and which schedule.
#pragma once

#include <cstdint>

#include "cuda/portable/decode/args.hpp"
#include "plan/kernel_entry.hpp"

namespace foveal::cuda::decode {

/// Query tokens of a sequence beyond which other kernels have enough rows to fill their tiles.
inline constexpr std::int64_t kMaxQueryTokens = 16;

/// Keys of a split under batch_invariant, whatever the batch and the GPU; a multiple of it where a
/// sequence would have more than kMaxMergedParts splits.
inline constexpr std::int64_t kInvariantSplitKeys = 2048;

/// Keys of a part under batch_invariant where parts are clusters; an eighth of a longer sequence.
inline constexpr std::int64_t kInvariantPartKeys = 2048;

/// KV heads from which eight parts of each, at the most, use a GPU well enough: a property of the
/// model, not of a batch.
inline constexpr std::int64_t kMinInvariantHeads = 8;

/// What a task of the balanced schedule costs beside its keys, in granules of a block's warps: with
/// lengths far apart blocks would else be left with many short sequences.
inline constexpr std::int64_t kTaskGranules = 3;

/// The shared direct kernel counts in finer granules, so many for one of the general kernel's, and
/// a task costs it less, in key blocks (bench/results/h200/decode_ragged.txt).
inline constexpr std::int32_t kDirectGranules = 3;
inline constexpr std::int32_t kDirectTaskBlocks = 16;

/// Sequences whose lengths a block can scan in shared memory: what the balanced schedule, and with
/// it batch_invariant, can do.
inline constexpr std::int64_t kMaxBalancedBatch = 4096;

/// Parts of a unit whose weights fit in a block's shared memory.
inline constexpr std::int64_t kMaxMergedParts = 1024;

/// Most parts of a unit that are merged through global memory.
inline constexpr std::int64_t kMaxParts = 64;

/// Parts of the workspace; there is none without the balanced schedule.
enum class DecodePart : std::size_t { kPartials = 0, kFlags = 1 };

/// Tiles of packed query rows of the longest sequence, each of config.tile.m rows.
[[nodiscard]] std::int64_t row_tiles_per_sequence(const AttentionGeometry& geometry,
                                                  std::int64_t tile_rows);

/// Key blocks of a granule of the balanced schedule.
[[nodiscard]] std::int32_t granule_blocks(const planner::KernelConfig& config,
                                          const AttentionGeometry& geometry);

[[nodiscard]] planner::KernelConfig configure_decode(const AttentionProblem& problem,
                                                     const AttentionGeometry& geometry,
                                                     const DeviceInfo& device);

/// Fills in the workspace for the rest of `config`.
void size_workspace(planner::KernelConfig& config, const AttentionGeometry& geometry);

[[nodiscard]] double predict_decode(const AttentionProblem& problem,
                                    const AttentionGeometry& geometry,
                                    const planner::KernelConfig& config, const DeviceInfo& device);

}  // namespace foveal::cuda::decode
