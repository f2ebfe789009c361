// The table entries of portable_bwd and portable_bwd_fp32.
#include "core/format.hpp"
#include "cuda/device_rules.hpp"
#include "cuda/portable/bwd/config.hpp"
#include "cuda/portable/bwd/run.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cuda {
namespace {

constexpr const char* kName = "portable_bwd";
constexpr const char* kNameFp32 = "portable_bwd_fp32";

Status usable(const DeviceInfo& device) { return require_gpu(kName, device, kPortableSm); }
Status usable_fp32(const DeviceInfo& device) { return require_gpu(kNameFp32, device, kPortableSm); }

Status supports(const AttentionProblem& problem, const AttentionGeometry& geometry,
                const DeviceInfo& device) {
  if (problem.q.dtype == DType::kFloat32) {
    return Status::unsupported(concat("q is fp32: ", kName, " takes fp16 and bf16"));
  }
  return bwd::supports(problem, geometry, device);
}

Status supports_fp32(const AttentionProblem& problem, const AttentionGeometry& geometry,
                     const DeviceInfo& device) {
  if (problem.q.dtype != DType::kFloat32) {
    return Status::unsupported(
        concat("q is ", dtype_name(problem.q.dtype), ": ", kNameFp32, " takes fp32"));
  }
  return bwd::supports(problem, geometry, device);
}

#if FOVEAL_WITH_CUDA
constexpr auto* kRun = bwd::run;
#else
constexpr Status (*kRun)(const planner::LaunchContext&) = nullptr;
#endif

}  // namespace

const planner::KernelEntry kPortableBackward = {
    .name = kName,
    .summary =
        "gradients by mma.sync on GPUs from sm_80 on: fp16 and bf16, every feature, headdim "
        "1 to 512",
    .pass = Pass::kBackward,
    .device = DeviceType::kCuda,
    .usable = usable,
    .supports = supports,
    .configure = bwd::configure,
    .predict = bwd::predict,
    .launch = kRun,
};

const planner::KernelEntry kPortableBackwardFp32 = {
    .name = kNameFp32,
    .summary =
        "gradients of fp32 by three TF32 products on GPUs from sm_80 on: every feature, "
        "headdim 1 to 512",
    .pass = Pass::kBackward,
    .device = DeviceType::kCuda,
    .usable = usable_fp32,
    .supports = supports_fp32,
    .configure = bwd::configure,
    .predict = bwd::predict,
    .launch = kRun,
};

}  // namespace foveal::cuda
