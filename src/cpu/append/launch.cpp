// The table entry of cpu_append: a few rows a sequence, moved rather than computed.
#include <new>

#include "cpu/append/kernel.hpp"
#include "cpu/device_rules.hpp"
#include "cpu/parallel.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cpu {
namespace {

constexpr const char* kName = "cpu_append";

/// Tokens of an item.
constexpr std::int64_t kChunk = 16;

Status usable(const DeviceInfo& device) { return require_cpu(kName, device); }

Status supports(const AttentionProblem& /*problem*/, const AttentionGeometry& /*geometry*/,
                const DeviceInfo& /*device*/) {
  return Status::ok();  // every valid append problem
}

planner::KernelConfig configure(const AttentionProblem& problem,
                                const AttentionGeometry& /*geometry*/, const DeviceInfo& device) {
  planner::KernelConfig config;
  config.num_threads = worth_workers(attention_work(problem), device);
  config.workspace = {{"work queue", sizeof(WorkQueue)}};
  return config;
}

double predict(const AttentionProblem& problem, const AttentionGeometry& /*geometry*/,
               const planner::KernelConfig& config, const DeviceInfo& device) {
  return roofline_us(attention_work(problem), config.num_threads, device, /*slot_terms=*/1);
}

/// Most chunks that a sequence has: new tokens and rows of q share them.
std::int64_t chunks_per_sequence(const AppendArgs& args) {
  std::int64_t rows = args.geometry.seqlen_new;
  for (std::int64_t b = 0; args.rotates_q() && b < args.geometry.batch; ++b) {
    rows = max_of(rows, algorithm::seqlen_info(args.lengths, b).capacity_q);
  }
  return ceil_div(rows, kChunk);
}

Status launch(const planner::LaunchContext& context) {
  const AppendArgs args(context);
  const std::int64_t chunks = chunks_per_sequence(args);
  auto* queue =
      ::new (context.workspace_part<WorkQueue>(0)) WorkQueue(args.geometry.batch * chunks);
  auto worker = [&](std::int64_t /*w*/) {
    queue->drain([&](std::int64_t item) {
      const std::int64_t begin = item % chunks * kChunk;
      append_rows(args, item / chunks, {begin, begin + kChunk});
    });
  };
  run_workers(static_cast<const CpuExecutor*>(context.stream),
              min_of(context.config.num_threads, queue->num_items()), worker);
  return Status::ok();
}

}  // namespace

const planner::KernelEntry kAppend = {
    .name = kName,
    .summary = "new keys and values into a dense or paged cache, with rotary embedding",
    .pass = Pass::kAppend,
    .device = DeviceType::kCpu,
    .usable = usable,
    .supports = supports,
    .configure = configure,
    .predict = predict,
    .launch = launch,
};

}  // namespace foveal::cpu
