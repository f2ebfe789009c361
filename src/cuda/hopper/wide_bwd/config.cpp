#include "cuda/hopper/wide_bwd/config.hpp"

#include <array>

#include "core/format.hpp"
#include "core/integer.hpp"
#include "cuda/device_rules.hpp"
#include "cuda/hopper/device_rules.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cuda::hopper::wide_bwd {
namespace {

using planner::KernelConfig;

constexpr std::array kTiles = {WideHdim384::tile, WideHdim512::tile};
static_assert(kTiles.back().d == kMaxHeaddim);

/// Rows and keys are counted in 32 bits on the device.
constexpr std::int64_t kMaxRows = std::int64_t{1} << 29;
/// Tiles of a launch over all heads: two blocks each.
constexpr std::int64_t kMaxTiles = std::int64_t{1} << 29;
/// Bytes of L2 cache that what streams past one section of heads may fill.
constexpr std::int64_t kSectionBytes = 36 << 20;

/// Share of the device's rate that five products reach, causal and 16K
/// (docs/kernels/hopper_hdim512_bwd.md).
constexpr double kEfficiency = 0.3;

Status check_features(const AttentionProblem& problem, const AttentionGeometry& geometry) {
  const auto refuse = [](const char* what) {
    return Status::unsupported(concat(kName, " takes no ", what));
  };
  if (problem.q.dtype == DType::kFloat32) {
    return Status::unsupported(concat("q is fp32: ", kName, " takes fp16 and bf16"));
  }
  if (problem.dout.dtype != problem.q.dtype) {
    return Status::unsupported(concat("dout is ", dtype_name(problem.dout.dtype), ": ", kName,
                                      " takes q's ", dtype_name(problem.q.dtype)));
  }
  const std::int64_t columns = max_of(geometry.headdim, geometry.headdim_v);
  if (columns < kMinHeaddim || columns > kMaxHeaddim) {
    return Status::unsupported(
        concat("headdim ", columns, ": ", kName, " takes ", kMinHeaddim, " to ", kMaxHeaddim));
  }
  if (problem.softcap > 0) return refuse("softcap");
  if (problem.bias.present()) return refuse("bias");
  if (problem.alibi_slopes.present()) return refuse("alibi_slopes");
  if (problem.dropout_p > 0) return refuse("dropout");
  return Status::ok();
}

Status check_counts(const AttentionGeometry& geometry) {
  const std::int64_t rows = max_of(max_of(geometry.total_q, geometry.total_k), geometry.batch);
  if (rows > kMaxRows) {
    return Status::unsupported(
        concat(rows, " rows of q or k: ", kName, " takes at most ", kMaxRows));
  }
  const double heads = static_cast<double>(max_of(geometry.nheads_q, geometry.nheads_k));
  const double tiles = static_cast<double>(
      max_of(num_tiles(geometry, Side::kKeys), num_tiles(geometry, Side::kRows)));
  if (tiles * heads > static_cast<double>(kMaxTiles)) {
    return Status::unsupported(
        concat(kName, " takes at most ", kMaxTiles, " tiles over all heads"));
  }
  return Status::ok();
}

std::int64_t list_bytes(bool packed, std::int64_t tiles) { return packed ? 8 * (1 + tiles) : 0; }

/// What portable_bwd needs where the launch's pointers turn out to be unaligned.
std::int64_t portable_bytes(const AttentionProblem& problem, const AttentionGeometry& geometry) {
  const Result<DeviceInfo> device = device_from_name("sm_90");
  if (!device) return 0;
  return kPortableBackward.configure(problem, geometry, *device).workspace_bytes();
}

/// Rows of a sequence, of the mean one where they are packed.
std::int64_t mean_rows(const AttentionGeometry& geometry, Side side) {
  const bool keys = side == Side::kKeys;
  if (!(keys ? geometry.packed_k : geometry.packed_q)) {
    return keys ? geometry.seqlen_k : geometry.seqlen_q;
  }
  return (keys ? geometry.total_k : geometry.total_q) / max_of<std::int64_t>(geometry.batch, 1);
}

}  // namespace

const WideTile& wide_tile(const AttentionGeometry& geometry) {
  const std::int64_t width = max_of(geometry.headdim, geometry.headdim_v);
  for (const WideTile& tile : kTiles) {
    if (tile.d >= width) return tile;
  }
  return kTiles.back();
}

