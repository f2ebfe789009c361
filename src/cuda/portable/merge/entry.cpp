// The table entry of cuda_merge.
#include "core/integer.hpp"
#include "cuda/device_rules.hpp"
#include "cuda/portable/merge/args.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cuda::merging {
namespace {

constexpr const char* kName = "cuda_merge";

/// Of the memory's rate, fp16 on an H200 (bench/results/h200/append_merge.txt).
constexpr double kMemoryShare = 0.6;

Status usable(const DeviceInfo& device) { return require_gpu(kName, device, kPortableSm); }

Status supports(const AttentionProblem& /*problem*/, const AttentionGeometry& /*geometry*/,
                const DeviceInfo& /*device*/) {
  return Status::ok();  // every valid merge problem
}

planner::KernelConfig configure(const AttentionProblem& /*problem*/,
                                const AttentionGeometry& /*geometry*/,
                                const DeviceInfo& /*device*/) {
  planner::KernelConfig config;
  config.num_threads = kThreads;
  return config;
}

double predict(const AttentionProblem& problem, const AttentionGeometry& /*geometry*/,
               const planner::KernelConfig& /*config*/, const DeviceInfo& device) {
  return roofline_us(attention_work(problem), DType::kFloat32, device, {.memory = kMemoryShare});
}

#if FOVEAL_WITH_CUDA

MergeSide merge_side(const TensorSpec& out, const void* out_data, const TensorSpec& lse,
                     const void* lse_data) {
  MergeSide side;
  side.out = const_cast<void*>(out_data);
  side.dtype = out.dtype;
  side.out_strides = row_strides(out);
  if (!lse.present()) return side;
  side.lse = static_cast<float*>(const_cast<void*>(lse_data));
  side.lse_strides = lse_strides(lse);
  return side;
}

bool is_vectorised(const planner::LaunchContext& context) {
  const AttentionProblem& problem = context.problem;
  return context.geometry.headdim_v % kVectorElements == 0 &&
         has_aligned_rows(problem.out, context.tensors.out) &&
         has_aligned_rows(problem.out_a, context.tensors.out_a) &&
         has_aligned_rows(problem.out_b, context.tensors.out_b);
}

/// Lanes for one step along a row, as far as a warp has them.
std::int32_t lanes_per_row(std::int32_t steps) {
  constexpr std::int32_t kWarp = 32;
  std::int32_t lanes = 1;
  while (lanes < steps && lanes < kWarp) lanes *= 2;
  return lanes;
}

Status launch(const planner::LaunchContext& context) {
  const AttentionProblem& problem = context.problem;
  const AttentionTensors& tensors = context.tensors;
  const TensorSpec& out = problem.out;
  const auto heads_axis = static_cast<std::size_t>(out.rank - 2);
  const bool vectorised = is_vectorised(context);
  MergeArgs args;
  args.a = merge_side(problem.out_a, tensors.out_a, problem.lse_a, tensors.lse_a);
  args.b = merge_side(problem.out_b, tensors.out_b, problem.lse_b, tensors.lse_b);
  args.result = merge_side(out, tensors.out, problem.lse, tensors.lse);
  args.rows_per_batch = out.shape[heads_axis - 1];
  args.nheads = static_cast<std::int32_t>(out.shape[heads_axis]);
  args.headdim_v = static_cast<std::int32_t>(out.shape[heads_axis + 1]);
  args.num_rows = (out.rank == 4 ? out.shape[0] : 1) * args.rows_per_batch * args.nheads;
  args.lanes_per_row = lanes_per_row(ceil_div(args.headdim_v, vectorised ? kVectorElements : 1));
  if (args.num_rows == 0) return Status::ok();
  return launch_merge(args, vectorised, context.stream);
}

#else
constexpr Status (*launch)(const planner::LaunchContext&) = nullptr;
#endif

}  // namespace
}  // namespace foveal::cuda::merging

namespace foveal::cuda {

const planner::KernelEntry kMerge = {
    .name = merging::kName,
    .summary = "two results over disjoint keys into one, weighted by their lse",
    .pass = Pass::kMerge,
    .device = DeviceType::kCuda,
    .usable = merging::usable,
    .supports = merging::supports,
    .configure = merging::configure,
    .predict = merging::predict,
    .launch = merging::launch,
};

}  // namespace foveal::cuda
