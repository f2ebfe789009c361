#include "cuda/hopper/forward_rules.hpp"

#include "core/format.hpp"
#include "core/integer.hpp"
#include "cuda/device_rules.hpp"
#include "cuda/hopper/device_rules.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cuda::hopper {
namespace {

/// Rows and keys are counted in 32 bits on the device, with room for windows.
constexpr std::int64_t kMaxRows = std::int64_t{1} << 29;
/// Tiles of a launch.
constexpr std::int64_t kMaxTiles = std::int64_t{1} << 30;
/// Keys of a page are copied in whole units of rows that are swizzled together.
constexpr std::int64_t kPageUnit = 8;
constexpr double kReadShare = 0.7;

/// Keys that a row sees at most, rounded up to blocks.
std::int64_t max_seen_keys(const AttentionGeometry& geometry, const TileRate& tile) {
  const algorithm::Window& window = geometry.window;
  const std::int64_t seen = min_of(geometry.seqlen_k, window.left + window.right + tile.m);
  return round_up<std::int64_t>(max_of<std::int64_t>(seen, 1), tile.n);
}

Status check_features(const ForwardLimits& limits, const AttentionProblem& problem,
                      const AttentionGeometry& geometry) {
  const char* kernel = limits.kernel;
  if (problem.q.dtype == DType::kFloat32) {
    return Status::unsupported(concat("dtype fp32: ", kernel, " takes fp16 and bf16"));
  }
  if (max_of(geometry.headdim, geometry.headdim_v) > limits.max_headdim) {
    return Status::unsupported(concat("headdim ", max_of(geometry.headdim, geometry.headdim_v),
                                      ": ", kernel, " takes at most ", limits.max_headdim));
  }
  if (problem.bias.present()) return Status::unsupported(concat(kernel, " takes no bias"));
  if (problem.alibi_slopes.present()) {
    return Status::unsupported(concat(kernel, " takes no alibi_slopes"));
  }
  if (problem.dropout_p > 0) return Status::unsupported(concat(kernel, " takes no dropout"));
  if (!geometry.paged()) return Status::ok();
  if (geometry.page_size % kPageUnit != 0) {
    return Status::unsupported(
        concat("page_size ", geometry.page_size, ": ", kernel, " takes multiples of ", kPageUnit));
  }
  if (problem.leftpad_k.present()) {
    return Status::unsupported(concat(kernel, " takes no leftpad_k with pages"));
  }
  return Status::ok();
}

Status check_counts(const ForwardLimits& limits, const AttentionProblem& problem,
                    const AttentionGeometry& geometry) {
  const char* kernel = limits.kernel;
  const std::int64_t rows_q = geometry.packed_q ? geometry.total_q : geometry.seqlen_q;
  const std::int64_t rows_k = geometry.packed_k ? geometry.total_k : geometry.seqlen_k;
  if (max_of(rows_q, rows_k) > kMaxRows) {
    return Status::unsupported(
        concat(max_of(rows_q, rows_k), " rows of q or k: ", kernel, " takes at most ", kMaxRows));
  }
  const std::int64_t m_blocks =
      geometry.packed_q ? rows_q / limits.tile_m + geometry.batch
                        : geometry.batch * ceil_div<std::int64_t>(rows_q, limits.tile_m);
  const double tiles = static_cast<double>(m_blocks) * static_cast<double>(geometry.nheads_q);
  if (tiles > static_cast<double>(kMaxTiles)) {
    return Status::unsupported(
        concat(kernel, " takes at most ", kMaxTiles, " tiles of ", limits.tile_m, " rows"));
  }
  const std::int64_t entries = max_of(problem.k.shape[0], geometry.batch);
  if (entries > kMaxRows) {
    return Status::unsupported(
        concat(entries, " sequences or pages: ", kernel, " takes at most ", kMaxRows));
  }
  return Status::ok();
}

}  // namespace

