#include "cuda/portable/bwd/config.hpp"

#include <limits>

#include "core/format.hpp"
#include "cuda/device_rules.hpp"

namespace foveal::cuda::bwd {
namespace {

using planner::KernelConfig;

/// Rows of q over all heads that a plan takes: sizes in bytes then stay far below 2^63.
constexpr std::int64_t kMaxRows = std::int64_t{1} << 40;
/// Blocks of one launch.
constexpr std::int64_t kMaxBlocks = std::numeric_limits<std::int32_t>::max();

/// Products of a tile against the five that attention_work() counts.
constexpr double kProductsCounted = 5.0;

/// Share of the device's rate that the products reach: 0.26 to 0.33 at headdim 64 to 256 on an
/// H200, 0.17 at 512 (bench/results/h200/portable_bwd.txt).
constexpr double kEfficiency = 0.3;
constexpr double kEfficiencyWide = 0.17;
constexpr double kEfficiencyFp32 = 0.15;

int element_bytes(const Choice& choice) { return static_cast<int>(dtype_bytes(choice.dtype)); }

HeaddimTiles tiles_for(const Choice& choice) {
  return tiles_of(choice.headdim, element_bytes(choice));
}

bool same_tile(const GradientTile& tile, const KernelConfig& config) {
  const bool keys = tile.side == Side::kKeys;
  return config.tile.m == (keys ? tile.streamed : tile.held()) &&
         config.tile.n == (keys ? tile.held() : tile.streamed);
}

/// What the plan says of itself: the tile of dk and dv, or of dq where there is no other.
GradientTile shown_tile(const Choice& choice) {
  const HeaddimTiles tiles = tiles_for(choice);
  if (choice.keys_pass) return choice.large ? tiles.keys_large : tiles.keys_small;
  return choice.large ? tiles.rows_large : tiles.rows_small;
}

double products_computed(const Choice& choice) {
  double products = 0;
  if (choice.keys_pass) products += choice.sums_dq ? 5 : 4;
  if (choice.rows_pass) products += 3;
  if (choice.dbias_pass) products += 2;
  return products;
}

double compute_share(const Choice& choice) {
  if (choice.dtype == DType::kFloat32) return kEfficiencyFp32;
  return choice.headdim > 256 ? kEfficiencyWide : kEfficiency;
}

/// Rows of stats and of dq's sums.
std::int64_t rows_of_heads(const AttentionGeometry& geometry) {
  return geometry.total_q * geometry.nheads_q;
}

void add_notes(const AttentionProblem& problem, const Choice& choice, KernelConfig& config) {
  if (choice.rows_pass && choice.keys_pass) {
    config.notes.push_back(
        "dq has a pass of its own, with no atomics: seven products in place of five");
  }
  if (choice.dtype != problem.q.dtype) {
    config.notes.push_back("dout is fp32: all products run in fp32, as three of TF32");
  }
  const auto note_operand = [&](const char* name, const TensorSpec& spec) {
    const auto last = static_cast<std::size_t>(spec.rank - 1);
    if (spec.dtype == choice.dtype && has_aligned_rows(spec, nullptr) &&
        spec.shape[last] * dtype_bytes(spec.dtype) % 16 == 0) {
      return;
    }
    config.notes.push_back(concat(name, ": its rows are not whole units of 16 bytes of ",
                                  dtype_name(choice.dtype), "; they are copied by element"));
  };
  note_operand("q", problem.q);
  note_operand("k", problem.k);
  note_operand("v", problem.v);
  note_operand("dout", problem.dout);
}

}  // namespace

DType product_dtype(const AttentionProblem& problem) {
  return problem.dout.dtype == DType::kFloat32 ? DType::kFloat32 : problem.q.dtype;
}

int tile_headdim(const AttentionGeometry& geometry, DType dtype) {
  const std::int64_t columns = max_of(geometry.headdim, geometry.headdim_v);
  const auto first_of = [columns](const auto& headdims) {
    for (const int headdim : headdims) {
      if (columns <= headdim) return headdim;
    }
    return headdims.back();
  };
  return dtype == DType::kFloat32 ? first_of(kHeaddimsFp32) : first_of(kHeaddims);
}

bool has_score_terms(const AttentionProblem& problem) {
  return problem.softcap > 0 || problem.bias.present() || problem.alibi_slopes.present() ||
         problem.dropout_p > 0;
}

Choice choose(const AttentionProblem& problem, const AttentionGeometry& geometry,
              const DeviceInfo& device) {
  Choice choice;
  choice.dtype = product_dtype(problem);
  choice.headdim = tile_headdim(geometry, choice.dtype);
  choice.keys_pass = problem.dk.present() || problem.dv.present();
  choice.dbias_pass = problem.dbias.present();
  const bool one_pass = choice.keys_pass && !problem.deterministic &&
                        choice.dtype != DType::kFloat32 && choice.headdim <= kMaxSummedHeaddim;
  choice.sums_dq = problem.dq.present() && one_pass;
  choice.rows_pass = problem.dq.present() && !one_pass;
  const HeaddimTiles tiles = tiles_for(choice);
  const int needed = max_of(shared_map(tiles.keys_large, element_bytes(choice)).bytes,
                            shared_map(tiles.rows_large, element_bytes(choice)).bytes);
  choice.large = !has_score_terms(problem) && device.smem_per_block_bytes >= needed;
  return choice;
}

Choice chosen(const AttentionProblem& problem, const AttentionGeometry& geometry,
              const KernelConfig& config) {
  Choice choice;
  choice.dtype = product_dtype(problem);
  choice.headdim = tile_headdim(geometry, choice.dtype);
  choice.keys_pass = problem.dk.present() || problem.dv.present();
  choice.dbias_pass = problem.dbias.present();
  choice.sums_dq = config.workspace[static_cast<std::size_t>(Part::kDqSums)].bytes > 0;
  choice.rows_pass = problem.dq.present() && !choice.sums_dq;
  choice.large = true;
  choice.large = !has_score_terms(problem) && same_tile(shown_tile(choice), config);
  return choice;
}

std::int64_t max_tiles(std::int64_t batch, std::int64_t rows, std::int64_t total, bool packed,
                       std::int64_t held) {
  return packed ? min_of(total, total / held + batch) : batch * ceil_div(rows, held);
}

Status supports(const AttentionProblem& problem, const AttentionGeometry& geometry,
                const DeviceInfo& device) {
  std::int64_t rows = 0;
  if (!multiply_checked(geometry.total_q, geometry.nheads_q, rows) || rows > kMaxRows) {
    return Status::unsupported(concat("q has ", geometry.total_q, " rows of ", geometry.nheads_q,
                                      " heads: the portable backward takes ", kMaxRows,
                                      " rows over all heads"));
  }
  const Choice choice = choose(problem, geometry, device);
  const HeaddimTiles tiles = tiles_for(choice);
  const int needed = max_of(shared_map(tiles.keys_small, element_bytes(choice)).bytes,
                            shared_map(tiles.rows_small, element_bytes(choice)).bytes);
  FOVEAL_RETURN_IF_ERROR(require_shared_memory(device, choice.headdim, needed));
  const std::int64_t key_blocks = max_tiles(geometry.batch, geometry.seqlen_k, geometry.total_k,
                                            geometry.packed_k, tiles.keys_small.held()) *
                                  geometry.nheads_k;
  const std::int64_t row_blocks = max_tiles(geometry.batch, geometry.seqlen_q, geometry.total_q,
                                            geometry.packed_q, tiles.rows_small.held()) *
                                  geometry.nheads_q;
  if (max_of(key_blocks, row_blocks) > kMaxBlocks) {
    return Status::unsupported(concat("it has ", max_of(key_blocks, row_blocks),
                                      " tiles over all heads: at most ", kMaxBlocks));
  }
  return Status::ok();
}

KernelConfig configure(const AttentionProblem& problem, const AttentionGeometry& geometry,
                       const DeviceInfo& device) {
  const Choice choice = choose(problem, geometry, device);
  const HeaddimTiles tiles = tiles_for(choice);
  const GradientTile shown = shown_tile(choice);
  const bool keys = shown.side == Side::kKeys;
  KernelConfig config;
  config.tile = {.m = keys ? shown.streamed : shown.held(),
                 .n = keys ? shown.held() : shown.streamed};
  config.num_stages = shown.stages;
  config.num_threads = shown.threads();
  const auto list_bytes = [&](bool packed, bool runs, std::int64_t rows, std::int64_t total,
                              const GradientTile& large, const GradientTile& small) {
    if (!packed || !runs) return std::int64_t{0};
    const int held = (choice.large ? large : small).held();
    return 8 * (1 + max_tiles(geometry.batch, rows, total, packed, held));
  };
  constexpr std::int64_t kFloat = sizeof(float);
  config.workspace = {
      {"lse and delta", 2 * kFloat * rows_of_heads(geometry)},
      {"key tiles", list_bytes(geometry.packed_k, choice.keys_pass, geometry.seqlen_k,
                               geometry.total_k, tiles.keys_large, tiles.keys_small)},
      {"row tiles", list_bytes(geometry.packed_q, choice.rows_pass, geometry.seqlen_q,
                               geometry.total_q, tiles.rows_large, tiles.rows_small)},
      {"dq in fp32",
       choice.sums_dq ? kFloat * rows_of_heads(geometry) * dq_columns(geometry.headdim) : 0},
  };
  add_notes(problem, choice, config);
  return config;
}

double predict(const AttentionProblem& problem, const AttentionGeometry& geometry,
               const KernelConfig& config, const DeviceInfo& device) {
  AttentionWork work = attention_work(problem);
  const Choice choice = chosen(problem, geometry, config);
  work.flops *= products_computed(choice) / kProductsCounted;
  // Columns that only fill a tile cost as much as others.
  work.flops *= 2.0 * choice.headdim / static_cast<double>(geometry.headdim + geometry.headdim_v);
  for (const WorkspacePart& part : config.workspace) {
    work.read_bytes += static_cast<double>(part.bytes);
    work.written_bytes += static_cast<double>(part.bytes);
  }
  return roofline_us(work, choice.dtype, device, {.compute = compute_share(choice)});
}

}  // namespace foveal::cuda::bwd
