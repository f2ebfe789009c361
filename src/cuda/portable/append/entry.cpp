// The table entry of cuda_append.
#include "cuda/device_rules.hpp"
#include "cuda/portable/append/args.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cuda::append {
namespace {

constexpr const char* kName = "cuda_append";

/// Of the memory's rate, fp16 on an H200 (bench/results/h200/append_merge.txt).
constexpr double kCopyingShare = 0.55;
constexpr double kRotatingShare = 0.41;

Status usable(const DeviceInfo& device) { return require_gpu(kName, device, kPortableSm); }

Status supports(const AttentionProblem& /*problem*/, const AttentionGeometry& /*geometry*/,
                const DeviceInfo& /*device*/) {
  return Status::ok();  // every valid append problem
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
  return roofline_us(attention_work(problem), DType::kFloat32, device,
                     {.memory = problem.rotary_cos.present() ? kRotatingShare : kCopyingShare});
}

#if FOVEAL_WITH_CUDA

Status launch(const planner::LaunchContext& context) {
  const AppendArgs args = make_append_args(context);
  return args.num_blocks() == 0 ? Status::ok() : launch_append(args, context.stream);
}

#else
constexpr Status (*launch)(const planner::LaunchContext&) = nullptr;
#endif

}  // namespace
}  // namespace foveal::cuda::append

namespace foveal::cuda {

const planner::KernelEntry kAppend = {
    .name = append::kName,
    .summary = "new keys and values into a dense or paged cache, with rotary embedding",
    .pass = Pass::kAppend,
    .device = DeviceType::kCuda,
    .usable = append::usable,
    .supports = append::supports,
    .configure = append::configure,
    .predict = append::predict,
    .launch = append::launch,
};

}  // namespace foveal::cuda
