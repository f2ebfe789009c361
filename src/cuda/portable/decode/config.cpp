#include "cuda/portable/decode/config.hpp"

#include <string_view>

#include "core/format.hpp"
#include "core/integer.hpp"
#include "cuda/portable/decode/direct_args.hpp"
#include "cuda/portable/decode/ring_fit.hpp"

namespace foveal::cuda::decode {
namespace {

using planner::KernelConfig;

/// Times in microseconds, from bench/results/h200 (docs/kernels/cuda_decode.md).
constexpr double kStartUs = 2.0;
constexpr double kClusterMergeUs = 1.0;
constexpr double kGlobalMergeUs = 2.5;

/// What one block a multiprocessor draws from memory at most: 64 of them saturate an H200.
constexpr double kSmReadGbs = 68;

/// The share of the memory's rate from which more blocks bring little.
constexpr double kNearlyAll = 0.9;

/// Blocks of the largest cluster that still starts at once beside others, and of all clusters.
constexpr std::int64_t kMaxClusterSize = 8;

/// Keys below which a split costs more than it brings.
constexpr std::int64_t kMinSplitKeys = 128;

/// What all sequences have of the cache where their lengths are on the device: half of it to all.
/// Clusters take as long as the longest sequence, work that is shared as long as all together.
constexpr double kExpectedShare = 0.75;

/// What a sequence of the cache's length, alone among short ones, may take in a cluster: with
/// lengths spread, clusters took as long as shared work at 15 and 31 us, a tenth more at 62
/// (bench/results/h200/decode_lengths-eac0a67.txt, as the next three).
constexpr double kMaxLoneUs = 32;

/// What sharing the work costs beyond a block a head, about.
constexpr double kSharingUs = 3.5;

/// The ring of blocks of clusters two of which share a multiprocessor.
constexpr Ring kPairedRing{4, 2};

/// Keys of a page from which a third stage takes half a per cent off where all lengths are the
/// capacity, in blocks that are no clusters or come in several rounds.
constexpr std::int64_t kMinDeepPage = 64;

/// Granules are counted in 32 bits; the shared direct kernel has up to five times as many.
constexpr std::int64_t kMaxGranules = std::int64_t{1} << 28;

/// Whether the build's code for this device knows clusters: GPUs from sm_90 on do, but code made
/// from the PTX of an older architecture does not.
bool has_clusters(const DeviceInfo& device) {
  if (device.sm < 90) return false;
  if (!device.present) return true;
  constexpr std::string_view kArchs = FOVEAL_CUDA_ARCHS_TEXT;
  const std::string own = concat(" ", device.sm, " ");
  return concat(" ", kArchs, " ").find(own) != std::string::npos;
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

/// Whether clusters of so many blocks have keys and shared memory enough.
bool can_cluster(const AttentionGeometry& geometry, std::int64_t rows, const DeviceInfo& device,
                 std::int64_t size) {
  return has_clusters(device) && size <= kMaxClusterSize &&
         geometry.seqlen_k >= size * kMinSplitKeys &&
         fits(cluster_needs(geometry, rows, size), {2, 2}, device.smem_per_block_bytes);
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
  for (std::int64_t size = 2; size <= kMaxClusterSize; size *= 2) {
    if (units * size > device.num_sms / 2 || !can_cluster(geometry, rows, device, size)) break;
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

void take_ring(KernelConfig& config, const Ring& ring) {
  config.num_stages = ring.stages;
  config.num_threads = 32 * ring.warps;
  config.tile.n = kBlockKeys * ring.warps;
}

/// `deep`: three stages rather than two, where there is room.
void set_ring(KernelConfig& config, const RingNeeds& needs, std::int64_t bytes, bool deep) {
  take_ring(config, fit_ring(needs, bytes, deep));
}

/// Whether clusters can take parts by each sequence's own length. Neither the batch nor its lengths
/// may decide that under batch_invariant.
bool can_split_by_length(const AttentionGeometry& geometry, std::int64_t rows,
                         const DeviceInfo& device) {
  return has_clusters(device) && direct_rows(geometry, rows) > 0 &&
         geometry.nheads_k >= kMinInvariantHeads &&
         fits(cluster_needs(geometry, rows, kMaxInvariantParts), {1, 2},
              device.smem_per_block_bytes);
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
  set_ring(config, cluster_needs(geometry, config.tile.m, kMaxInvariantParts),
           device.smem_per_block_bytes, /*deep=*/false);
}

/// Whether two blocks of clusters share a multiprocessor, so that as many blocks as there are
/// multiprocessors are under way at once: with one each, clusters leave some without.
bool clusters_pair(const AttentionGeometry& geometry, std::int64_t rows, const DeviceInfo& device,
                   std::int64_t size) {
  const std::int64_t blocks = num_units(geometry, rows) * size;
  return size > 1 && 2 * blocks > device.num_sms && blocks <= device.num_sms &&
         fits(cluster_needs(geometry, rows, size), kPairedRing,
              half_of(device.smem_per_block_bytes));
}

/// Blocks of a cluster that take equal parts of each sequence where lengths are on the device. 0:
/// the direct kernel does not do it, there are too few blocks, or a sequence much longer than the
/// others would hold up all.
std::int64_t own_length_cluster_size(const AttentionProblem& problem,
                                     const AttentionGeometry& geometry, std::int64_t rows,
                                     const DeviceInfo& device) {
  if (!is_direct(problem, geometry, rows)) return 0;
  const std::int64_t units = num_units(geometry, rows);
  std::int64_t size = 1;
  while (can_cluster(geometry, rows, device, 2 * size) &&
         (4 * size * units <= device.num_sms || clusters_pair(geometry, rows, device, 2 * size))) {
    size *= 2;
  }
  // More blocks than multiprocessors end more evenly.
  if (size == 1 && units <= device.num_sms && can_cluster(geometry, rows, device, 2)) size = 2;
  const double unit_bytes = traffic_of(problem, device).bytes / static_cast<double>(units);
  const double lone_us = unit_bytes / static_cast<double>(size) / (kSmReadGbs * 1e3);
  const double drawn_gbs = static_cast<double>(units * size) * kSmReadGbs;
  const bool fills = drawn_gbs >= kNearlyAll * device.read_gbs;
  return lone_us <= (fills ? kMaxLoneUs : kSharingUs) ? size : 0;
}

void split_own_lengths(KernelConfig& config, const AttentionGeometry& geometry,
                       const DeviceInfo& device, std::int64_t size) {
  config.num_splits = config.cluster_size = size;
  if (clusters_pair(geometry, config.tile.m, device, size)) {
    take_ring(config, kPairedRing);
  } else {
    const bool rounds = num_units(geometry, config.tile.m) * size > device.num_sms;
    const bool deep =
        (size == 1 || rounds) && (geometry.page_size == 0 || geometry.page_size >= kMinDeepPage);
    set_ring(config, cluster_needs(geometry, config.tile.m, size), device.smem_per_block_bytes,
             deep);
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

/// Where lengths are fixed a cluster's direct kernel has all copies under way with two stages, and
/// a third costs time at every length (bench/results/h200/decode_direct.txt).
void split_over_clusters(KernelConfig& config, const AttentionProblem& problem,
                         const AttentionGeometry& geometry, const DeviceInfo& device,
                         std::int64_t size) {
  config.num_splits = config.cluster_size = size;
  const bool shared_sm =
      blocks_share_sm(geometry, config.tile.m, num_units(geometry, config.tile.m) * size, device);
  const bool deep = !shared_sm && (size == 1 || !is_direct(problem, geometry, config.tile.m));
  set_ring(config, cluster_needs(geometry, config.tile.m, size), ring_bytes(device, shared_sm),
           deep);
}

void add_notes(const AttentionProblem& problem, const AttentionGeometry& geometry,
               const DeviceInfo& device, KernelConfig& config) {
  const std::int64_t units = num_units(geometry, config.tile.m);
  if (config.split_keys > 0 && config.num_blocks == 0) {
    config.notes.push_back(concat("a part for every ", config.split_keys,
                                  " keys of a sequence, at most ", kMaxInvariantParts,
                                  ", by its own length alone"));
  } else if (config.num_splits > 1) {
    const std::string parts =
        lengths_vary(problem, geometry) ? ", in equal parts of each sequence's own length" : "";
    const std::string reason = 2 * units > device.num_sms
                                   ? std::string(", which end more evenly than a block a head")
                                   : concat(": ", units, " tiles of heads alone would use ", units,
                                            " of ", device.num_sms, " multiprocessors");
    config.notes.push_back(concat("keys are split ", config.num_splits, " ways", parts, reason));
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
  const Traffic expected = varies ? scaled(traffic, kExpectedShare) : traffic;
  const double balanced_us = time_us(expected, device.num_sms, device.num_sms) + kGlobalMergeUs;
  const bool can_balance = geometry.batch <= kMaxBalancedBatch;
  const bool few_keys = cluster.size > 1 && cluster.us <= balanced_us;
  const std::int64_t own_length =
      varies && !problem.batch_invariant
          ? own_length_cluster_size(problem, geometry, config.tile.m, device)
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
