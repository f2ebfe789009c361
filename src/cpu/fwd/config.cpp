#include "cpu/fwd/config.hpp"

#include <bit>

#include "cpu/device_rules.hpp"
#include "cpu/fwd/work_index.hpp"

namespace foveal::cpu {
namespace {

using planner::KernelConfig;
using planner::TileShape;

/// Keys below which a split costs more than it brings.
constexpr std::int64_t kMinSplitKeys = 256;

/// Items a worker should find, so that the last ones to finish leave little idle.
constexpr std::int64_t kItemsPerWorker = 4;

/// Loading an element of k or v into a tile takes as long as so many floating-point operations of
/// the products; a tile of few rows has little to set against it.
constexpr double kLoadFlops = 10;

/// Keys of the shortest turn: whole blocks of accumulate_memory, and long enough that what lies
/// between its products costs little.
constexpr std::int64_t kLeastTurnKeys = 32;

/// Tiles of all sequences if each had all rows that it can have. Packed rows are shared out, and
/// every sequence may leave one tile partly filled.
std::int64_t max_m_blocks(const AttentionGeometry& geometry, const TileShape& tile) {
  const std::int64_t group = geometry.qhead_per_khead;
  if (!geometry.packed_q) {
    return geometry.batch * ceil_div(geometry.seqlen_q * group, tile.m);
  }
  return geometry.total_q * group / tile.m + min_of(geometry.batch, geometry.total_q);
}

/// The least number of items that the plan can count on.
std::int64_t min_items(const AttentionGeometry& geometry, const TileShape& tile,
                       std::int64_t heads_per_item) {
  const std::int64_t blocks = geometry.packed_q
                                  ? ceil_div(geometry.total_q * geometry.qhead_per_khead, tile.m)
                                  : max_m_blocks(geometry, tile);
  return max_of<std::int64_t>(blocks * ceil_div(geometry.nheads_k, heads_per_item), 1);
}

/// The most rows that a sequence can fill, and that leave every worker enough items.
TileShape choose_tile(const AttentionGeometry& geometry, std::int64_t workers) {
  const std::int64_t rows = geometry.seqlen_q * geometry.qhead_per_khead;
  TileShape tile{.m = 0, .n = kForwardKeys};
  for (const std::int64_t m : kForwardRows) {
    tile.m = m;
    if (rows > m / 2 && min_items(geometry, tile, 1) >= kItemsPerWorker * workers) break;
  }
  return tile;
}

/// Whether the rows of different KV heads lie within one row's stride.
bool heads_lie_together(const TensorSpec& spec) {
  const auto heads_axis = static_cast<std::size_t>(spec.rank - 2);
  const std::int64_t head_stride = spec.strides[heads_axis];
  return head_stride > 0 && head_stride * spec.shape[heads_axis] <= spec.strides[heads_axis - 1];
}

/// KV heads that an item takes in turn, block of keys by block: where a few rows read k and v in
/// memory and their heads lie side by side, so that what is read is one stretch of memory.
std::int64_t choose_heads_per_item(const AttentionProblem& problem,
                                   const AttentionGeometry& geometry, const TileShape& tile) {
  const std::int64_t rows = geometry.seqlen_q * geometry.qhead_per_khead;
  const bool together = rows >= 1 && rows <= kMaxStreamedRows && geometry.nheads_k > 1 &&
                        heads_lie_together(problem.k) && heads_lie_together(problem.v);
  return together ? min_of(geometry.nheads_k, tile.m / rows) : 1;
}

std::int64_t choose_num_splits(const AttentionGeometry& geometry, const KernelConfig& config,
                               std::int64_t workers) {
  const std::int64_t wanted = kItemsPerWorker * workers;
  const std::int64_t items = min_items(geometry, config.tile, config.heads_per_item);
  if (workers == 1 || items >= wanted) return 1;
  return clamp_to<std::int64_t>(geometry.seqlen_k / kMinSplitKeys, 1, ceil_div(wanted, items));
}

/// More items than this no launch has: a worker beyond them would find nothing.
std::int64_t max_items(const KernelConfig& config, const AttentionGeometry& geometry) {
  const std::int64_t tiles = max_m_blocks(geometry, config.tile) * geometry.nheads_k;
  return max_of<std::int64_t>(tiles + partial_slots(config, geometry), 1);
}

void add_notes(const AttentionProblem& problem, KernelConfig& config) {
  constexpr const char* kGathered = "its rows are gathered while tiles are packed";
  note_strided_rows("q", problem.q, kGathered, config.notes);
  note_strided_rows("k", problem.k, kGathered, config.notes);
  note_strided_rows("v", problem.v, kGathered, config.notes);
  note_strided_rows("out", problem.out, "its rows are scattered when they are stored",
                    config.notes);
}

}  // namespace

std::int64_t turn_keys(const RowLoader& k, const RowLoader& v) {
  static_assert(std::has_single_bit(static_cast<std::uint64_t>(kForwardKeys)));
  const std::int64_t fit = kTurnBytes / (max_of(k.count, v.count) * dtype_bytes(k.dtype));
  const auto keys = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(fit)));
  return clamp_to(keys, kLeastTurnKeys, kForwardKeys);
}

