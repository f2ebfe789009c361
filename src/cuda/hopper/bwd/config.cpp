#include "cuda/hopper/bwd/config.hpp"

#include <array>

#include "core/format.hpp"
#include "core/integer.hpp"
#include "cuda/device_rules.hpp"
#include "cuda/hopper/backward_rules.hpp"
#include "cuda/portable/bwd/config.hpp"

namespace foveal::cuda::hopper::bwd {
namespace {

using planner::KernelConfig;

constexpr std::array kTiles = {BackwardHdim64::tile, BackwardHdim96::tile, BackwardHdim128::tile,
                               BackwardHdim192::tile, BackwardHdim256::tile};
static_assert(kTiles.back().d == kMaxHeaddim);

/// Blocks of a launch over all heads, and tiles of dq's sums.
constexpr std::int64_t kMaxTiles = std::int64_t{1} << 30;
/// Bytes of L2 cache that q, dout and dq's sums of the pairs under way may fill.
constexpr std::int64_t kSectionBytes = 40 << 20;
/// Tiles of a section, at least: with fewer, blocks that are done with it begin the long tiles of
/// the next while its own are under way, and at the end some have nothing to do. Wide heads fill
/// the cache before that (docs/kernels/hopper_bwd.md, "The order of tiles").
constexpr std::int64_t kSectionTiles = 256;
constexpr std::int64_t kWideSectionTiles = 64;
/// Pairs of a rising section, at least, where tiles add to dq in turn, and then kSectionTiles of
/// wide heads too: each waits for those of its pair, and so less where more pairs run side by side.
constexpr std::int64_t kOrderedSection = 4;
/// Blocks of the tiles of a section where sections fall and rise in turn: about as many as run at a
/// time, so that of a rising section each begins when one of the section before has ended. Wide
/// heads: two blocks a tile.
constexpr std::int64_t kAlternatingBlocks = 128;

/// Pairs of a section: at least `least` and, if that allows it, at most `most`; the same in all if
/// a number of sections does that divides the pairs, since a last section of few would end with
/// long tiles on few multiprocessors.
std::int32_t even_section(std::int64_t pairs, std::int64_t least, std::int64_t most) {
  const std::int64_t most_sections = max_of<std::int64_t>(pairs / least, 1);
  const std::int64_t fewest = clamp_to<std::int64_t>(ceil_div(pairs, most), 1, most_sections);
  for (std::int64_t n = fewest; n <= min_of(2 * fewest, most_sections); ++n) {
    if (pairs % n == 0) return static_cast<std::int32_t>(max_of<std::int64_t>(pairs / n, 1));
  }
  return static_cast<std::int32_t>(ceil_div(pairs, fewest));
}

/// Pairs of a section of those that fall and rise in turn, 0 where they had better not: `running`
/// pairs have as many tiles as run at a time, or a multiple that fits the cache. There are two
/// sections at least, all of one size: tiles of a short one would begin together and wait.
std::int32_t alternating_section(std::int64_t pairs, std::int64_t running, std::int64_t fitting) {
  std::int64_t section = 0;
  for (std::int64_t some = running; some <= min_of(fitting, pairs / 2); some += running) {
    if (pairs % some == 0) section = some;
  }
  return static_cast<std::int32_t>(section);
}

/// Share of the device's rate that the products reach, causal and 16K (docs/kernels/hopper_bwd.md).
constexpr double kEfficiency = 0.62;

}  // namespace

const BackwardTile& backward_tile(const AttentionGeometry& geometry) {
  const std::int64_t width = max_of(geometry.headdim, geometry.headdim_v);
  for (const BackwardTile& tile : kTiles) {
    if (tile.d >= width) return tile;
  }
  return kTiles.back();
}

std::int64_t row_tiles(const AttentionGeometry& geometry) {
  const std::int64_t m = backward_tile(geometry).m;
  if (geometry.packed_q) return geometry.total_q / m + geometry.batch;
  return geometry.batch * ceil_div(geometry.seqlen_q, m);
}

std::int64_t sums_counters(const AttentionGeometry& geometry, bool deterministic) {
  const BackwardTile& tile = backward_tile(geometry);
  if (tile.is_wide() && !deterministic) return 0;
  return geometry.nheads_q * row_tiles(geometry) * tile.blocks;
}

std::int64_t key_tiles(const AttentionGeometry& geometry) {
  return cuda::bwd::max_tiles(geometry.batch, geometry.seqlen_k, geometry.total_k,
                              geometry.packed_k, backward_tile(geometry).n);
}

KeyTileOrder key_tile_order(const AttentionGeometry& geometry, bool deterministic) {
  const BackwardTile& tile = backward_tile(geometry);
  const std::int64_t batch = max_of<std::int64_t>(geometry.batch, 1);
  const std::int64_t pairs = (geometry.packed_k ? 1 : geometry.batch) * geometry.nheads_k;
  KeyTileOrder order{.pairs = static_cast<std::int32_t>(pairs), .by_rows = deterministic};
  order.blocks = static_cast<std::int32_t>(
      geometry.packed_k ? key_tiles(geometry) : ceil_div<std::int64_t>(geometry.seqlen_k, tile.n));
  // Of a sequence of mean length.
  const std::int64_t rows = geometry.packed_q ? geometry.total_q / batch : geometry.seqlen_q;
  const std::int64_t keys = geometry.packed_k ? geometry.total_k / batch : geometry.seqlen_k;
  const std::int64_t tiles = max_of<std::int64_t>(ceil_div<std::int64_t>(keys, tile.n), 1);
  // q and dout in 16 bits, dq's sums in 32.
  const std::int64_t bytes = rows * geometry.qhead_per_khead * tile.d * 8;
  const std::int64_t fitting =
      max_of<std::int64_t>(kSectionBytes / max_of<std::int64_t>(bytes, 1), 1);
  const std::int64_t filling = ceil_div(kSectionTiles, tiles);

  const bool later_keys_see_less =
      geometry.window.right + 1 < geometry.seqlen_q && geometry.seqlen_q >= geometry.seqlen_k;
  // Falling, no tile of a causal mask waits for its turn, since those before it are rows ahead. But
  // the longest begin last, so that the last pairs come rising; and two sections are under way at a
  // time, for which the cache is too small where groups of heads make tiles long, or heads are
  // wide.
  const bool can_fall = pairs > 1 && geometry.qhead_per_khead == 1 && !tile.is_wide();
  // Without turns it is the cache that gains, and only with many pairs: of few, most would rise.
  if (can_fall && (deterministic || (later_keys_see_less && pairs >= 3 * filling))) {
    const std::int64_t rising = min_of(filling, pairs / 2);
    const std::int64_t least = ceil_div<std::int64_t>(filling, 2);
    order.section = static_cast<std::int32_t>(rising);
    order.falling_pairs = static_cast<std::int32_t>(pairs - rising);
    order.falling_section =
        even_section(pairs - rising, least, max_of(ceil_div<std::int64_t>(fitting, 2), least));
    order.by_rows = true;
    return order;
  }
  const bool is_one_size = !geometry.packed_k || geometry.batch == 1;
  const bool hides_early_keys = geometry.window.left + 1 < geometry.seqlen_k;
  if (deterministic && later_keys_see_less && is_one_size && !hides_early_keys) {
    // Groups and wide heads: where sections fall and rise in turn, a rising tile too is steps
    // behind whoever it waits for. Head after head, two sections fit the cache up to some length.
    // Tiles of a window are of one length: a falling section's end together, and those of the
    // rising one begin together.
    const std::int64_t running = ceil_div(kAlternatingBlocks / tile.blocks, tiles);
    const std::int64_t fitting_heads =
        kSectionBytes * geometry.qhead_per_khead / max_of<std::int64_t>(2 * bytes, 1);
    if (const std::int32_t section = alternating_section(pairs, running, fitting_heads)) {
      order.section = section;
      order.alternates = true;
      order.by_rows = false;
      return order;
    }
  }
  std::int64_t least = tile.is_wide() ? ceil_div(kWideSectionTiles, tiles) : filling;
  if (deterministic) least = max_of(filling, kOrderedSection);
  order.section = even_section(pairs, least, max_of(fitting, least));
  return order;
}

Status supports(const AttentionProblem& problem, const AttentionGeometry& geometry,
                const DeviceInfo& device) {
  const BackwardTile& tile = backward_tile(geometry);
  FOVEAL_RETURN_IF_ERROR(check_backward({.kernel = kName,
                                         .max_headdim = kMaxHeaddim,
                                         .shared_bytes = tile.shared_bytes(),
                                         .tiles = max_of(key_tiles(geometry), row_tiles(geometry)),
                                         .max_tiles = kMaxTiles / tile.blocks},
                                        problem, geometry, device));
  if (!problem.dq.present()) {
    return Status::unsupported(concat("dq is not wanted: ", kName, " computes it in any case"));
  }
  return Status::ok();
}

KernelConfig configure(const AttentionProblem& problem, const AttentionGeometry& geometry,
                       const DeviceInfo& device) {
  const BackwardTile& tile = backward_tile(geometry);
  KernelConfig config;
  config.tile = {.m = tile.m, .n = tile.n};
  config.num_stages = tile.dout_stages;
  config.num_threads = tile.num_threads();
  const std::int64_t blocks = key_tiles(geometry) * geometry.nheads_k;
  if (!tile.is_wide()) config.num_blocks = min_of<std::int64_t>(device.num_sms, blocks);
  const std::int64_t rows = row_tiles(geometry);
  const std::int64_t sums_tiles = geometry.nheads_q * rows;
  config.workspace = {
      {"lse and delta", 8 * geometry.total_q * geometry.nheads_q},
      {"key tiles", list_bytes(geometry.packed_k, key_tiles(geometry))},
      {"row tiles", list_bytes(geometry.packed_q, rows)},
      {"counters", 8 * round_up<std::int64_t>(
                           kFirstOfSums + sums_counters(geometry, problem.deterministic), 2)},
      {"dq in fp32", 4 * sums_tiles * tile.dq_floats()},
  };
  plan_portable_backward(problem, geometry, device, config);
  return config;
}

double predict(const AttentionProblem& problem, const AttentionGeometry& geometry,
               const KernelConfig&, const DeviceInfo& device) {
  AttentionWork work = attention_work(problem);
  const BackwardTile& tile = backward_tile(geometry);
  work.flops *= 2.0 * tile.d / static_cast<double>(geometry.headdim + geometry.headdim_v);
  // lse, delta and dq's sums, of rows alone: what fills tiles is neither read nor written.
  const double rows =
      static_cast<double>(geometry.total_q) * static_cast<double>(geometry.nheads_q);
  work.read_bytes += rows * (8 + 4 * tile.d);
  work.written_bytes += rows * (8 + 4 * tile.d);
  return roofline_us(work, problem.q.dtype, device, {.compute = kEfficiency});
}

}  // namespace foveal::cuda::hopper::bwd
