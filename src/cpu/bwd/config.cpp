#include "cpu/bwd/config.hpp"

#include "core/integer.hpp"
#include "cpu/bwd/work_tiles.hpp"
#include "cpu/device_rules.hpp"
#include "cpu/parallel.hpp"

namespace foveal::cpu {
namespace {

using planner::KernelConfig;
using planner::TileShape;

/// Products of a tile that attention_work() counts, and those that dbias needs besides.
constexpr double kProductsCounted = 5.0;
constexpr double kProductsOfDbias = 2.0;

AttentionWork backward_work(const AttentionProblem& problem) {
  AttentionWork work = attention_work(problem);
  const double products = kProductsCounted + (problem.dbias.present() ? kProductsOfDbias : 0.0);
  work.flops *= products / kProductsCounted;
  return work;
}

/// What all operands of products can be: dout may be fp32 beside q, k and v of 16 bits, and
/// rounding it would cost digits of dp - delta.
DType operand_dtype(const AttentionProblem& problem) {
  return problem.dout.dtype == problem.q.dtype ? problem.q.dtype : DType::kFloat32;
}

/// Row tiles, and blocks of keys, of all KV heads.
std::int64_t max_items(const AttentionGeometry& geometry, const TileShape& tile) {
  const std::int64_t rows = geometry.total_q * geometry.qhead_per_khead;
  const std::int64_t row_tiles = min_of(rows, rows / tile.m + geometry.batch);
  // Left padding moves the blocks' edges off the first row: both ends may be partly filled.
  const std::int64_t key_blocks =
      min_of(geometry.total_k, geometry.total_k / tile.n + 2 * geometry.batch);
  return max_of<std::int64_t>(max_of(row_tiles, key_blocks) * geometry.nheads_k, 1);
}

std::int64_t scratch_bytes(const TileMath& math, const TileShape& tile,
                           const AttentionGeometry& geometry) {
  Slab count;
  BackwardScratch(count, math, tile, geometry);
  return count.used_bytes();
}

/// Storage for `count` terms' rows as an operand, or nothing where the tile itself is one.
void* take_pairs(Slab& slab, const TileMath& math, std::int64_t terms, std::int64_t columns,
                 void* tile) {
  if (math.slot_terms == 1) return tile;
  return slab.take<float>(tile_floats(math.slots(terms), columns));
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

BackwardScratch::BackwardScratch(Slab& slab, const TileMath& math, const TileShape& tile,
                                 const AttentionGeometry& geometry)
    : ld_d(tile_ld(geometry.headdim)),
      ld_dv(tile_ld(geometry.headdim_v)),
      ld_n(tile_ld(tile.n)),
      ld_q(tile_ld(math.slots(geometry.headdim))),
      ld_out(tile_ld(math.slots(geometry.headdim_v))),
      ld_w(tile_ld(math.slots(tile.n))) {
  const std::int64_t d = geometry.headdim;
  const std::int64_t dv_columns = geometry.headdim_v;
  q = slab.take<float>(tile_floats(tile.m, math.slots(d)));
  q_pairs = take_pairs(slab, math, tile.m, d, q);
  dout = slab.take<float>(tile_floats(tile.m, math.slots(dv_columns)));
  dout_pairs = take_pairs(slab, math, tile.m, dv_columns, dout);
  lse = slab.take<float>(tile.m);
  delta = slab.take<float>(tile.m);
  k_pairs = slab.take<float>(tile_floats(math.slots(tile.n), d));
  k_packed = slab.take<float>(packed_floats(tile.n, math.slots(d)));
  v_packed = slab.take<float>(packed_floats(tile.n, math.slots(dv_columns)));
  p = slab.take<float>(tile_floats(tile.m, tile.n));
  ds = slab.take<float>(tile_floats(tile.m, tile.n));
  p_pairs = take_pairs(slab, math, tile.m, tile.n, p);
  ds_pairs = take_pairs(slab, math, tile.m, tile.n, ds);
  ds_operand =
      math.slot_terms == 1 ? ds : slab.take<float>(tile_floats(tile.m, math.slots(tile.n)));
  slope = slab.take<float>(tile_floats(tile.m, tile.n));
  factors = slab.take<float>(tile.n);
  row = slab.take<float>(ld_dv);
  row_of_dout = slab.take<float>(ld_dv);
  dk = slab.take<float>(tile_floats(tile.n, d));
  dv = slab.take<float>(tile_floats(tile.n, dv_columns));
  dbias = slab.take<double>(tile_floats(tile.m, tile.n));
}

DqSums::Extent dq_extent(const AttentionProblem& problem, const AttentionGeometry& geometry,
                         const KernelConfig& config) {
  if (!problem.dq.present()) return {};
  const std::int64_t units = geometry.batch * geometry.nheads_k;
  const std::int64_t tiles = ceil_div(geometry.seqlen_q * geometry.qhead_per_khead, config.tile.m);
  return {.num_units = units,
          .num_slots = min_of(config.num_threads, units),
          .num_tiles = tiles,
          .rows = tiles * config.tile.m,
          .ld = round_up(geometry.headdim, kLane)};
}

KernelConfig configure_backward(const AttentionProblem& problem, const AttentionGeometry& geometry,
                                const DeviceInfo& device) {
  const TileMath& math = tile_math(operand_dtype(problem), device.isa);
  KernelConfig config;
  config.tile = kBackwardTile;
  config.isa = math.name;
  config.pack_gqa = geometry.qhead_per_khead > 1;
  config.num_threads = clamp_to<std::int64_t>(worth_workers(backward_work(problem), device), 1,
                                              max_items(geometry, config.tile));
  Slab sums;
  const DqSums dq_sums(sums, dq_extent(problem, geometry, config));
  const auto bytes = [](std::int64_t count, std::size_t size) {
    return count * static_cast<std::int64_t>(size);
  };
  config.workspace = {
      {"delta", bytes(geometry.total_q * geometry.nheads_q, sizeof(float))},
      {"work index", bytes(geometry.batch, sizeof(BackwardSequence))},
      {"work queues", bytes(kNumQueues, sizeof(WorkQueue))},
      {"sums of dq of the heads under way", sums.used_bytes()},
      {"tiles of the workers", config.num_threads * scratch_bytes(math, config.tile, geometry)},
  };
  add_notes(problem, config);
  return config;
}

double predict_backward(const AttentionProblem& problem, const AttentionGeometry& /*geometry*/,
                        const KernelConfig& config, const DeviceInfo& device) {
  return roofline_us(backward_work(problem), config.num_threads, device,
                     tile_math(operand_dtype(problem), config.isa).slot_terms);
}

}  // namespace foveal::cpu