std::int64_t num_tiles(const AttentionGeometry& geometry, Side side) {
  const int held = wide_tile(geometry).plan(side).held_rows();
  return side == Side::kKeys ? cuda::bwd::max_tiles(geometry.batch, geometry.seqlen_k,
                                                    geometry.total_k, geometry.packed_k, held)
                             : cuda::bwd::max_tiles(geometry.batch, geometry.seqlen_q,
                                                    geometry.total_q, geometry.packed_q, held);
}

TileOrder tile_order(const AttentionGeometry& geometry, Side side) {
  const bool keys = side == Side::kKeys;
  if (keys ? geometry.packed_k : geometry.packed_q) {
    return {.blocks = static_cast<std::int32_t>(num_tiles(geometry, side))};
  }
  const std::int64_t rows = keys ? geometry.seqlen_k : geometry.seqlen_q;
  const std::int64_t pairs = geometry.batch * (keys ? geometry.nheads_k : geometry.nheads_q);
  // Two operands in 16 bits: of a whole group of query heads, or of its one KV head.
  const std::int64_t group = max_of<std::int64_t>(geometry.qhead_per_khead, 1);
  const std::int64_t bytes = 4 * wide_tile(geometry).d * (keys ? group : 1) *
                             mean_rows(geometry, keys ? Side::kRows : Side::kKeys);
  const std::int64_t groups =
      max_of<std::int64_t>(kSectionBytes / max_of<std::int64_t>(bytes, 1), 1);
  const std::int64_t section =
      clamp_to<std::int64_t>(keys ? groups : groups * group, 1, max_of<std::int64_t>(pairs, 1));
  return {.blocks = static_cast<std::int32_t>(
              ceil_div<std::int64_t>(rows, wide_tile(geometry).plan(side).held_rows())),
          .pairs = static_cast<std::int32_t>(pairs),
          .section = static_cast<std::int32_t>(section)};
}

Status supports(const AttentionProblem& problem, const AttentionGeometry& geometry,
                const DeviceInfo& device) {
  FOVEAL_RETURN_IF_ERROR(check_features(problem, geometry));
  const std::int64_t shared_bytes = max_of(wide_tile(geometry).shared_bytes(Side::kKeys),
                                           wide_tile(geometry).shared_bytes(Side::kRows));
  if (shared_bytes > device.smem_per_block_bytes) {
    return Status::unsupported(concat(kName, " needs ", shared_bytes,
                                      " bytes of shared memory a block; there are ",
                                      device.smem_per_block_bytes));
  }
  FOVEAL_RETURN_IF_ERROR(check_strides(kName, "q", problem.q));
  FOVEAL_RETURN_IF_ERROR(check_strides(kName, "k", problem.k));
  FOVEAL_RETURN_IF_ERROR(check_strides(kName, "v", problem.v));
  FOVEAL_RETURN_IF_ERROR(check_strides(kName, "dout", problem.dout));
  return check_counts(geometry);
}

KernelConfig configure(const AttentionProblem& problem, const AttentionGeometry& geometry,
                       const DeviceInfo&) {
  const WideTile& tile = wide_tile(geometry);
  KernelConfig config;
  config.tile = {.m = tile.rows.held_rows(), .n = tile.keys.held_rows()};
  config.num_stages = tile.keys.stages();
  config.num_threads = WideTile::num_threads(Side::kKeys);
  config.workspace = {
      {"lse and delta", 8 * geometry.total_q * geometry.nheads_q},
      {"key tiles", list_bytes(geometry.packed_k, num_tiles(geometry, Side::kKeys))},
      {"row tiles", list_bytes(geometry.packed_q, num_tiles(geometry, Side::kRows))},
  };
  const std::int64_t more = portable_bytes(problem, geometry) - config.workspace_bytes();
  if (more > 0) config.workspace.push_back({"more for portable_bwd", more});
  config.notes.push_back(
      "operands that do not begin at a multiple of 16 bytes are left to portable_bwd");
  return config;
}

double predict(const AttentionProblem& problem, const AttentionGeometry& geometry,
               const KernelConfig&, const DeviceInfo& device) {
  AttentionWork work = attention_work(problem);
  work.flops *=
      2.0 * wide_tile(geometry).d / static_cast<double>(geometry.headdim + geometry.headdim_v);
  return roofline_us(work, problem.q.dtype, device, {.compute = kEfficiency});
}

}  // namespace foveal::cuda::hopper::wide_bwd
