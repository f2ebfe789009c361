// The table entry of cpu_blocked_bwd.
#include <new>

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

/// The work of a launch, in the workspace.
struct BackwardWork {
  BackwardIndex index;
  WorkQueue* delta = nullptr;
  WorkQueue* keys = nullptr;
  WorkQueue* dbias = nullptr;
  WorkQueue* dsinks = nullptr;
};

/// Tiles of rows that every KV head of a sequence has to finish.
std::int64_t summed_row_tiles(const BackwardArgs& args, const BackwardSequence& entry) {
  const Sequence sequence = sequence_of(args, entry.b);
  std::int64_t count = 0;
  for (std::int64_t tile = 0; tile < entry.row_tiles && args.dq_sums.holds(tile); ++tile) {
    count += !key_blocks_of(args, sequence, tile).empty();
  }
  return count;
}

void expect_dq_sums(const BackwardArgs& args, const BackwardIndex& index) {
  args.dq_sums.reset();
  std::int64_t unit = 0;
  for (const BackwardSequence& entry : index.sequences) {
    const std::int64_t tiles = summed_row_tiles(args, entry);
    for (std::int64_t head = 0; head < index.heads; ++head) args.dq_sums.expect(unit++, tiles);
  }
}

BackwardWork list_work(const LaunchContext& context, const BackwardArgs& args) {
  const AttentionProblem& problem = args.problem;
  auto* next_queue = context.workspace_part<WorkQueue>(part(BackwardPart::kQueues));
  const auto queue = [&](std::int64_t num_items) {
    return ::new (next_queue++) WorkQueue(num_items);
  };
  const BackwardIndex index =
      build_backward_index(args, context.config.num_threads,
                           context.workspace_part<BackwardSequence>(part(BackwardPart::kIndex)));
  if (args.dq.wanted) expect_dq_sums(args, index);
  const bool wants_sums = args.dq.wanted || args.dk.wanted || args.dv.wanted;
  return {.index = index,
          .delta = queue(index.num_row_items),
          .keys = queue(wants_sums ? index.num_key_items : 0),
          .dbias = queue(num_dbias_tiles(args)),
          .dsinks = queue(problem.dsinks.present() ? args.geometry.nheads_q : 0)};
}

DqSums place_dq_sums(const LaunchContext& context) {
  const auto dq_part = part(BackwardPart::kDqSums);
  Slab slab(context.workspace_part<std::byte>(dq_part), context.config.workspace[dq_part].bytes);
  return {slab, dq_extent(context.problem, context.geometry, context.config)};
}

Status launch(const LaunchContext& context) {
  const BackwardArgs args(context, place_dq_sums(context));
  const BackwardWork work = list_work(context, args);
  const std::int64_t num_workers = context.config.num_threads;
  auto* slabs = context.workspace_part<std::byte>(part(BackwardPart::kScratch));
  const std::int64_t slab_bytes =
      context.config.workspace[part(BackwardPart::kScratch)].bytes / num_workers;
  const auto scratch_of = [&](std::int64_t worker) {
    Slab slab(slabs + worker * slab_bytes, slab_bytes);
    return BackwardScratch(slab, args.math, args.tile, args.geometry);
  };

  auto first_pass = [&](std::int64_t worker) {
    const BackwardScratch scratch = scratch_of(worker);
    work.delta->drain(
        [&](std::int64_t item) { compute_delta(args, scratch, work.index.row_item(item)); });
  };
  auto other_passes = [&](std::int64_t worker) {
    const BackwardScratch scratch = scratch_of(worker);
    work.keys->drain([&](std::int64_t index) {
      const BackwardItem item = work.index.key_item(index);
      compute_key_block(args, scratch, item, work.index.unit(item));
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
