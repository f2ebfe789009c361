// The table entry of cpu_blocked_bwd.
#include <new>
#include <span>

#include "core/format.hpp"
#include "cpu/bwd/config.hpp"
#include "cpu/bwd/passes.hpp"
#include "cpu/device_rules.hpp"
#include "cpu/parallel.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cpu {
namespace {

using planner::LaunchContext;

constexpr const char* kName = "cpu_blocked_bwd";

constexpr std::size_t part(BackwardPart index) { return static_cast<std::size_t>(index); }

Status usable(const DeviceInfo& device) { return require_cpu(kName, device); }

Status supports(const AttentionProblem& /*problem*/, const AttentionGeometry& geometry,
                const DeviceInfo& /*device*/) {
  std::int64_t rows = 0;
  if (multiply_checked(geometry.total_q, geometry.nheads_q, rows) && rows <= kMaxBackwardRows) {
    return Status::ok();
  }
  return Status::unsupported(concat("q has ", geometry.total_q, " rows of ", geometry.nheads_q,
                                    " heads: ", kName, " takes ", kMaxBackwardRows,
                                    " rows over all heads"));
}

/// Tiles of all KV heads, as items: the tile is item / heads, the head item % heads.
struct TileItems {
  std::span<const WorkTile> tiles;
  std::int64_t heads = 0;
  WorkQueue* queue = nullptr;

  template <class Pass>
  void drain(const Pass& pass) const {
    queue->drain([&](std::int64_t item) {
      pass(tiles[static_cast<std::size_t>(item / heads)], item % heads);
    });
  }
};

/// The work of a launch, in the workspace.
struct BackwardWork {
  TileItems delta, dk_dv, dq;
  WorkQueue* dbias = nullptr;
  WorkQueue* dsinks = nullptr;
};

BackwardWork list_work(const LaunchContext& context, const BackwardArgs& args) {
  const AttentionProblem& problem = args.problem;
  const auto row_tiles =
      list_row_tiles(args, context.workspace_part<WorkTile>(part(BackwardPart::kRowTiles)));
  const auto key_tiles =
      list_key_tiles(args, context.workspace_part<WorkTile>(part(BackwardPart::kKeyTiles)));
  auto* next_queue = context.workspace_part<WorkQueue>(part(BackwardPart::kQueues));
  const auto queue = [&](std::int64_t num_items) {
    return ::new (next_queue++) WorkQueue(num_items);
  };
  const std::int64_t heads = args.geometry.nheads_k;
  const auto items = [&](std::span<const WorkTile> tiles, bool wanted) {
    const std::int64_t count = wanted ? static_cast<std::int64_t>(tiles.size()) * heads : 0;
    return TileItems{tiles, heads, queue(count)};
  };
  return {.delta = items(row_tiles, true),
          .dk_dv = items(key_tiles, args.dk.wanted || args.dv.wanted),
          .dq = items(row_tiles, args.dq.wanted),
          .dbias = queue(num_dbias_tiles(args)),
          .dsinks = queue(problem.dsinks.present() ? args.geometry.nheads_q : 0)};
}

Status launch(const LaunchContext& context) {
  const BackwardArgs args(context);
  const BackwardWork work = list_work(context, args);
  const std::int64_t num_workers = context.config.num_threads;
  auto* slabs = context.workspace_part<std::byte>(part(BackwardPart::kScratch));
  const std::int64_t slab_bytes =
      context.config.workspace[part(BackwardPart::kScratch)].bytes / num_workers;
  const auto scratch_of = [&](std::int64_t worker) {
    Slab slab(slabs + worker * slab_bytes, slab_bytes);
    return BackwardScratch(slab, args.tile, args.geometry);
  };

  auto first_pass = [&](std::int64_t worker) {
    const BackwardScratch scratch = scratch_of(worker);
    work.delta.drain([&](const WorkTile& tile, std::int64_t head_k) {
      compute_delta(args, scratch, tile, head_k);
    });
  };
  auto other_passes = [&](std::int64_t worker) {
    const BackwardScratch scratch = scratch_of(worker);
    work.dk_dv.drain([&](const WorkTile& tile, std::int64_t head_k) {
      compute_dk_dv(args, scratch, tile, head_k);
    });
    work.dq.drain([&](const WorkTile& tile, std::int64_t head_k) {
      compute_dq(args, scratch, tile, head_k);
    });
    work.dbias->drain([&](std::int64_t item) { compute_dbias(args, scratch, item); });
    work.dsinks->drain([&](std::int64_t head) { compute_dsink(args, head); });
  };
  const auto* executor = static_cast<const CpuExecutor*>(context.stream);
  run_workers(executor, num_workers, first_pass);
  run_workers(executor, num_workers, other_passes);
  return Status::ok();
}

}  // namespace

const planner::KernelEntry kBlockedBackward = {
    .name = kName,
    .summary = "blocked gradients on CPU threads: every feature, any strides, headdim 1 to 512",
    .pass = Pass::kBackward,
    .device = DeviceType::kCpu,
    .usable = usable,
    .supports = supports,
    .configure = configure_backward,
    .predict = predict_backward,
    .launch = launch,
};

}  // namespace foveal::cpu
