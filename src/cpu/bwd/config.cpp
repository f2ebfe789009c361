#include "cpu/bwd/config.hpp"

#include "core/integer.hpp"
#include "cpu/bwd/work_tiles.hpp"
#include "cpu/device_rules.hpp"
#include "cpu/parallel.hpp"

namespace foveal::cpu {
namespace {

using planner::KernelConfig;
using planner::TileShape;

/// Share of the device's fp32 rate that the tile products reach, exp and loads included: 0.84 to
/// 0.99 with AVX2 and AVX-512 for headdim 64 to 512, on one thread of an EPYC.
constexpr double kEfficiency = 0.9;

/// Products of a tile against the five that attention_work() counts: q.k^T and dout.v^T are
/// computed for dk and dv, for dq, and once more for dbias.
constexpr double kProductsCounted = 5.0;
constexpr double kProductsComputed = 7.0;
constexpr double kProductsOfDbias = 2.0;

AttentionWork backward_work(const AttentionProblem& problem) {
  AttentionWork work = attention_work(problem);
  const double products = kProductsComputed + (problem.dbias.present() ? kProductsOfDbias : 0.0);
  work.flops *= products / kProductsCounted;
  return work;
}

/// Tiles of one KV head when every sequence rounds up; each tile has a row.
std::int64_t max_tiles(std::int64_t rows, std::int64_t tile, std::int64_t partial) {
  return min_of(rows, rows / tile + partial);
}

std::int64_t max_row_tiles(const AttentionGeometry& geometry, const TileShape& tile) {
  if (geometry.nheads_k == 0) return 0;
  const std::int64_t group = geometry.nheads_q / geometry.nheads_k;
  return max_tiles(geometry.total_q * group, tile.m, geometry.batch);
}

/// Left padding moves the blocks' edges off the first row: both ends may be partly filled.
std::int64_t max_key_tiles(const AttentionGeometry& geometry, const TileShape& tile) {
  return max_tiles(geometry.total_k, tile.n, 2 * geometry.batch);
}

std::int64_t scratch_bytes(const TileShape& tile, const AttentionGeometry& geometry) {
  Slab count;
  BackwardScratch(count, tile, geometry);
  return count.used_bytes();
}

void add_notes(const AttentionProblem& problem, KernelConfig& config) {
  constexpr const char* kGathered = "its rows are gathered while tiles are packed";
  constexpr const char* kScattered = "its rows are scattered when they are stored";
  note_strided_rows("q", problem.q, kGathered, config.notes);
  note_strided_rows("k", problem.k, kGathered, config.notes);
  note_strided_rows("v", problem.v, kGathered, config.notes);
  note_strided_rows("out", problem.out, kGathered, config.notes);
  note_strided_rows("dout", problem.dout, kGathered, config.notes);
  note_strided_rows("dq", problem.dq, kScattered, config.notes);
  note_strided_rows("dk", problem.dk, kScattered, config.notes);
  note_strided_rows("dv", problem.dv, kScattered, config.notes);
}

}  // namespace

BackwardScratch::BackwardScratch(Slab& slab, const planner::TileShape& tile,
                                 const AttentionGeometry& geometry)
    : ld_d(tile_ld(geometry.headdim)), ld_dv(tile_ld(geometry.headdim_v)), ld_n(tile_ld(tile.n)) {
  const std::int64_t d = geometry.headdim;
  const std::int64_t dv_columns = geometry.headdim_v;
  q = slab.take<float>(tile_floats(tile.m, d));
  dout = slab.take<float>(tile_floats(tile.m, dv_columns));
  lse = slab.take<float>(tile.m);
  delta = slab.take<float>(tile.m);
  k = slab.take<float>(tile_floats(tile.n, d));
  v = slab.take<float>(tile_floats(tile.n, dv_columns));
  k_packed = slab.take<float>(packed_floats(tile.n, d));
  v_packed = slab.take<float>(packed_floats(tile.n, dv_columns));
  p = slab.take<float>(tile_floats(tile.m, tile.n));
  ds = slab.take<float>(tile_floats(tile.m, tile.n));
  slope = slab.take<float>(tile_floats(tile.m, tile.n));
  factors = slab.take<float>(tile.n);
  row = slab.take<float>(ld_dv);
  dk = slab.take<float>(tile_floats(max_of(tile.m, tile.n), d));
  dv = slab.take<float>(tile_floats(tile.n, dv_columns));
  dq = dk;
  dbias = slab.take<double>(tile_floats(tile.m, tile.n));
}

KernelConfig configure_backward(const AttentionProblem& problem, const AttentionGeometry& geometry,
                                const DeviceInfo& device) {
  KernelConfig config;
  config.tile = kBackwardTile;
  config.isa = tile_math(problem.q.dtype, device.isa).name;
  config.pack_gqa = geometry.qhead_per_khead > 1;
  const std::int64_t row_tiles = max_row_tiles(geometry, config.tile);
  const std::int64_t key_tiles = max_key_tiles(geometry, config.tile);
  const std::int64_t items =
      max_of<std::int64_t>(max_of(row_tiles, key_tiles) * geometry.nheads_k, 1);
  config.num_threads =
      clamp_to<std::int64_t>(worth_workers(backward_work(problem), device), 1, items);

  const auto bytes = [](std::int64_t count, std::size_t size) {
    return count * static_cast<std::int64_t>(size);
  };
  config.workspace = {
      {"delta", bytes(geometry.total_q * geometry.nheads_q, sizeof(float))},
      {"row tiles", bytes(row_tiles, sizeof(WorkTile))},
      {"key tiles", bytes(key_tiles, sizeof(WorkTile))},
      {"work queues", bytes(kNumQueues, sizeof(WorkQueue))},
      {"tiles of the workers", config.num_threads * scratch_bytes(config.tile, geometry)},
  };
  add_notes(problem, config);
  return config;
}

double predict_backward(const AttentionProblem& problem, const AttentionGeometry& /*geometry*/,
                        const KernelConfig& config, const DeviceInfo& device) {
  return roofline_us(backward_work(problem), config.num_threads, device, kEfficiency);
}

}  // namespace foveal::cpu
