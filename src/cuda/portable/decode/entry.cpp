// The table entry of cuda_decode.
#include "core/format.hpp"
#include "core/integer.hpp"
#include "cuda/device_rules.hpp"
#include "cuda/portable/decode/config.hpp"
#include "cuda/portable/decode/launch.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cuda {
namespace {

using decode::DecodeArgs;
using decode::DecodePart;

constexpr const char* kName = "cuda_decode";

/// Keys are counted in 32 bits.
constexpr std::int64_t kMaxKeys = std::int64_t{1} << 30;

Status usable(const DeviceInfo& device) { return require_gpu(kName, device, kPortableSm); }

Status supports(const AttentionProblem& problem, const AttentionGeometry& geometry,
                const DeviceInfo& /*device*/) {
  if (problem.q.dtype == DType::kFloat32) {
    return Status::unsupported(concat("dtype fp32: ", kName, " takes fp16 and bf16"));
  }
  if (geometry.seqlen_q > decode::kMaxQueryTokens) {
    return Status::unsupported(concat("seqlen_q ", geometry.seqlen_q, ": ", kName,
                                      " takes at most ", decode::kMaxQueryTokens,
                                      " query tokens a sequence"));
  }
  if (geometry.seqlen_k > kMaxKeys) {
    return Status::unsupported(
        concat("seqlen_k ", geometry.seqlen_k, ": ", kName, " takes at most ", kMaxKeys));
  }
  if (problem.bias.present()) return Status::unsupported(concat(kName, " takes no bias"));
  if (problem.dropout_p > 0) return Status::unsupported(concat(kName, " takes no dropout"));
  return Status::ok();
}

#if FOVEAL_WITH_CUDA

template <class T>
T* part(const planner::LaunchContext& context, DecodePart index) {
  return context.workspace_part<T>(static_cast<std::size_t>(index));
}

/// Whether rows of k and v can be copied 16 bytes at a time.
bool rows_are_vectors(const planner::LaunchContext& context) {
  constexpr std::int64_t kVector = 8;
  return context.geometry.headdim % kVector == 0 && context.geometry.headdim_v % kVector == 0 &&
         has_aligned_rows(context.problem.k, context.tensors.k) &&
         has_aligned_rows(context.problem.v, context.tensors.v);
}

Status launch(const planner::LaunchContext& context) {
  const planner::KernelConfig& config = context.config;
  const AttentionGeometry& geometry = context.geometry;
  const std::int64_t row_tiles = decode::row_tiles_per_sequence(geometry, config.tile.m);
  DecodeArgs args;
  args.attention = make_attention_args(context);
  args.num_stages = static_cast<std::int32_t>(config.num_stages);
  args.row_tiles = static_cast<std::int32_t>(row_tiles);
  args.vectorised = rows_are_vectors(context);
  decode::DecodeGrid grid{.num_warps = static_cast<int>(config.num_threads / 32)};
  if (config.num_blocks > 0) {
    args.schedule = decode::Schedule::kBalanced;
    args.granule_blocks = decode::granule_blocks(config, geometry);
    args.granules_apart = config.split_keys > 0;
    args.max_splits = static_cast<std::int32_t>(decode::kMaxParts);
    args.partials = part<float>(context, DecodePart::kPartials);
    args.flags = part<std::uint64_t>(context, DecodePart::kFlags);
    args.nonce = decode::make_nonce();
    grid.num_blocks = config.num_blocks;
  } else {
    args.num_splits = static_cast<std::int32_t>(config.num_splits);
    grid.num_blocks = geometry.batch * geometry.nheads_k * row_tiles * config.num_splits;
    grid.cluster_size = static_cast<int>(config.cluster_size);
  }
  return decode::launch_decode(context.problem.q.dtype, decode::headdim_tile(geometry),
                               static_cast<int>(config.tile.m / decode::kTileRows), args, grid,
                               context.stream);
}

constexpr auto kLaunch = &launch;
#else
constexpr std::nullptr_t kLaunch = nullptr;
#endif

}  // namespace

const planner::KernelEntry kDecode = {
    .name = kName,
    .summary = "up to 16 query tokens against a cache of any length, keys split over blocks and "
               "merged within one launch: fp16, bf16",
    .pass = Pass::kForward,
    .device = DeviceType::kCuda,
    .usable = usable,
    .supports = supports,
    .configure = decode::configure_decode,
    .predict = decode::predict_decode,
    .launch = kLaunch,
};

}  // namespace foveal::cuda
