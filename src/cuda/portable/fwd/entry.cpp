// The table entries of portable_fwd and portable_fwd_fp32.
#include <array>
#include <cstdint>
#include <limits>

#include "core/format.hpp"
#include "cuda/device_rules.hpp"
#include "cuda/portable/fwd/config.hpp"
#include "cuda/portable/fwd/launch.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cuda::portable {
namespace {

constexpr const char* kName = "portable_fwd";
constexpr const char* kFloatName = "portable_fwd_fp32";

/// Rows, keys and tiles are counted in 32 bits on the device.
constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();

Status usable(const DeviceInfo& device) { return require_gpu(kName, device, kPortableSm); }
Status usable_fp32(const DeviceInfo& device) {
  return require_gpu(kFloatName, device, kPortableSm);
}

Status check_memory(const AttentionProblem& problem, const AttentionGeometry& geometry,
                    const DeviceInfo& device) {
  const ForwardTile& tile = choose_forward_tile(problem, geometry, device.smem_per_block_bytes);
  const int needed = tile.layout(static_cast<int>(dtype_bytes(problem.q.dtype))).bytes;
  return require_shared_memory(device, max_of(geometry.headdim, geometry.headdim_v), needed);
}

Status check_counts(const char* name, const AttentionProblem& problem,
                    const AttentionGeometry& geometry, const DeviceInfo& device) {
  const std::int64_t rows = geometry.seqlen_q * geometry.qhead_per_khead;
  if (rows > kMaxCount) {
    return Status::unsupported(
        concat(name, " takes at most ", kMaxCount,
               " query rows of a KV head; seqlen_q times the heads that share one is ", rows));
  }
  if (geometry.seqlen_k > kMaxCount) {
    return Status::unsupported(
        concat(name, " takes at most ", kMaxCount, " keys; seqlen_k is ", geometry.seqlen_k));
  }
  const planner::KernelConfig config = configure_forward(problem, geometry, device);
  const std::int64_t blocks = forward_schedule(problem, geometry, config)
                                  .num_tiles(static_cast<std::int32_t>(geometry.batch)) *
                              config.num_splits;
  if (blocks <= kMaxCount) return Status::ok();
  return Status::unsupported(
      concat(name, " takes at most ", kMaxCount, " tiles in a launch; here are ", blocks));
}

Status supports(const AttentionProblem& problem, const AttentionGeometry& geometry,
                const DeviceInfo& device) {
  if (problem.q.dtype == DType::kFloat32) {
    return Status::unsupported(concat(kName, " takes fp16 and bf16; q is fp32"));
  }
  FOVEAL_RETURN_IF_ERROR(check_memory(problem, geometry, device));
  return check_counts(kName, problem, geometry, device);
}

Status supports_fp32(const AttentionProblem& problem, const AttentionGeometry& geometry,
                     const DeviceInfo& device) {
  if (problem.q.dtype != DType::kFloat32) {
    return Status::unsupported(
        concat(kFloatName, " takes fp32; q is ", dtype_name(problem.q.dtype)));
  }
  FOVEAL_RETURN_IF_ERROR(check_memory(problem, geometry, device));
  return check_counts(kFloatName, problem, geometry, device);
}

#if FOVEAL_WITH_CUDA

using Launch = Status (*)(const ForwardArgs& args, void* stream);

struct Instance {
  ForwardTile tile;
  DType dtype;
  Launch launch;
};

template <class Config, DType kDType>
constexpr Instance instance() {
  return {Config::tile, kDType, launch_forward<Config, kDType>};
}

constexpr auto kInstances = std::to_array<Instance>({
    instance<ForwardHdim32Plain, DType::kFloat16>(),
    instance<ForwardHdim64Plain, DType::kFloat16>(),
    instance<ForwardHdim64, DType::kFloat16>(),
    instance<ForwardHdim96Plain, DType::kFloat16>(),
    instance<ForwardHdim128Plain, DType::kFloat16>(),
    instance<ForwardHdim128, DType::kFloat16>(),
    instance<ForwardHdim192, DType::kFloat16>(),
    instance<ForwardHdim256, DType::kFloat16>(),
    instance<ForwardHdim256Medium, DType::kFloat16>(),
    instance<ForwardHdim256Small, DType::kFloat16>(),
    instance<ForwardHdim384, DType::kFloat16>(),
    instance<ForwardHdim512, DType::kFloat16>(),
    instance<ForwardHdim512Medium, DType::kFloat16>(),
    instance<ForwardHdim512Small, DType::kFloat16>(),
    instance<ForwardHdim32Plain, DType::kBFloat16>(),
    instance<ForwardHdim64Plain, DType::kBFloat16>(),
    instance<ForwardHdim64, DType::kBFloat16>(),
    instance<ForwardHdim96Plain, DType::kBFloat16>(),
    instance<ForwardHdim128Plain, DType::kBFloat16>(),
    instance<ForwardHdim128, DType::kBFloat16>(),
    instance<ForwardHdim192, DType::kBFloat16>(),
    instance<ForwardHdim256, DType::kBFloat16>(),
    instance<ForwardHdim256Medium, DType::kBFloat16>(),
    instance<ForwardHdim256Small, DType::kBFloat16>(),
    instance<ForwardHdim384, DType::kBFloat16>(),
    instance<ForwardHdim512, DType::kBFloat16>(),
    instance<ForwardHdim512Medium, DType::kBFloat16>(),
    instance<ForwardHdim512Small, DType::kBFloat16>(),
    instance<ForwardFp32Hdim64, DType::kFloat32>(),
    instance<ForwardFp32Hdim128, DType::kFloat32>(),
    instance<ForwardFp32Hdim256, DType::kFloat32>(),
    instance<ForwardFp32Hdim512, DType::kFloat32>(),
});

constexpr Launch launch_of(const ForwardTile& tile, DType dtype) {
  for (const Instance& instance : kInstances) {
    if (instance.dtype == dtype && instance.tile == tile) return instance.launch;
  }
  return nullptr;
}

bool is_aligned(const void* data, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) == 0;
}

