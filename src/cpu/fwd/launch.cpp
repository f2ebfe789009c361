// The table entry of cpu_blocked_fwd.
#include <algorithm>

#include "cpu/device_rules.hpp"
#include "cpu/fwd/config.hpp"
#include "cpu/fwd/kernel.hpp"
#include "cpu/fwd/work_index.hpp"
#include "cpu/parallel.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cpu {
namespace {

constexpr const char* kName = "cpu_blocked_fwd";

constexpr std::size_t part(ForwardPart index) { return static_cast<std::size_t>(index); }

Status usable(const DeviceInfo& device) { return require_cpu(kName, device); }

Status supports(const AttentionProblem& /*problem*/, const AttentionGeometry& /*geometry*/,
                const DeviceInfo& /*device*/) {
  return Status::ok();  // every valid forward problem
}

ForwardPartials place_partials(const planner::LaunchContext& context, std::int64_t num_slots) {
  Slab slab(context.workspace_part<std::byte>(part(ForwardPart::kPartials)),
            context.config.workspace[part(ForwardPart::kPartials)].bytes);
  return {slab, num_slots, context.config.tile, context.geometry};
}

Status launch(const planner::LaunchContext& context) {
  const AttentionGeometry& geometry = context.geometry;
  const planner::KernelConfig& config = context.config;
  const WorkIndex index =
      build_work_index(geometry, config, seqlen_source(context.problem, geometry, context.tensors),
                       context.workspace_part<std::byte>(part(ForwardPart::kWorkIndex)));
  const ForwardPartials partials = place_partials(context, index.num_slots);
  std::fill_n(partials.arrived, index.num_slots, 0);
  const ForwardArgs args(context, partials);

  auto* scratch = context.workspace_part<std::byte>(part(ForwardPart::kScratch));
  const std::int64_t slab_bytes =
      config.workspace[part(ForwardPart::kScratch)].bytes / config.num_threads;
  auto worker = [&](std::int64_t w) {
    Slab slab(scratch + w * slab_bytes, slab_bytes);
    const ForwardScratch tiles(slab, *args.math, config.tile, geometry);
    index.queue->drain(
        [&](std::int64_t item) { attend(args, tiles, index.item(item, geometry.nheads_k)); });
  };
  run_workers(static_cast<const CpuExecutor*>(context.stream),
              min_of(config.num_threads, index.queue->num_items()), worker);
  return Status::ok();
}

}  // namespace

const planner::KernelEntry kBlockedForward = {
    .name = kName,
    .summary = "blocked attention on CPU threads: every feature, any strides, headdim 1 to 512",
    .pass = Pass::kForward,
    .device = DeviceType::kCpu,
    .usable = usable,
    .supports = supports,
    .configure = configure_forward,
    .predict = predict_forward,
    .launch = launch,
};

}  // namespace foveal::cpu
