#include "cuda/portable/decode/config.hpp"

#include <array>
#include <string_view>

#include "core/format.hpp"
#include "core/integer.hpp"
#include "cuda/portable/decode/shared_layout.hpp"

namespace foveal::cuda::decode {
namespace {

using planner::KernelConfig;

/// Times in microseconds, from bench/results/h200 (docs/kernels/decode.md).
constexpr double kStartUs = 2.0;
constexpr double kClusterMergeUs = 1.0;
constexpr double kGlobalMergeUs = 2.5;

/// What one block a multiprocessor draws from memory at most: 64 of them saturate an H200.
constexpr double kSmReadGbs = 68;

/// Blocks of the largest cluster that still starts at once beside others, and of all clusters.
constexpr std::int64_t kMaxClusterSize = 8;

/// Keys below which a split costs more than it brings.
constexpr std::int64_t kMinSplitKeys = 128;

/// Sequences whose lengths a block can scan in shared memory.
constexpr std::int64_t kMaxBalancedBatch = 2048;

/// Granules are counted in 32 bits.
constexpr std::int64_t kMaxGranules = std::int64_t{1} << 30;

/// Shared memory of a block that leaves room for a second one on a multiprocessor that has
/// `per_block` for a single one.
std::int64_t half_of(std::int64_t per_block) { return (per_block - 1024) / 2; }

/// Whether the build's code for this device knows clusters: GPUs from sm_90 on do, but code made
/// from the PTX of an older architecture does not.
bool has_clusters(const DeviceInfo& device) {
  if (device.sm < 90) return false;
  if (!device.present) return true;
  constexpr std::string_view kArchs = FOVEAL_CUDA_ARCHS_TEXT;
  const std::string own = concat(" ", device.sm, " ");
  return concat(" ", kArchs, " ").find(own) != std::string::npos;
}

/// Warps and stages whose rings, with the rest of a block, fit in `bytes`. Warps first: each needs
/// two stages, and a third hides more of what a block of keys computes.
struct Ring {
  int warps = 0;
  int stages = 0;
};
Ring fit_ring(int headdim, int rows, std::int64_t bytes, int splits, int batch_prefix) {
  for (const int stages : {3, 2}) {
    for (int warps = kMaxWarps; warps >= 4; --warps) {
      const SharedLayout layout =
          shared_layout(headdim, rows, warps, stages, splits, batch_prefix);
      if (layout.total <= bytes) return {warps, stages};
    }
  }
  for (int warps = 3; warps > 1; --warps) {
    if (shared_layout(headdim, rows, warps, 2, splits, batch_prefix).total <= bytes) {
      return {warps, 2};
    }
  }
  return {1, 2};
}

std::int64_t tile_rows(const AttentionGeometry& geometry) {
  const std::int64_t rows = geometry.seqlen_q * geometry.qhead_per_khead;
  if (rows <= kTileRows) return kTileRows;
  switch (headdim_tile(geometry)) {
    case 512: return kTileRows;
    case 256: return 2 * kTileRows;
    default: return 4 * kTileRows;
  }
}

/// Tiles of rows of all sequences and KV heads.
std::int64_t num_units(const AttentionGeometry& geometry, std::int64_t rows) {
  return geometry.batch * geometry.nheads_k * row_tiles_per_sequence(geometry, rows);
}

bool lengths_vary(const AttentionProblem& problem, const AttentionGeometry& geometry) {
  return geometry.batch > 1 && (problem.seqused_k.present() || problem.cu_seqlens_k.present());
}

struct Traffic {
  double total_us;  ///< All bytes at the memory's rate.
  double bytes;
};
Traffic traffic_of(const AttentionProblem& problem, const DeviceInfo& device) {
  const AttentionWork work = attention_work(problem);
  const double bytes = work.read_bytes + work.written_bytes;
  return {device.read_gbs > 0 ? bytes / (device.read_gbs * 1e3) : 0, bytes};
}

/// Time of a launch in which each of `blocks` blocks reads an equal part.
double time_us(const Traffic& traffic, std::int64_t blocks, std::int64_t sms) {
  const std::int64_t rounds = ceil_div(blocks, sms);
  const double block_us =
      traffic.bytes / static_cast<double>(max_of<std::int64_t>(blocks, 1)) / (kSmReadGbs * 1e3);
  return kStartUs + max_of(traffic.total_us, block_us * static_cast<double>(rounds));
}

/// The cluster size with the least time, and that time.
struct ClusterChoice {
  std::int64_t size = 1;
  double us = 0;
};
ClusterChoice choose_cluster(const Traffic& traffic, const AttentionGeometry& geometry,
                             std::int64_t units, const DeviceInfo& device) {
  ClusterChoice best{1, time_us(traffic, units, device.num_sms)};
  if (!has_clusters(device)) return best;
  for (std::int64_t size = 2; size <= kMaxClusterSize; size *= 2) {
    if (units * size > device.num_sms / 2 || geometry.seqlen_k < size * kMinSplitKeys) break;
    const double us = time_us(traffic, units * size, device.num_sms) + kClusterMergeUs;
    if (us < best.us) best = {size, us};
  }
  return best;
}

void set_ring(KernelConfig& config, const AttentionGeometry& geometry, std::int64_t bytes) {
  const int splits = config.num_splits > 1 ? static_cast<int>(config.num_splits) : 0;
  const int prefix = config.num_blocks > 0 ? static_cast<int>(geometry.batch) : 0;
  const Ring ring = fit_ring(headdim_tile(geometry), static_cast<int>(config.tile.m), bytes, splits,
                             prefix);
  config.num_stages = ring.stages;
  config.num_threads = 32 * ring.warps;
  config.tile.n = kBlockKeys * ring.warps;
}

void add_notes(const AttentionProblem& problem, const AttentionGeometry& geometry,
               const DeviceInfo& device, KernelConfig& config) {
  const std::int64_t units = num_units(geometry, config.tile.m);
  if (config.num_splits > 1) {
    config.notes.push_back(concat("keys are split ", config.num_splits, " ways: ", units,
                                  " tiles of heads alone would use ", min_of<std::int64_t>(
                                      units, device.num_sms),
                                  " of ", device.num_sms, " multiprocessors"));
  }
  if (config.num_blocks > 0 && config.split_keys == 0) {
    config.notes.push_back(concat(config.num_blocks,
                                  " blocks share the keys of all sequences evenly, by their "
                                  "lengths on the device"));
  }
  if (problem.causal && geometry.seqlen_q == 1) {
    config.notes.push_back("causal with one query token: it sees every key, as without");
  }
}

}  // namespace

int headdim_tile(const AttentionGeometry& geometry) {
  const std::int64_t headdim = max_of(geometry.headdim, geometry.headdim_v);
  for (const int tile : {64, 128, 256}) {
    if (headdim <= tile) return tile;
  }
  return 512;
}

std::int64_t row_tiles_per_sequence(const AttentionGeometry& geometry, std::int64_t rows) {
  return ceil_div(geometry.seqlen_q * geometry.qhead_per_khead, rows);
}

std::int32_t granule_blocks(const KernelConfig& config, const AttentionGeometry& geometry) {
  if (config.split_keys > 0) return static_cast<std::int32_t>(config.split_keys / kBlockKeys);
  std::int64_t blocks = config.num_threads / 32;
  const std::int64_t units = num_units(geometry, config.tile.m);
  const std::int64_t unit_blocks = ceil_div<std::int64_t>(geometry.seqlen_k, kBlockKeys);
  while (units * ceil_div(unit_blocks, blocks) > kMaxGranules) blocks *= 2;
  return static_cast<std::int32_t>(blocks);
}

void size_workspace(KernelConfig& config, const AttentionGeometry& geometry) {
  config.workspace.clear();
  if (config.num_blocks == 0) return;
  std::int64_t slots = 2 * config.num_blocks;
  if (config.split_keys > 0) {
    // Each sequence leaves at most one granule partly filled.
    const std::int64_t granules =
        geometry.total_k / config.split_keys + min_of(geometry.batch, geometry.total_k) + 1;
    slots = granules * geometry.nheads_k * row_tiles_per_sequence(geometry, config.tile.m);
  }
  const std::int64_t row_bytes = std::int64_t{partial_stride(headdim_tile(geometry))} * 4;
  config.workspace = {{"partial results", slots * config.tile.m * row_bytes},
                      {"flags of the partial results", slots * 8}};
}

KernelConfig configure_decode(const AttentionProblem& problem, const AttentionGeometry& geometry,
                              const DeviceInfo& device) {
  KernelConfig config;
  config.tile.m = tile_rows(geometry);
  config.pack_gqa = geometry.qhead_per_khead > 1;
  const std::int64_t units = num_units(geometry, config.tile.m);
  const Traffic traffic = traffic_of(problem, device);
  const ClusterChoice cluster = choose_cluster(traffic, geometry, units, device);

  const std::int64_t block_bytes = device.smem_per_block_bytes;
  // Two blocks a multiprocessor, where the second one's copies go on while the first one merges.
  const bool two_blocks = shared_layout(headdim_tile(geometry), static_cast<int>(config.tile.m), 3,
                                        2, 0, static_cast<int>(min_of(geometry.batch,
                                                                      kMaxBalancedBatch)))
                              .total <= half_of(block_bytes);
  const std::int64_t shared_blocks = device.num_sms * (two_blocks ? 2 : 1);
  const double balanced_us = time_us(traffic, device.num_sms, device.num_sms) + kGlobalMergeUs;
  const bool can_balance = geometry.batch <= kMaxBalancedBatch;
  const bool few_keys = cluster.size > 1 && cluster.us <= balanced_us;
  if (problem.batch_invariant ||
      (can_balance && !few_keys &&
       (lengths_vary(problem, geometry) || balanced_us < cluster.us))) {
    config.num_blocks = shared_blocks;
    if (problem.batch_invariant) config.split_keys = kInvariantSplitKeys;
    set_ring(config, geometry, two_blocks ? half_of(block_bytes) : block_bytes);
  } else {
    config.num_splits = cluster.size;
    config.cluster_size = cluster.size;
    set_ring(config, geometry, block_bytes);
  }
  size_workspace(config, geometry);
  add_notes(problem, geometry, device, config);
  return config;
}

double predict_decode(const AttentionProblem& problem, const AttentionGeometry& geometry,
                      const KernelConfig& config, const DeviceInfo& device) {
  Traffic traffic = traffic_of(problem, device);
  // Tiles of rows of one KV head read the same keys; from the second on mostly from the cache.
  constexpr double kRereadCost = 0.5;
  const double tiles =
      static_cast<double>(row_tiles_per_sequence(geometry, config.tile.m));
  const double factor = 1.0 + kRereadCost * max_of(tiles - 1.0, 0.0);
  traffic.bytes *= factor;
  traffic.total_us *= factor;
  if (config.num_blocks > 0) {
    return time_us(traffic, device.num_sms, device.num_sms) + kGlobalMergeUs;
  }
  const std::int64_t blocks = num_units(geometry, config.tile.m) * config.num_splits;
  return time_us(traffic, blocks, device.num_sms) +
         (config.num_splits > 1 ? kClusterMergeUs : 0.0);
}

}  // namespace foveal::cuda::decode