/// See RowElements::whole_units.
bool whole_units(const TensorSpec& spec, const void* data) {
  return is_aligned(data, 16) && can_be_whole_units(spec);
}

ForwardArgs make_args(const planner::LaunchContext& context, const ForwardTile& tile) {
  const AttentionProblem& problem = context.problem;
  const AttentionTensors& tensors = context.tensors;
  ForwardArgs args;
  args.attention = make_attention_args(context);
  args.schedule = forward_schedule(problem, context.geometry, context.config);
  args.q_whole_units = whole_units(problem.q, tensors.q);
  args.k_whole_units = whole_units(problem.k, tensors.k);
  args.v_whole_units = whole_units(problem.v, tensors.v);
  const std::int64_t pair_bytes = 2 * dtype_bytes(problem.out.dtype);
  args.out_in_pairs =
      is_aligned(tensors.out, pair_bytes) && rows_can_begin_at(problem.out, pair_bytes);
  const ScoreArgs& score = args.attention.score;
  args.has_score_terms = has_score_terms(problem, context.geometry);
  if (score.softcap > 0) {
    args.cap_log2 = static_cast<float>(2.0 * 1.4426950408889634 / score.softcap);
    args.cap_double = 2.0f * score.softcap;
  }
  if (context.config.num_splits > 1) {
    constexpr auto part = [](ForwardPart index) { return static_cast<std::size_t>(index); };
    args.partials = {context.workspace_part<float>(part(ForwardPart::kOut)),
                     context.workspace_part<RowState>(part(ForwardPart::kRows)), tile.d};
  }
  return args;
}

Status launch(const planner::LaunchContext& context) {
  const ForwardTile& tile =
      planned_forward_tile(context.problem.q.dtype, context.geometry, context.config);
  const Launch launch_instance = launch_of(tile, context.problem.q.dtype);
  FOVEAL_ASSERT(launch_instance != nullptr);
  const ForwardArgs args = make_args(context, tile);
  FOVEAL_RETURN_IF_ERROR(launch_instance(args, context.stream));
  return args.schedule.num_splits == 1 ? Status::ok() : launch_combine(args, context.stream);
}

#else

constexpr Status (*launch)(const planner::LaunchContext&) = nullptr;

#endif

}  // namespace
}  // namespace foveal::cuda::portable

namespace foveal::cuda {

const planner::KernelEntry kPortableForward = {
    .name = portable::kName,
    .summary =
        "tensor cores of any GPU from sm_80 on: every feature, fp16 and bf16, headdim 1 to 512",
    .pass = Pass::kForward,
    .device = DeviceType::kCuda,
    .usable = portable::usable,
    .supports = portable::supports,
    .configure = portable::configure_forward,
    .predict = portable::predict_forward,
    .launch = portable::launch,
};

const planner::KernelEntry kPortableForwardFp32 = {
    .name = portable::kFloatName,
    .summary =
        "fp32 inputs to fp32 accuracy, as three TF32 products: every feature, headdim 1 to 512",
    .pass = Pass::kForward,
    .device = DeviceType::kCuda,
    .usable = portable::usable_fp32,
    .supports = portable::supports_fp32,
    .configure = portable::configure_forward,
    .predict = portable::predict_forward,
    .launch = portable::launch,
};

}  // namespace foveal::cuda