Status check_forward(const ForwardLimits& limits, const AttentionProblem& problem,
                     const AttentionGeometry& geometry, const DeviceInfo& device) {
  const char* kernel = limits.kernel;
  if (limits.shared_bytes > device.smem_per_block_bytes) {
    return Status::unsupported(concat(kernel, " needs ", limits.shared_bytes,
                                      " bytes of shared memory a block; there are ",
                                      device.smem_per_block_bytes));
  }
  FOVEAL_RETURN_IF_ERROR(check_features(limits, problem, geometry));
  FOVEAL_RETURN_IF_ERROR(check_strides(kernel, "q", problem.q));
  FOVEAL_RETURN_IF_ERROR(check_strides(kernel, "k", problem.k));
  FOVEAL_RETURN_IF_ERROR(check_strides(kernel, "v", problem.v));
  return check_counts(limits, problem, geometry);
}

void plan_stand_in(const AttentionProblem& problem, const AttentionGeometry& geometry,
                   const DeviceInfo& device, planner::KernelConfig& config) {
  AttentionProblem whole = problem;
  whole.batch_invariant = true;  // no splits
  config.stand_in.push_back(kPortableForward.configure(whole, geometry, device));
  config.notes.push_back(
      "where q, k or v does not begin at a multiple of 16 bytes, portable_fwd runs in its place");
}

ForwardSchedule schedule_tiles(const AttentionProblem& problem, const AttentionGeometry& geometry,
                               int tile_m) {
  const std::int64_t key_bytes =
      (geometry.headdim + geometry.headdim_v) * dtype_bytes(problem.k.dtype);
  ForwardSchedule schedule;
  schedule.tile_m = tile_m;
  schedule.packed = geometry.packed_q;
  if (geometry.packed_q) {
    // Every sequence may leave one tile partly filled.
    const std::int64_t m_blocks =
        geometry.total_q / tile_m + min_of(geometry.batch, geometry.total_q);
    schedule.num_tiles = static_cast<std::int32_t>(m_blocks * geometry.nheads_q);
    // How many keys of a cache are used is not known here.
    const std::int64_t keys = geometry.packed_k ? geometry.total_k : 0;
    schedule.section = static_cast<std::int32_t>(
        forward_section(geometry.nheads_k, keys * key_bytes) * geometry.qhead_per_khead);
    return schedule;
  }
  const std::int64_t pairs = geometry.batch * geometry.nheads_q;
  const std::int64_t bytes = geometry.seqlen_k * key_bytes / geometry.qhead_per_khead;
  schedule.m_blocks = static_cast<std::int32_t>(ceil_div<std::int64_t>(geometry.seqlen_q, tile_m));
  schedule.section = static_cast<std::int32_t>(forward_section(pairs, bytes));
  schedule.num_tiles = static_cast<std::int32_t>(schedule.m_blocks * pairs);
  return schedule;
}

bool scales_first(const AttentionProblem& problem, const AttentionGeometry& geometry) {
  return problem.softcap > 0 || !(geometry.softmax_scale > 0);
}

double predict_tiles(const AttentionProblem& problem, const AttentionGeometry& geometry,
                     const TileRate& tile, std::int64_t num_tiles,
                     const planner::KernelConfig& config, const DeviceInfo& device) {
  AttentionWork work = attention_work(problem);
  // Rows and columns that only fill a tile cost as much as others.
  const double rows =
      static_cast<double>(geometry.total_q) * static_cast<double>(geometry.nheads_q);
  if (rows > 0) work.flops *= max_of(1.0, static_cast<double>(num_tiles * tile.m) / rows);
  work.flops *= 2.0 * tile.d / static_cast<double>(geometry.headdim + geometry.headdim_v);
  Efficiency efficiency{.compute = tile.compute_share, .memory = kReadShare};
  // A launch takes as long as its longest tile on the multiprocessors that share it.
  const double longest =
      4.0 * tile.m * tile.d * static_cast<double>(max_seen_keys(geometry, tile)) / tile.num_sms;
  const double even = work.flops / static_cast<double>(device.num_sms);
  efficiency.compute *= clamp_to(even / longest, 1e-6, 1.0);
  efficiency.memory *=
      min_of(1.0, static_cast<double>(config.num_blocks) / static_cast<double>(device.num_sms));
  if (efficiency.memory <= 0) efficiency.memory = kReadShare;
  return roofline_us(work, problem.q.dtype, device, efficiency);
}

}  // namespace foveal::cuda::hopper
