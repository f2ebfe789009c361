#include "cuda/portable/fwd/config.hpp"

#include <array>
#include <span>

#include "core/format.hpp"
#include "core/integer.hpp"
#include "cuda/device_rules.hpp"

namespace foveal::cuda::portable {
namespace {

using planner::KernelConfig;

/// In the order of preference: narrow before wide, much shared memory before little.
constexpr std::array kHalfTiles = {
    ForwardHdim32Plain::tile,   ForwardHdim64Plain::tile,  ForwardHdim64::tile,
    ForwardHdim96Plain::tile,   ForwardHdim128Plain::tile, ForwardHdim128::tile,
    ForwardHdim192::tile,       ForwardHdim256::tile,      ForwardHdim256Medium::tile,
    ForwardHdim256Small::tile,  ForwardHdim384::tile,      ForwardHdim512::tile,
    ForwardHdim512Medium::tile, ForwardHdim512Small::tile,
};
constexpr std::array kFloatTiles = {ForwardFp32Hdim64::tile, ForwardFp32Hdim128::tile,
                                    ForwardFp32Hdim256::tile, ForwardFp32Hdim512::tile};

/// A multiprocessor has about what one block may have; 1 KiB is reserved for each block.
constexpr std::int64_t kReservedBytes = 1024;
constexpr std::int64_t blocks_by_memory(const ForwardTile& tile, int element_bytes,
                                        std::int64_t bytes) {
  return (bytes + kReservedBytes) / (tile.layout(element_bytes).bytes + kReservedBytes);
}

constexpr bool fits(const ForwardTile& tile, int element_bytes, std::int64_t bytes) {
  return blocks_by_memory(tile, element_bytes, bytes) >=
         (tile.needs_min_blocks ? tile.min_blocks : 1);
}

/// The last tile takes any problem on any GPU, so that there always is one.
template <std::size_t kCount>
constexpr bool all_fit(const std::array<ForwardTile, kCount>& tiles, int element_bytes) {
  for (const ForwardTile& tile : tiles) {
    if (!fits(tile, element_bytes, kLargeSharedBytes)) return false;
  }
  return !tiles.back().plain && fits(tiles.back(), element_bytes, kSmallSharedBytes);
}
static_assert(all_fit(kHalfTiles, 2) && all_fit(kFloatTiles, 4));

/// k and v share a tile's width.
std::int64_t padded_headdim(const AttentionGeometry& geometry) {
  return max_of(geometry.headdim, geometry.headdim_v);
}

std::span<const ForwardTile> tiles_of(DType dtype) {
  return dtype == DType::kFloat32 ? std::span<const ForwardTile>(kFloatTiles)
                                  : std::span<const ForwardTile>(kHalfTiles);
}

/// Packing must spare so much of the tiles, since it costs a division a row.
constexpr double kMinPackGain = 1.1;

/// Key blocks of a split: fewer where the results of splits are small beside the keys they spare.
constexpr std::int64_t kMinSplitBlocks = 4;
constexpr std::int64_t kMinSplitBlocksOfManyRows = 16;
constexpr std::int64_t kFewPartialBytes = 4 << 20;

/// The combining launch by itself.
constexpr double kCombineUs = 2.5;

/// Share of the device's matrix rate that the products of a full machine attain, causal and 16K
/// (bench/results/h200/portable_fwd.txt): of tiles by their padded width.
double compute_share(const ForwardTile& tile, DType dtype) {
  if (dtype == DType::kFloat32) return 0.25;
  if (tile.d == 32) return 0.28;
  if (tile.d <= 128) return tile.plain ? 0.42 : 0.3;
  const bool small = tile.num_warps == 4 && tile.min_blocks == 1;
  return small ? 0.27 : 0.34;
}
constexpr double kReadShare = 0.7;

/// Says where copies go element by element, whatever the pointers are.
void note_element_copies(const char* name, const TensorSpec& spec, KernelConfig& config) {
  if (can_be_whole_units(spec)) return;
  config.notes.push_back(concat(name, ": its rows are not adjacent units of 16 bytes (",
                                spec.to_string(), "); they are copied element by element"));
}

/// Query rows of a typical sequence.
std::int64_t typical_rows(const AttentionGeometry& geometry) {
  if (!geometry.packed_q) return geometry.seqlen_q;
  return ceil_div(geometry.total_q, max_of<std::int64_t>(geometry.batch, 1));
}

bool worth_packing(const AttentionGeometry& geometry, const ForwardTile& tile) {
  const std::int64_t group = geometry.qhead_per_khead;
  if (group == 1) return false;
  const std::int64_t rows = typical_rows(geometry);
  const auto apart = static_cast<double>(group * ceil_div<std::int64_t>(rows, tile.m));
  const auto packed = static_cast<double>(ceil_div<std::int64_t>(rows * group, tile.m));
  return apart > kMinPackGain * packed;
}

/// Blocks that the device runs at a time.
std::int64_t resident_blocks(const ForwardTile& tile, int element_bytes, const DeviceInfo& device) {
  const std::int64_t by_memory = blocks_by_memory(tile, element_bytes, device.smem_per_block_bytes);
  return device.num_sms * clamp_to<std::int64_t>(by_memory, 1, tile.min_blocks);
}

/// Key blocks that a tile visits at most.
std::int64_t max_key_blocks(const AttentionGeometry& geometry, const ForwardTile& tile) {
  const algorithm::Window& window = geometry.window;
  const std::int64_t seen = min_of(geometry.seqlen_k, window.left + window.right + tile.m);
  return ceil_div<std::int64_t>(max_of<std::int64_t>(seen, 1), tile.n);
}

std::int64_t partial_bytes(std::int64_t tiles, const ForwardTile& tile) {
  return tiles * tile.m * tile.d * 4;
}

std::int64_t choose_num_splits(const AttentionGeometry& geometry, const ForwardTile& tile,
                               std::int64_t tiles, std::int64_t resident) {
  if (tiles == 0 || 4 * tiles > 3 * resident) return 1;
  const std::int64_t min_blocks =
      partial_bytes(tiles, tile) <= kFewPartialBytes ? kMinSplitBlocks : kMinSplitBlocksOfManyRows;
  const std::int64_t most =
      min_of<std::int64_t>(kMaxForwardSplits, max_key_blocks(geometry, tile) / min_blocks);
  return clamp_to<std::int64_t>(resident / tiles, 1, max_of<std::int64_t>(most, 1));
}

/// Neighbouring heads that are not packed may share their keys.
std::int64_t section_of(const AttentionProblem& problem, const AttentionGeometry& geometry,
                        const ForwardSchedule& schedule) {
  const std::int64_t bytes = geometry.seqlen_k * (geometry.headdim + geometry.headdim_v) *
                             dtype_bytes(problem.k.dtype) * schedule.group /
                             geometry.qhead_per_khead;
  return forward_section(geometry.batch * schedule.heads, bytes);
}

}  // namespace

bool rows_can_begin_at(const TensorSpec& spec, std::int64_t bytes) {
  const std::int64_t alignment = bytes / dtype_bytes(spec.dtype);
  const auto last = static_cast<std::size_t>(spec.rank - 1);
  if (spec.strides[last] != 1 && spec.shape[last] != 1) return false;
  for (std::size_t axis = 0; axis < last; ++axis) {
    if (spec.shape[axis] > 1 && spec.strides[axis] % alignment != 0) return false;
  }
  return true;
}

bool can_be_whole_units(const TensorSpec& spec) {
  const std::int64_t columns = spec.shape[static_cast<std::size_t>(spec.rank - 1)];
  return columns * dtype_bytes(spec.dtype) % 16 == 0 && rows_can_begin_at(spec, 16);
}

bool has_score_terms(const AttentionProblem& problem, const AttentionGeometry& geometry) {
  return problem.softcap > 0 || problem.alibi_slopes.present() || problem.bias.present() ||
         !(geometry.softmax_scale > 0);
}

const ForwardTile& choose_forward_tile(const AttentionProblem& problem,
                                       const AttentionGeometry& geometry,
                                       std::int64_t smem_per_block_bytes) {
  const auto element_bytes = static_cast<int>(dtype_bytes(problem.q.dtype));
  const bool plain = !has_score_terms(problem, geometry) && problem.dropout_p == 0;
  const std::span<const ForwardTile> tiles = tiles_of(problem.q.dtype);
  for (const ForwardTile& tile : tiles) {
    if (tile.d >= padded_headdim(geometry) && (plain || !tile.plain) &&
        fits(tile, element_bytes, smem_per_block_bytes)) {
      return tile;
    }
  }
  return tiles.back();
}

const ForwardTile& planned_forward_tile(DType dtype, const AttentionGeometry& geometry,
                                        const KernelConfig& config) {
  const std::span<const ForwardTile> tiles = tiles_of(dtype);
  for (const ForwardTile& tile : tiles) {
    if (tile.d >= padded_headdim(geometry) && tile.m == config.tile.m && tile.n == config.tile.n &&
        tile.num_threads() == config.num_threads && tile.chunks == config.num_chunks) {
      return tile;
    }
  }
  return tiles.back();
}

ForwardSchedule forward_schedule(const AttentionProblem& problem, const AttentionGeometry& geometry,
                                 const KernelConfig& config) {
  const std::int64_t group = config.pack_gqa ? geometry.qhead_per_khead : 1;
  const std::int64_t tile_m = config.tile.m;
  ForwardSchedule schedule;
  schedule.tile_m = static_cast<std::int32_t>(tile_m);
  schedule.group = static_cast<std::int32_t>(group);
  schedule.heads = static_cast<std::int32_t>(geometry.nheads_q / group);
  schedule.num_splits = static_cast<std::int32_t>(config.num_splits);
  schedule.packed = geometry.packed_q;
  // Every packed sequence may leave one tile partly filled.
  const std::int64_t m_blocks = geometry.packed_q ? geometry.total_q * group / tile_m +
                                                        min_of(geometry.batch, geometry.total_q)
                                                  : ceil_div(geometry.seqlen_q * group, tile_m);
  schedule.m_blocks = static_cast<std::int32_t>(m_blocks);
  schedule.section = static_cast<std::int32_t>(section_of(problem, geometry, schedule));
  return schedule;
}

KernelConfig configure_forward(const AttentionProblem& problem, const AttentionGeometry& geometry,
                               const DeviceInfo& device) {
  const DType dtype = problem.q.dtype;
  const ForwardTile& tile = choose_forward_tile(problem, geometry, device.smem_per_block_bytes);
  KernelConfig config;
  config.tile = {.m = tile.m, .n = tile.n};
  config.num_stages = tile.num_stages;
  config.num_chunks = tile.chunks;
  config.num_threads = tile.num_threads();
  config.pack_gqa = worth_packing(geometry, tile);
  const std::int64_t tiles = forward_schedule(problem, geometry, config)
                                 .num_tiles(static_cast<std::int32_t>(geometry.batch));
  if (!problem.batch_invariant) {
    config.num_splits = choose_num_splits(
        geometry, tile, tiles, resident_blocks(tile, static_cast<int>(dtype_bytes(dtype)), device));
  }
  if (config.num_splits > 1) {
    const std::int64_t slots = tiles * config.num_splits;
    config.workspace = {{"out of the splits", partial_bytes(slots, tile)},
                        {"maxima and sums of the splits", slots * tile.m * 8}};
  }
  note_element_copies("q", problem.q, config);
  note_element_copies("k", problem.k, config);
  note_element_copies("v", problem.v, config);
  return config;
}

double predict_forward(const AttentionProblem& problem, const AttentionGeometry& geometry,
                       const KernelConfig& config, const DeviceInfo& device) {
  const DType dtype = problem.q.dtype;
  const ForwardTile& tile = planned_forward_tile(dtype, geometry, config);
  const auto tiles = static_cast<double>(forward_schedule(problem, geometry, config)
                                             .num_tiles(static_cast<std::int32_t>(geometry.batch)));
  AttentionWork work = attention_work(problem);
  // Rows and columns that only fill a tile cost as much as others.
  const double rows =
      static_cast<double>(geometry.total_q) * static_cast<double>(geometry.nheads_q);
  if (rows > 0) work.flops *= max_of(1.0, tiles * tile.m / rows);
  work.flops *= 2.0 * tile.d / static_cast<double>(geometry.headdim + geometry.headdim_v);
  const double resident =
      static_cast<double>(resident_blocks(tile, static_cast<int>(dtype_bytes(dtype)), device));
  const double blocks = max_of(tiles * static_cast<double>(config.num_splits), 1.0);
  Efficiency efficiency{.compute = compute_share(tile, dtype), .memory = kReadShare};
  efficiency.compute *= min_of(1.0, blocks / resident);
  // A multiprocessor asks for so much at a time: few blocks do not fill the memory's pipe.
  efficiency.memory *= min_of(1.0, blocks / static_cast<double>(device.num_sms));
  double time_us = roofline_us(work, dtype, device, efficiency);
  if (config.num_splits > 1) {
    const double bytes = 2.0 * static_cast<double>(config.workspace_bytes());
    time_us += kCombineUs + bytes / (device.read_gbs * 1e3);
  }
  return time_us;
}

}  // namespace foveal::cuda::portable
