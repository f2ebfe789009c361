// cpu_merge: two results over disjoint keys become the result over their union, row by row.
#include <cmath>
#include <new>

#include "algorithm/split_merge.hpp"
#include "cpu/device_rules.hpp"
#include "cpu/parallel.hpp"
#include "cpu/slab.hpp"
#include "cpu/tile_load.hpp"
#include "cpu/tile_math.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cpu {
namespace {

using algorithm::kNegativeInfinity;

constexpr const char* kName = "cpu_merge";

/// Rows of an item.
constexpr std::int64_t kChunk = 64;

/// Parts of the workspace.
constexpr std::size_t kQueuePart = 0;
constexpr std::size_t kScratchPart = 1;

/// out and lse of one side.
struct MergePart {
  RowLoader out;
  RowStrides out_strides;
  const void* lse = nullptr;
  RowStrides lse_strides;
};

struct MergeArgs {
  explicit MergeArgs(const planner::LaunchContext& context);

  std::int64_t rows_per_batch = 0;  ///< seqlen_q, or total_q when packed
  std::int64_t num_batches = 1;     ///< 1 when packed
  std::int64_t nheads = 0;
  std::int64_t headdim_v = 0;
  const TileMath* math;
  MergePart a;
  MergePart b;
  RowStorer out;
  RowStrides out_strides;
  void* lse = nullptr;  ///< Null: not asked for.
  RowStrides lse_strides;
};

MergePart merge_part(const TileMath& math, const TensorSpec& out, const void* out_data,
                     const TensorSpec& lse, const void* lse_data) {
  MergePart part;
  part.out_strides = row_strides(out);
  part.out = {&math, out_data, out.dtype, part.out_strides.dim,
              out.shape[static_cast<std::size_t>(out.rank - 1)]};
  part.lse = lse_data;
  part.lse_strides = lse_strides(lse);
  return part;
}

MergeArgs::MergeArgs(const planner::LaunchContext& context)
    : math(&tile_math(context.problem.out.dtype, context.config.isa)),
      a(merge_part(*math, context.problem.out_a, context.tensors.out_a, context.problem.lse_a,
                   context.tensors.lse_a)),
      b(merge_part(*math, context.problem.out_b, context.tensors.out_b, context.problem.lse_b,
                   context.tensors.lse_b)),
      out_strides(row_strides(context.problem.out)) {
  const TensorSpec& spec = context.problem.out;
  const auto heads_axis = static_cast<std::size_t>(spec.rank - 2);
  num_batches = spec.rank == 4 ? spec.shape[0] : 1;
  rows_per_batch = spec.shape[heads_axis - 1];
  nheads = spec.shape[heads_axis];
  headdim_v = spec.shape[heads_axis + 1];
  out = {math, context.tensors.out, spec.dtype, out_strides.dim, headdim_v};
  if (context.problem.lse.present()) {
    lse = context.tensors.lse;
    lse_strides = foveal::lse_strides(context.problem.lse);
  }
}

/// Adds weight * part to the row. What has no key holds no value, whatever lies in its storage.
void add_part(const RowLoader& loader, std::int64_t index, float weight, float part_lse,
              float* part, float* row) {
  if (part_lse == kNegativeInfinity) return;
  loader.load(index, part);
  for (std::int64_t d = 0; d < loader.count; ++d) row[d] += weight * part[d];
}

/// One head of one row. Both parts are read before anything is written: out may be out_a.
void merge_head(const MergeArgs& args, std::int64_t batch, std::int64_t i, std::int64_t h,
                float* scratch) {
  const auto read_lse = [&](const MergePart& part) {
    return load_scalar(DType::kFloat32, part.lse, part.lse_strides.offset(batch, i, h));
  };
  float* row = scratch;
  float* part = scratch + round_up(args.headdim_v, kLane);
  const float lse_a = read_lse(args.a);
  const float lse_b = read_lse(args.b);
  const algorithm::MergeWeights weights = algorithm::merge_weights(lse_a, lse_b);
  for (std::int64_t d = 0; d < args.headdim_v; ++d) row[d] = 0.0f;
  add_part(args.a.out, args.a.out_strides.offset(batch, i, h), weights.weight_a, lse_a, part, row);
  add_part(args.b.out, args.b.out_strides.offset(batch, i, h), weights.weight_b, lse_b, part, row);
  args.out.store(row, args.out_strides.offset(batch, i, h));
  if (args.lse != nullptr) {
    store_scalar(DType::kFloat32, args.lse, args.lse_strides.offset(batch, i, h), weights.lse);
  }
}

Status usable(const DeviceInfo& device) { return require_cpu(kName, device); }

Status supports(const AttentionProblem& /*problem*/, const AttentionGeometry& /*geometry*/,
                const DeviceInfo& /*device*/) {
  return Status::ok();  // every valid merge problem
}

/// Floats of a worker: the row and one part of it.
std::int64_t scratch_floats(const AttentionGeometry& geometry) {
  return 2 * round_up(geometry.headdim_v, kLane);
}

planner::KernelConfig configure(const AttentionProblem& problem, const AttentionGeometry& geometry,
                                const DeviceInfo& device) {
  planner::KernelConfig config;
  config.num_threads = worth_workers(attention_work(problem), device);
  config.isa = tile_math(problem.out.dtype, device.isa).name;
  Slab scratch;
  scratch.take<float>(scratch_floats(geometry));
  config.workspace = {{"work queue", sizeof(WorkQueue)},
                      {"rows of the workers", config.num_threads * scratch.used_bytes()}};
  return config;
}

double predict(const AttentionProblem& problem, const AttentionGeometry& /*geometry*/,
               const planner::KernelConfig& config, const DeviceInfo& device) {
  return roofline_us(attention_work(problem), config.num_threads, device, /*slot_terms=*/1);
}

Status launch(const planner::LaunchContext& context) {
  const MergeArgs args(context);
  const std::int64_t num_rows = args.num_batches * args.rows_per_batch;
  auto* queue =
      ::new (context.workspace_part<WorkQueue>(kQueuePart)) WorkQueue(ceil_div(num_rows, kChunk));
  auto* scratch = context.workspace_part<float>(kScratchPart);
  const std::int64_t worker_floats = scratch_floats(context.geometry);
  auto worker = [&](std::int64_t w) {
    queue->drain([&](std::int64_t item) {
      const std::int64_t end = min_of((item + 1) * kChunk, num_rows);
      for (std::int64_t row = item * kChunk; row < end; ++row) {
        const std::int64_t batch = row / args.rows_per_batch;
        const std::int64_t i = row % args.rows_per_batch;
        for (std::int64_t h = 0; h < args.nheads; ++h) {
          merge_head(args, batch, i, h, scratch + w * worker_floats);
        }
      }
    });
  };
  run_workers(static_cast<const CpuExecutor*>(context.stream),
              min_of(context.config.num_threads, queue->num_items()), worker);
  return Status::ok();
}

}  // namespace

const planner::KernelEntry kMerge = {
    .name = kName,
    .summary = "two results over disjoint keys into one, weighted by their lse",
    .pass = Pass::kMerge,
    .device = DeviceType::kCpu,
    .usable = usable,
    .supports = supports,
    .configure = configure,
    .predict = predict,
    .launch = launch,
};

}  // namespace foveal::cpu