ForwardScratch::ForwardScratch(Slab& slab, const TileMath& math, const TileShape& tile,
                               const AttentionGeometry& geometry)
    : ld_d(tile_ld(math.slots(geometry.headdim))),
      ld_dv(tile_ld(geometry.headdim_v)),
      ld_n(tile_ld(tile.n)),
      ld_w(tile_ld(math.slots(tile.n))) {
  const std::int64_t slots_d = math.slots(geometry.headdim);
  const std::int64_t slots_dv = math.slots(geometry.headdim_v);
  const bool pairs = math.slot_terms > 1;
  const std::int64_t pair_slots = pairs ? tile_floats(tile.n / 2, geometry.headdim_v) : 0;
  q = slab.take<float>(tile_floats(tile.m, slots_d));
  rows = slab.take<float>(tile_floats(tile.n, max_of(slots_d, slots_dv)));
  right = slab.take<float>(max_of(packed_floats(tile.n, slots_d), pair_slots));
  scores = slab.take<float>(tile_floats(tile.m, tile.n));
  weights = pairs ? slab.take<float>(tile_floats(tile.m, math.slots(tile.n))) : scores;
  acc = slab.take<float>(tile_floats(tile.m, geometry.headdim_v));
  factors = slab.take<float>(tile.n);
  state = slab.take<algorithm::SoftmaxState>(tile.m);
  kv_rows = slab.take<const std::byte*>(4 * kForwardKeys);
}

ForwardScratch ForwardScratch::rows_from(std::int64_t first) const {
  ForwardScratch part = *this;
  part.q = slot_at(q, first * ld_d);
  part.scores += first * ld_n;
  part.weights = slot_at(weights, first * ld_w);
  part.acc += first * ld_dv;
  part.state += first;
  return part;
}

ForwardPartials::ForwardPartials(Slab& slab, std::int64_t slots, const TileShape& tile,
                                 const AttentionGeometry& geometry)
    : rows(geometry.packed_q ? tile.m
                             : min_of(tile.m, geometry.seqlen_q * geometry.qhead_per_khead)),
      ld(round_up(geometry.headdim_v, kLane)),
      num_slots(slots) {
  out = slab.take<float>(slots * rows * ld);
  lse = slab.take<float>(slots * rows);
  arrived = slab.take<std::int32_t>(slots);
}

std::int64_t partial_slots(const KernelConfig& config, const AttentionGeometry& geometry) {
  if (config.split_keys == 0) {
    if (config.num_splits == 1) return 0;
    return max_m_blocks(geometry, config.tile) * geometry.nheads_k * config.num_splits;
  }
  // Only a sequence whose rows fill at most one tile is split, and only when it has more keys than
  // a split: each such sequence leaves at most one split partly filled.
  const std::int64_t whole_splits = geometry.total_k / config.split_keys;
  return (whole_splits + min_of(whole_splits, geometry.batch)) * geometry.nheads_k;
}

void size_workspace(KernelConfig& config, const TileMath& math, const AttentionGeometry& geometry) {
  Slab tiles;
  const ForwardScratch scratch(tiles, math, config.tile, geometry);
  Slab slots;
  const ForwardPartials partials(slots, partial_slots(config, geometry), config.tile, geometry);
  config.workspace = {
      {"work index", work_index_bytes(geometry.batch)},
      {"tiles of the workers", config.num_threads * tiles.used_bytes()},
      {"partial results of the splits", slots.used_bytes()},
  };
}

KernelConfig configure_forward(const AttentionProblem& problem, const AttentionGeometry& geometry,
                               const DeviceInfo& device) {
  KernelConfig config;
  const TileMath& math = tile_math(problem.q.dtype, device.isa);
  const std::int64_t workers = worth_workers(attention_work(problem), device);
  config.tile = choose_tile(geometry, workers);
  config.heads_per_item = choose_heads_per_item(problem, geometry, config.tile);
  config.isa = math.name;
  config.pack_gqa = geometry.qhead_per_khead > 1;
  if (problem.batch_invariant) {
    config.split_keys = kInvariantSplitKeys;
  } else {
    config.num_splits = choose_num_splits(geometry, config, workers);
  }
  config.num_threads = min_of(workers, max_items(config, geometry));
  size_workspace(config, math, geometry);
  add_notes(problem, config);
  return config;
}

double predict_forward(const AttentionProblem& problem, const AttentionGeometry& geometry,
                       const KernelConfig& config, const DeviceInfo& device) {
  AttentionWork work = attention_work(problem);
  const std::int64_t rows = geometry.total_q * geometry.qhead_per_khead;
  const std::int64_t tiles = max_of<std::int64_t>(max_m_blocks(geometry, config.tile), 1);
  const double rows_per_tile = max_of(static_cast<double>(rows) / static_cast<double>(tiles), 1.0);
  // Two operations for each row of the tile and element of a key or value row.
  work.flops *= 1.0 + kLoadFlops / (2.0 * rows_per_tile);
  return roofline_us(work, config.num_threads, device,
                     tile_math(problem.q.dtype, config.isa).slot_terms);
}

}  // namespace foveal::cpu
