#include "cuda/portable/decode/config.hpp"

#include <string_view>

#include "core/format.hpp"
#include "core/integer.hpp"
#include "cuda/portable/decode/direct_args.hpp"

namespace foveal::cuda::decode {
namespace {

using planner::KernelConfig;

/// Times in microseconds, from bench/results/h200 (docs/kernels/cuda_decode.md).
constexpr double kStartUs = 2.0;
constexpr double kClusterMergeUs = 1.0;
constexpr double kGlobalMergeUs = 2.5;

/// What one block a multiprocessor draws from memory at most: 64 of them saturate an H200.
constexpr double kSmReadGbs = 68;

/// Blocks of the largest cluster that still starts at once beside others, and of all clusters.
constexpr std::int64_t kMaxClusterSize = 8;

/// Keys below which a split costs more than it brings.
constexpr std::int64_t kMinSplitKeys = 128;

/// What sequences have of the cache where their lengths are on the device: between all of it and
/// half. Clusters take as long as the longest sequence, work that is shared as long as all
/// together.
constexpr double kExpectedLength = 0.75;

/// What a sequence of the cache's length, alone among short ones, may take in a cluster.
constexpr double kMaxLoneUs = 32;

/// Warps of blocks that leave room for a second one beside them, also where a cluster's blocks
/// receive each other's results.
constexpr int kSharedSmWarps = 4;

/// Keys of a page from which a third stage pays.
constexpr std::int64_t kMinDeepPage = 64;

/// Granules are counted in 32 bits; the shared direct kernel has up to five times as many.
constexpr std::int64_t kMaxGranules = std::int64_t{1} << 28;

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

/// Warps and stages whose rings, with the rest of a block, fit in `bytes`.
struct Ring {
  int warps = 0;
  int stages = 0;
};

/// What a block's rings have to leave room for.
struct RingNeeds {
  int headdim = 0;
  int rows = 0;
  int splits = 0;         ///< Whose results a cluster's blocks receive.
  int direct_rows = 0;    ///< Packed rows, where the direct kernel may run; 0: it can't.
  int batch_prefix = 0;   ///< Sequences that the balanced schedule scans.
  int shared_blocks = 0;  ///< Blocks of the shared direct kernel, where it may run; 0: it can't.
};

/// A plan holds for any alignment of the pointers, so both kernels must fit.
bool fits(const RingNeeds& needs, const Ring& ring, std::int64_t bytes) {
  if (needs.shared_blocks > 0) {
    const auto layout = shared_direct_layout(needs.headdim, needs.direct_rows, ring.warps,
                                             ring.stages, needs.shared_blocks, needs.batch_prefix);
    if (layout.total > bytes) return false;
  } else if (needs.direct_rows > 0) {
    const auto layout = direct_layout(needs.headdim, needs.direct_rows, ring.warps, ring.stages,
                                      max_of(needs.splits, 1));
    if (layout.total > bytes) return false;
  }
  return shared_layout(needs.headdim, needs.rows, ring.warps, ring.stages, needs.splits,
                       needs.batch_prefix)
             .total <= bytes;
}

/// The most warps with `stages` stages, 0 when not even one fits.
Ring widest_ring(const RingNeeds& needs, int stages, std::int64_t bytes) {
  Ring ring{max_warps(needs.headdim, needs.rows / kTileRows), stages};
  while (ring.warps > 0 && !fits(needs, ring, bytes)) --ring.warps;
  return ring;
}

/// Three stages where they are wanted and four warps have room for them; otherwise two, and as many
/// warps as fit.
Ring fit_ring(const RingNeeds& needs, std::int64_t bytes, bool deep) {
  if (deep) {
    const Ring three = widest_ring(needs, 3, bytes);
    if (three.warps >= 4) return three;
  }
  const Ring wide = widest_ring(needs, 2, bytes);
  return wide.warps > 0 ? wide : Ring{1, 2};
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

/// Packed rows of a tile that the direct kernel may be given, by shape alone; 0: it takes no such.
int direct_rows(const AttentionGeometry& geometry, std::int64_t rows) {
  return rows == kTileRows && headdim_tile(geometry) <= kMaxDirectHeaddim
             ? static_cast<int>(geometry.seqlen_q * geometry.qhead_per_khead)
             : 0;
}

/// Tiles of rows of all sequences and KV heads.
std::int64_t num_units(const AttentionGeometry& geometry, std::int64_t rows) {
  return geometry.batch * geometry.nheads_k * row_tiles_per_sequence(geometry, rows);
}

/// Whether the direct kernel takes the problem, for aligned pointers (direct_args.cpp).
bool is_direct(const AttentionProblem& problem, const AttentionGeometry& geometry,
               std::int64_t rows) {
  const bool plain = problem.softcap == 0.0f && !problem.alibi_slopes.present() &&
                     !problem.cache_batch_idx.present() &&
                     (!problem.block_table.present() || geometry.page_size % kBlockKeys == 0);
  const bool lengths = !problem.cu_seqlens_q.present() && !problem.cu_seqlens_k.present() &&
                       !problem.seqused_q.present() && !problem.leftpad_k.present();
  return plain && lengths && direct_rows(geometry, rows) > 0 &&
         geometry.headdim == headdim_tile(geometry) && geometry.headdim_v == geometry.headdim;
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

Traffic scaled(const Traffic& traffic, double factor) {
  return {traffic.total_us * factor, traffic.bytes * factor};
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
                             std::int64_t rows, const DeviceInfo& device) {
  const std::int64_t units = num_units(geometry, rows);
  ClusterChoice best{1, time_us(traffic, units, device.num_sms)};
  if (!has_clusters(device)) return best;
  for (std::int64_t size = 2; size <= kMaxClusterSize; size *= 2) {
    const RingNeeds needs{.headdim = headdim_tile(geometry),
                          .rows = static_cast<int>(rows),
                          .splits = static_cast<int>(size),
                          .direct_rows = direct_rows(geometry, rows)};
    if (units * size > device.num_sms / 2 || geometry.seqlen_k < size * kMinSplitKeys ||
        !fits(needs, {2, 2}, device.smem_per_block_bytes)) {
      break;
    }
    const double us = time_us(traffic, units * size, device.num_sms) + kClusterMergeUs;
    if (us < best.us) best = {size, us};
  }
  return best;
}

/// Short rows leave little to do between a block's start and end: two blocks share a
/// multiprocessor, so that one streams meanwhile, where there are blocks enough.
bool blocks_share_sm(const AttentionGeometry& geometry, std::int64_t rows, std::int64_t blocks,
                     const DeviceInfo& device) {
  const RingNeeds needs{.headdim = headdim_tile(geometry), .rows = static_cast<int>(rows)};
  return headdim_tile(geometry) <= 128 && blocks > device.num_sms &&
         fits(needs, {3, 2}, half_of(device.smem_per_block_bytes));
}

/// Sequences that shared memory has room for. Under batch_invariant the batch must not decide how
/// many warps share the keys.
int prefix_sequences(const KernelConfig& config, const AttentionGeometry& geometry) {
  if (config.split_keys > 0) return static_cast<int>(kMaxBalancedBatch);
  return config.num_blocks > 0 ? static_cast<int>(geometry.batch) : 0;
}

std::int64_t ring_bytes(const DeviceInfo& device, bool shared_sm) {
  return shared_sm ? half_of(device.smem_per_block_bytes) : device.smem_per_block_bytes;
}

/// `deep`: three stages rather than two, where there is room.
void set_ring(KernelConfig& config, const RingNeeds& needs, std::int64_t bytes, bool deep,
              int most_warps = kMaxDirectWarps) {
  Ring ring = fit_ring(needs, bytes, deep);
  ring.warps = min_of(ring.warps, most_warps);
  config.num_stages = ring.stages;
  config.num_threads = 32 * ring.warps;
  config.tile.n = kBlockKeys * ring.warps;
}

/// Whether clusters can take parts by each sequence's own length. Neither the batch nor its lengths
/// may decide that under batch_invariant.
bool can_split_by_length(const AttentionGeometry& geometry, std::int64_t rows,
                         const DeviceInfo& device) {
  return has_clusters(device) && direct_rows(geometry, rows) > 0 &&
         geometry.nheads_k >= kMinInvariantHeads;
}

/// Parts of a sequence of the longest length.
std::int64_t most_parts(const AttentionGeometry& geometry) {
  return clamp_to<std::int64_t>(ceil_div(geometry.seqlen_k, kInvariantPartKeys), 1,
                                kMaxInvariantParts);
}

/// The keys are dealt to the warps, so that their number must not follow the number of parts of the
/// longest sequence.
void split_by_length(KernelConfig& config, const AttentionGeometry& geometry,
                     const DeviceInfo& device) {
  config.split_keys = kInvariantPartKeys;
  config.num_splits = most_parts(geometry);
  config.cluster_size = config.num_splits;
  const RingNeeds needs{.headdim = headdim_tile(geometry),
                        .rows = static_cast<int>(config.tile.m),
                        .splits = kMaxInvariantParts,
                        .direct_rows = direct_rows(geometry, config.tile.m)};
  set_ring(config, needs, device.smem_per_block_bytes, /*deep=*/false);
}

/// Blocks of a cluster that share each sequence's keys in equal parts where lengths are on the
/// device; 0: a sequence much longer than the others would hold up all, or there are few blocks.
std::int64_t own_length_cluster(const AttentionProblem& problem, const AttentionGeometry& geometry,
                                std::int64_t rows, const DeviceInfo& device) {
  const std::int64_t units = num_units(geometry, rows);
  const std::int64_t most = has_clusters(device) ? kMaxClusterSize : 1;
  std::int64_t size = 1;
  while (2 * size <= most && 2 * size * units <= device.num_sms) size *= 2;
  // Two rounds of blocks end more evenly than one; clusters of more than two would leave
  // multiprocessors without a block between them.
  if (size == 1 && most > 1 && units <= device.num_sms) size = 2;
  const double unit_bytes = traffic_of(problem, device).bytes / static_cast<double>(units);
  const double lone_us = unit_bytes / static_cast<double>(size) / (kSmReadGbs * 1e3);
  const bool fills = 2 * units * size > device.num_sms;
  const bool has_keys = geometry.seqlen_k >= size * kMinSplitKeys;
  return is_direct(problem, geometry, rows) && fills && has_keys && lone_us <= kMaxLoneUs ? size
                                                                                          : 0;
}

/// Blocks of clusters that are under way all at once leave room for each other; otherwise a block
/// has a multiprocessor for itself (bench/results/h200/decode_lengths.txt).
void split_own_lengths(KernelConfig& config, const AttentionGeometry& geometry,
                       const DeviceInfo& device, std::int64_t size) {
  config.num_splits = config.cluster_size = size;
  const RingNeeds needs{.headdim = headdim_tile(geometry),
                        .rows = static_cast<int>(config.tile.m),
                        .splits = size > 1 ? static_cast<int>(size) : 0,
                        .direct_rows = direct_rows(geometry, config.tile.m)};
  if (size > 1 && num_units(geometry, config.tile.m) * size <= device.num_sms) {
    set_ring(config, needs, half_of(device.smem_per_block_bytes), /*deep=*/false, kSharedSmWarps);
  } else {
    const bool deep = geometry.page_size == 0 || geometry.page_size >= kMinDeepPage;
    set_ring(config, needs, device.smem_per_block_bytes, deep);
  }
}

void share_evenly(KernelConfig& config, const AttentionProblem& problem,
                  const AttentionGeometry& geometry, const DeviceInfo& device) {
  const bool shared_sm =
      blocks_share_sm(geometry, config.tile.m, 2 * std::int64_t{device.num_sms}, device);
  config.num_blocks = device.num_sms * (shared_sm ? 2 : 1);
  if (problem.batch_invariant) {
    config.split_keys =
        kInvariantSplitKeys *
        max_of<std::int64_t>(ceil_div(geometry.seqlen_k, kInvariantSplitKeys * kMaxMergedParts), 1);
  }
  const bool direct = config.split_keys == 0 && problem.seqused_k.present() &&
                      is_direct(problem, geometry, config.tile.m);
  const RingNeeds needs{
      .headdim = headdim_tile(geometry),
      .rows = static_cast<int>(config.tile.m),
      .direct_rows = direct ? direct_rows(geometry, config.tile.m) : 0,
      .batch_prefix = prefix_sequences(config, geometry),
      .shared_blocks = direct ? static_cast<int>(config.num_blocks) : 0,
  };
  set_ring(config, needs, ring_bytes(device, shared_sm), !shared_sm && !direct);
}

/// In a cluster the direct kernel's copies are all under way with two stages, and a third costs
/// time at every length (bench/results/h200/decode_direct.txt).
void split_over_clusters(KernelConfig& config, const AttentionProblem& problem,
                         const AttentionGeometry& geometry, const DeviceInfo& device,
                         std::int64_t size) {
  config.num_splits = config.cluster_size = size;
  const bool shared_sm =
      blocks_share_sm(geometry, config.tile.m, num_units(geometry, config.tile.m) * size, device);
  const RingNeeds needs{.headdim = headdim_tile(geometry),
                        .rows = static_cast<int>(config.tile.m),
                        .splits = size > 1 ? static_cast<int>(size) : 0,
                        .direct_rows = direct_rows(geometry, config.tile.m)};
  const bool deep = !shared_sm && (size == 1 || !is_direct(problem, geometry, config.tile.m));
  set_ring(config, needs, ring_bytes(device, shared_sm), deep);
}

void add_notes(const AttentionProblem& problem, const AttentionGeometry& geometry,
               const DeviceInfo& device, KernelConfig& config) {
  const std::int64_t units = num_units(geometry, config.tile.m);
  if (config.split_keys > 0 && config.num_blocks == 0) {
    config.notes.push_back(concat("a part for every ", config.split_keys,
                                  " keys of a sequence, at most ", kMaxInvariantParts,
                                  ", by its own length alone"));
  } else if (config.num_splits > 1) {
    const char* parts =
        lengths_vary(problem, geometry) ? ", in equal parts of each sequence's own length" : "";
    config.notes.push_back(concat("keys are split ", config.num_splits, " ways", parts, ": ", units,
                                  " tiles of heads alone would use ",
                                  min_of<std::int64_t>(units, device.num_sms), " of ",
                                  device.num_sms, " multiprocessors"));
  } else if (config.num_blocks == 0 && lengths_vary(problem, geometry)) {
    config.notes.push_back("a block takes all keys of a head, whatever the sequence's own length");
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
  while (units * (kTaskGranules + ceil_div(unit_blocks, blocks)) > kMaxGranules) blocks *= 2;
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
  const Traffic traffic = traffic_of(problem, device);
  const ClusterChoice cluster = choose_cluster(traffic, geometry, config.tile.m, device);

  const bool varies = lengths_vary(problem, geometry);
  const Traffic expected = varies ? scaled(traffic, kExpectedLength) : traffic;
  const double balanced_us = time_us(expected, device.num_sms, device.num_sms) + kGlobalMergeUs;
  const bool can_balance = geometry.batch <= kMaxBalancedBatch;
  const bool few_keys = cluster.size > 1 && cluster.us <= balanced_us;
  const std::int64_t own_length = varies && !problem.batch_invariant
                                      ? own_length_cluster(problem, geometry, config.tile.m, device)
                                      : 0;
  if (problem.batch_invariant && can_split_by_length(geometry, config.tile.m, device)) {
    split_by_length(config, geometry, device);
  } else if (own_length > 0) {
    split_own_lengths(config, geometry, device, own_length);
  } else if (problem.batch_invariant ||
             (can_balance && !few_keys && (varies || balanced_us < cluster.us))) {
    share_evenly(config, problem, geometry, device);
  } else {
    split_over_clusters(config, problem, geometry, device, cluster.size);
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
  const double tiles = static_cast<double>(row_tiles_per_sequence(geometry, config.tile.m));
  const double factor = 1.0 + kRereadCost * max_of(tiles - 1.0, 0.0);
  traffic = scaled(traffic, factor);
  if (config.num_blocks > 0) {
    return time_us(traffic, device.num_sms, device.num_sms) + kGlobalMergeUs;
  }
  const std::int64_t blocks = num_units(geometry, config.tile.m) * config.num_splits;
  return time_us(traffic, blocks, device.num_sms) + (config.num_splits > 1 ? kClusterMergeUs : 0.0);
}

}  // namespace foveal::cuda::decode
