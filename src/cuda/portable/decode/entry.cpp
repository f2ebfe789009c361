// The table entry of cuda_decode.
#include "core/format.hpp"
#include "core/integer.hpp"
#include "cuda/device_rules.hpp"
#include "cuda/portable/decode/config.hpp"
#include "cuda/portable/decode/launch.hpp"
#include "cuda/portable/decode/ring_fit.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cuda {
namespace {

using decode::DecodeArgs;
using decode::DecodePart;

constexpr const char* kName = "cuda_decode";

/// Positions are counted in 32 bits, with room for sums of two (algorithm/mask.hpp).
constexpr std::int64_t kMaxKeys = std::int64_t{1} << 29;
constexpr std::int64_t kMaxRows = std::int64_t{1} << 30;

/// Blocks of a grid along y and z.
constexpr std::int64_t kMaxGrid = 65535;

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
  if (geometry.total_q * geometry.qhead_per_khead > kMaxRows) {
    return Status::unsupported(concat("total_q ", geometry.total_q, " of ",
                                      geometry.qhead_per_khead, " heads a group: ", kName,
                                      " takes at most ", kMaxRows, " rows of a KV head"));
  }
  if (geometry.packed_k && geometry.total_k > kMaxRows) {
    return Status::unsupported(
        concat("total_k ", geometry.total_k, ": ", kName, " takes at most ", kMaxRows));
  }
  if (geometry.batch > kMaxGrid || geometry.nheads_k * geometry.seqlen_q > kMaxGrid) {
    return Status::unsupported(concat("batch ", geometry.batch, ", nheads_k ", geometry.nheads_k,
                                      ", seqlen_q ", geometry.seqlen_q, ": ", kName,
                                      " takes a batch, and nheads_k times seqlen_q, of at most ",
                                      kMaxGrid));
  }
  if (problem.batch_invariant && geometry.packed_q) {
    return Status::unsupported(
        concat("packed q with batch_invariant: the longest query of the "
               "batch would decide whether ",
               kName, " takes it"));
  }
  if (problem.batch_invariant && geometry.batch > decode::kMaxBalancedBatch) {
    return Status::unsupported(concat("batch ", geometry.batch, " with batch_invariant: ", kName,
                                      " takes at most ", decode::kMaxBalancedBatch));
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

/// Whether rows of an operand can be copied 16 bytes at a time.
bool rows_are_vectors(const TensorSpec& spec, const void* data) {
  constexpr std::int64_t kVector = 8;
  return spec.shape[static_cast<std::size_t>(spec.rank - 1)] % kVector == 0 &&
         has_aligned_rows(spec, data);
}

/// A side of the window in 32 bits: beyond any length it is unbounded.
std::int32_t narrow(std::int64_t side) {
  return static_cast<std::int32_t>(
      min_of<std::int64_t>(side, algorithm::kUnboundedOf<std::int32_t>));
}

Divisor divisor(std::int64_t value) {
  return Divisor(static_cast<std::uint32_t>(max_of<std::int64_t>(value, 1)));
}

Status launch(const planner::LaunchContext& context) {
  const planner::KernelConfig& config = context.config;
  const AttentionGeometry& geometry = context.geometry;
  const std::int64_t row_tiles = decode::row_tiles_per_sequence(geometry, config.tile.m);
  const std::int64_t units = geometry.batch * geometry.nheads_k * row_tiles;
  if (units == 0) return Status::ok();
  DecodeArgs args;
  args.attention = make_attention_args(context);
  args.window = {narrow(geometry.window.left), narrow(geometry.window.right)};
  const algorithm::SeqlenSource& lengths = args.attention.lengths;
  args.lengths_fixed = lengths.cu_seqlens_q == nullptr && lengths.cu_seqlens_k == nullptr &&
                       lengths.seqused_q == nullptr && lengths.seqused_k == nullptr &&
                       lengths.leftpad_k == nullptr;
  if (args.lengths_fixed) {
    args.sequence = decode::make_sequence(lengths, args.window,
                                          static_cast<std::int32_t>(geometry.qhead_per_khead),
                                          static_cast<std::int32_t>(config.tile.m), /*b=*/0);
  }
  args.group = divisor(geometry.qhead_per_khead);
  args.splits = divisor(config.num_splits);
  args.tiles = divisor(row_tiles);
  args.num_stages = static_cast<std::int32_t>(config.num_stages);
  args.row_tiles = static_cast<std::int32_t>(row_tiles);
  args.vectorised = rows_are_vectors(context.problem.k, context.tensors.k) &&
                    rows_are_vectors(context.problem.v, context.tensors.v);
  args.queries_vectorised = rows_are_vectors(context.problem.q, context.tensors.q);
  decode::DecodeGrid grid{.num_warps = static_cast<int>(config.num_threads / 32)};
  if (config.num_blocks > 0) {
    args.schedule = decode::Schedule::kBalanced;
    args.granule_blocks = decode::granule_blocks(config, geometry);
    args.granules_apart = config.split_keys > 0;
    args.task_granules = args.granules_apart ? 0 : decode::kTaskGranules;
    args.max_splits = static_cast<std::int32_t>(decode::kMaxParts);
    args.partials = part<float>(context, DecodePart::kPartials);
    args.flags = part<std::uint64_t>(context, DecodePart::kFlags);
    args.nonce = decode::make_nonce();
    grid.num_blocks = config.num_blocks;
  } else {
    args.num_splits = static_cast<std::int32_t>(config.num_splits);
    args.split_blocks = static_cast<std::int32_t>(config.split_keys / decode::kBlockKeys);
    grid.num_blocks = config.num_splits;
    grid.num_heads = geometry.nheads_k * row_tiles;
    grid.num_sequences = geometry.batch;
    grid.cluster_size = static_cast<int>(config.cluster_size);
  }
  const DType dtype = context.problem.q.dtype;
  const int headdim = decode::headdim_tile(geometry);
  const auto tile_rows = static_cast<int>(config.tile.m);
  if (const auto direct = decode::make_direct_args(args, headdim, tile_rows)) {
    return decode::launch_direct(dtype, headdim, *direct, grid, context.stream);
  }
  if (const auto direct =
          decode::make_shared_direct_args(args, headdim, tile_rows, grid.num_blocks)) {
    return decode::launch_direct(dtype, headdim, *direct, grid, context.stream);
  }
  // The direct kernel has more warps at headdim 64.
  const int row_tiles_of_8 = tile_rows / decode::kTileRows;
  grid.num_warps = min_of(grid.num_warps, decode::max_warps(headdim, row_tiles_of_8));
  return decode::launch_decode(dtype, headdim, row_tiles_of_8, args, grid, context.stream);
}

constexpr auto kLaunch = &launch;
#else
constexpr std::nullptr_t kLaunch = nullptr;
#endif

}  // namespace

const planner::KernelEntry kDecode = {
    .name = kName,
    .summary =
        "up to 16 query tokens against a cache of any length, keys split over blocks and "
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
