// The table entry of hopper_fwd.
#include <array>
#include <cstdint>

#include "core/format.hpp"
#include "cuda/hopper/device_rules.hpp"
#include "cuda/hopper/fwd/config.hpp"
#include "cuda/hopper/fwd/launch.hpp"
#include "cuda/portable/decode/launch.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cuda::hopper {
namespace {

constexpr const char* kName = "hopper_fwd";

/// Rows and keys are counted in 32 bits on the device, with room for windows.
constexpr std::int64_t kMaxRows = std::int64_t{1} << 29;
/// Tiles of a launch.
constexpr std::int64_t kMaxTiles = std::int64_t{1} << 30;
/// Keys of a page are copied in whole units of rows that are swizzled together.
constexpr std::int64_t kPageUnit = 8;
Status usable(const DeviceInfo& device) { return require_hopper(kName, device); }

Status check_features(const AttentionProblem& problem, const AttentionGeometry& geometry) {
  if (problem.q.dtype == DType::kFloat32) {
    return Status::unsupported(concat("dtype fp32: ", kName, " takes fp16 and bf16"));
  }
  if (max_of(geometry.headdim, geometry.headdim_v) > kMaxHeaddim) {
    return Status::unsupported(concat("headdim ", max_of(geometry.headdim, geometry.headdim_v),
                                      ": ", kName, " takes at most ", kMaxHeaddim));
  }
  if (problem.bias.present()) return Status::unsupported(concat(kName, " takes no bias"));
  if (problem.alibi_slopes.present()) {
    return Status::unsupported(concat(kName, " takes no alibi_slopes"));
  }
  if (problem.dropout_p > 0) return Status::unsupported(concat(kName, " takes no dropout"));
  if (!geometry.paged()) return Status::ok();
  if (geometry.page_size % kPageUnit != 0) {
    return Status::unsupported(
        concat("page_size ", geometry.page_size, ": ", kName, " takes multiples of ", kPageUnit));
  }
  if (problem.leftpad_k.present()) {
    return Status::unsupported(concat(kName, " takes no leftpad_k with pages"));
  }
  return Status::ok();
}

Status check_counts(const AttentionProblem& problem, const AttentionGeometry& geometry) {
  const std::int64_t rows_q = geometry.packed_q ? geometry.total_q : geometry.seqlen_q;
  const std::int64_t rows_k = geometry.packed_k ? geometry.total_k : geometry.seqlen_k;
  if (max_of(rows_q, rows_k) > kMaxRows) {
    return Status::unsupported(
        concat(max_of(rows_q, rows_k), " rows of q or k: ", kName, " takes at most ", kMaxRows));
  }
  const ForwardTile& tile = forward_tile(geometry);
  const std::int64_t m_blocks = geometry.packed_q
                                    ? rows_q / tile.m + geometry.batch
                                    : geometry.batch * ceil_div<std::int64_t>(rows_q, tile.m);
  const double tiles = static_cast<double>(m_blocks) * static_cast<double>(geometry.nheads_q);
  if (tiles > static_cast<double>(kMaxTiles)) {
    return Status::unsupported(
        concat(kName, " takes at most ", kMaxTiles, " tiles of ", tile.m, " rows"));
  }
  const std::int64_t entries = max_of(problem.k.shape[0], geometry.batch);
  if (entries > kMaxRows) {
    return Status::unsupported(
        concat(entries, " sequences or pages: ", kName, " takes at most ", kMaxRows));
  }
  return Status::ok();
}

Status supports(const AttentionProblem& problem, const AttentionGeometry& geometry,
                const DeviceInfo& device) {
  const std::int64_t shared_bytes = forward_tile(geometry).shared_bytes();
  if (shared_bytes > device.smem_per_block_bytes) {
    return Status::unsupported(concat(kName, " needs ", shared_bytes,
                                      " bytes of shared memory a block; there are ",
                                      device.smem_per_block_bytes));
  }
  FOVEAL_RETURN_IF_ERROR(check_features(problem, geometry));
  FOVEAL_RETURN_IF_ERROR(check_strides(kName, "q", problem.q));
  FOVEAL_RETURN_IF_ERROR(check_strides(kName, "k", problem.k));
  FOVEAL_RETURN_IF_ERROR(check_strides(kName, "v", problem.v));
  return check_counts(problem, geometry);
}

#if defined(FOVEAL_WITH_HOPPER)

using Launch = Status (*)(const ForwardArgs& args, std::int64_t num_blocks, void* stream);

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
    instance<ForwardHdim64, DType::kFloat16>(),
    instance<ForwardHdim96, DType::kFloat16>(),
    instance<ForwardHdim128, DType::kFloat16>(),
    instance<ForwardHdim192, DType::kFloat16>(),
    instance<ForwardHdim256, DType::kFloat16>(),
    instance<ForwardHdim64, DType::kBFloat16>(),
    instance<ForwardHdim96, DType::kBFloat16>(),
    instance<ForwardHdim128, DType::kBFloat16>(),
    instance<ForwardHdim192, DType::kBFloat16>(),
    instance<ForwardHdim256, DType::kBFloat16>(),
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

/// Whether out's rows can be stored `bytes` at a time.
bool rows_begin_at(const TensorSpec& spec, const void* data, std::int64_t bytes) {
  const std::int64_t unit = bytes / dtype_bytes(spec.dtype);
  const auto last = static_cast<std::size_t>(spec.rank - 1);
  if (!is_aligned(data, bytes) || (spec.strides[last] != 1 && spec.shape[last] != 1)) return false;
  for (std::size_t axis = 0; axis < last; ++axis) {
    if (spec.shape[axis] > 1 && spec.strides[axis] % unit != 0) return false;
  }
  return true;
}

/// Extents of 0 are of tensors from which nothing is read.
std::int64_t at_least_one(std::int64_t extent) { return max_of<std::int64_t>(extent, 1); }

Status describe_queries(const planner::LaunchContext& context, TensorMap& map) {
  const AttentionGeometry& geometry = context.geometry;
  const ForwardTile& tile = forward_tile(geometry);
  const RowStrides strides = row_strides(context.problem.q);
  const std::int64_t rows = geometry.packed_q ? geometry.total_q : geometry.seqlen_q;
  return encode_tensor_map({.data = context.tensors.q,
                            .extents = {geometry.headdim, rows, geometry.nheads_q,
                                        geometry.packed_q ? 1 : geometry.batch},
                            .strides = {strides.row, strides.head, strides.batch},
                            .box_columns = tile.q_layout().panel_columns(),
                            .box_rows = tile.m},
                           map);
}

Status describe_keys(const planner::LaunchContext& context, const TensorSpec& spec,
                     const KeyOperand& operand, TensorMap& map) {
  const AttentionGeometry& geometry = context.geometry;
  const algorithm::KvLayout& layout = operand.layout;
  const bool packed = geometry.packed_k;
  const auto columns = static_cast<std::size_t>(spec.rank - 1);
  const bool empty = spec.numel() == 0;
  return encode_tensor_map(
      {.data = empty ? context.tensors.q : operand.data,
       .extents = {spec.shape[columns], at_least_one(spec.shape[columns - 2]), geometry.nheads_k,
                   packed ? 1 : at_least_one(spec.shape[0])},
       .strides = {layout.row_stride, layout.head_stride, layout.page_stride},
       .box_columns = forward_tile(geometry).k_layout().panel_columns(),
       .box_rows = static_cast<std::int32_t>(keys_of_box(geometry))},
      map);
}

/// A side of the window in 32 bits: beyond any length it is unbounded.
std::int32_t narrow(std::int64_t side) {
  return static_cast<std::int32_t>(
      min_of<std::int64_t>(side, algorithm::kUnboundedOf<std::int32_t>));
}

void set_options(const planner::LaunchContext& context, ForwardArgs& args) {
  const AttentionProblem& problem = context.problem;
  const AttentionGeometry& geometry = context.geometry;
  args.window = {narrow(geometry.window.left), narrow(geometry.window.right)};
  args.box_rows = static_cast<std::int32_t>(keys_of_box(geometry));
  args.scale_first = problem.softcap > 0 || !(geometry.softmax_scale > 0);
  args.scale_first_factor = geometry.softmax_scale / (problem.softcap > 0 ? problem.softcap : 1.0f);
  const TensorSpec& out = problem.out;
  void* data = context.tensors.out;
  args.out_whole_units =
      out.dtype == problem.q.dtype && geometry.headdim_v % 8 == 0 && rows_begin_at(out, data, 16);
  args.out_in_pairs = rows_begin_at(out, data, 2 * dtype_bytes(out.dtype));
}

/// What strides could not tell: an operand that the copy engine can't address.
bool can_copy(const AttentionTensors& tensors) {
  return is_aligned(tensors.q, 16) && is_aligned(tensors.k, 16) && is_aligned(tensors.v, 16);
}

/// portable_fwd in one launch, which needs no workspace. The plan says that this may come.
Status launch_portable(const planner::LaunchContext& context) {
  AttentionProblem problem = context.problem;
  problem.batch_invariant = true;  // no splits
  FOVEAL_ASSIGN_OR_RETURN(device, device_from_name("sm_90"));
  const planner::KernelConfig config =
      kPortableForward.configure(problem, context.geometry, device);
  return kPortableForward.launch({.problem = problem,
                                  .geometry = context.geometry,
                                  .config = config,
                                  .tensors = context.tensors,
                                  .workspace = nullptr,
                                  .stream = context.stream});
}

Status launch(const planner::LaunchContext& context) {
  if (context.config.num_blocks == 0) return Status::ok();
  if (!can_copy(context.tensors)) return launch_portable(context);
  const Launch launch_instance = launch_of(forward_tile(context.geometry), context.problem.q.dtype);
  FOVEAL_ASSERT(launch_instance != nullptr);
  ForwardArgs args;
  args.attention = make_attention_args(context);
  args.schedule = forward_schedule(context.problem, context.geometry);
  set_options(context, args);
  FOVEAL_RETURN_IF_ERROR(describe_queries(context, args.q));
  FOVEAL_RETURN_IF_ERROR(describe_keys(context, context.problem.k, args.attention.k, args.k));
  FOVEAL_RETURN_IF_ERROR(describe_keys(context, context.problem.v, args.attention.v, args.v));
  if (!context.config.workspace.empty()) {
    args.begun = context.workspace_part<unsigned long long>(0);
    args.nonce = static_cast<std::uint32_t>(decode::make_nonce()) | 1;  // 0 is a cleared counter
  }
  return launch_instance(args, context.config.num_blocks, context.stream);
}

constexpr auto kLaunch = &launch;
#else
constexpr std::nullptr_t kLaunch = nullptr;
#endif

}  // namespace
}  // namespace foveal::cuda::hopper

namespace foveal::cuda {

const planner::KernelEntry kHopperForward = {
    .name = hopper::kName,
    .summary =
        "tensor cores and copy engine of sm_90: prefill in fp16 and bf16, headdim to 256, masks, "
        "softcap, sinks, packed and paged",
    .pass = Pass::kForward,
    .device = DeviceType::kCuda,
    .usable = hopper::usable,
    .supports = hopper::supports,
    .configure = hopper::configure_forward,
    .predict = hopper::predict_forward,
    .launch = hopper::kLaunch,
};

}  // namespace foveal::cuda
