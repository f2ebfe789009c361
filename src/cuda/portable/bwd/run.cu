#include "cuda/portable/bwd/run.hpp"

#include <utility>

#include "cuda/device_rules.hpp"
#include "cuda/portable/bwd/launch.hpp"
#include "cuda/portable/bwd/passes.hpp"
#include "cuda/portable/bwd/row_passes.cuh"
#include "cuda/runtime/launch_kernel.hpp"

namespace foveal::cuda::bwd {
namespace {

using planner::LaunchContext;

constexpr std::size_t index_of(Part part) { return static_cast<std::size_t>(part); }

/// The tiles of one side; `list` is null when the side isn't packed.
TileSchedule schedule(const AttentionGeometry& geometry, Side side, int held, TileEntry* list) {
  const bool keys = side == Side::kKeys;
  const bool packed = keys ? geometry.packed_k : geometry.packed_q;
  const std::int64_t rows = keys ? geometry.seqlen_k : geometry.seqlen_q;
  const std::int64_t total = keys ? geometry.total_k : geometry.total_q;
  const std::int64_t heads = keys ? geometry.nheads_k : geometry.nheads_q;
  return {.blocks = static_cast<std::int32_t>(ceil_div<std::int64_t>(rows, held)),
          .heads = static_cast<std::int32_t>(heads),
          .entries = packed ? list : nullptr,
          .num_blocks = max_tiles(geometry.batch, rows, total, packed, held) * heads};
}

/// A launch in the making.
struct Run {
  const LaunchContext& context;
  Choice choice;
  HeaddimTiles tiles;
  BackwardArgs args;

  explicit Run(const LaunchContext& launch);

  [[nodiscard]] int held(Side side) const {
    if (side == Side::kKeys) return (choice.large ? tiles.keys_large : tiles.keys_small).held();
    return (choice.large ? tiles.rows_large : tiles.rows_small).held();
  }
  [[nodiscard]] Status list_tiles(Side side, Part part) const {
    return bwd::list_tiles(context, args, side, held(side), index_of(part));
  }
  [[nodiscard]] Status clear_dq_sums() const;
  [[nodiscard]] Status convert_dq() const;
  [[nodiscard]] DbiasArgs dbias_args() const;
  template <class Element, int kHeaddim>
  [[nodiscard]] Status launch_products() const;
};

Run::Run(const LaunchContext& launch)
    : context(launch),
      choice(chosen(launch.problem, launch.geometry, launch.config)),
      tiles(tiles_of(choice.headdim, static_cast<int>(dtype_bytes(choice.dtype)))) {
  const AttentionGeometry& geometry = launch.geometry;
  args = make_backward_args(launch, choice.dtype);
  args.stats = launch.workspace_part<float2>(index_of(Part::kStats));
  args.dq_ld = static_cast<std::int32_t>(dq_columns(geometry.headdim));
  if (choice.sums_dq) args.dq_sums = launch.workspace_part<float>(index_of(Part::kDqSums));
  args.keys = schedule(geometry, Side::kKeys, held(Side::kKeys),
                       launch.workspace_part<TileEntry>(index_of(Part::kKeyTiles)));
  args.rows = schedule(geometry, Side::kRows, held(Side::kRows),
                       launch.workspace_part<TileEntry>(index_of(Part::kRowTiles)));
}

Status Run::clear_dq_sums() const {
  if (!choice.sums_dq) return Status::ok();
  const auto bytes =
      static_cast<std::size_t>(context.config.workspace[index_of(Part::kDqSums)].bytes);
  return to_status(
      cudaMemsetAsync(args.dq_sums, 0, bytes, static_cast<cudaStream_t>(context.stream)),
      "clearing dq");
}

Status Run::convert_dq() const {
  static SharedMemoryGrant grant;
  if (!choice.sums_dq) return Status::ok();
  const std::int64_t groups =
      context.geometry.total_q * context.geometry.nheads_q * (args.dq_ld / 16);
  return launch_kernel(
      "conversion of dq", convert_dq_kernel, args,
      {.num_blocks = min_of(ceil_div<std::int64_t>(groups, kRowThreads), kMaxRowBlocks),
       .num_threads = kRowThreads,
       .stream = context.stream},
      grant);
}

DbiasArgs Run::dbias_args() const {
  const TensorSpec& spec = context.problem.dbias;
  DbiasArgs dbias;
  dbias.backward = args;
  dbias.dbias = context.tensors.dbias;
  dbias.dtype = spec.dtype;
  dbias.strides = bias_strides(spec);
  for (std::size_t axis = 0; axis < 4; ++axis) {
    dbias.shape[axis] = static_cast<std::int32_t>(spec.shape[axis]);
  }
  dbias.row_tiles = ceil_div(dbias.shape[2], tiles.rows_small.held());
  dbias.column_tiles = ceil_div(dbias.shape[3], tiles.rows_small.streamed);
  dbias.seqlen_q = static_cast<std::int32_t>(context.geometry.seqlen_q);
  dbias.seqlen_k = static_cast<std::int32_t>(context.geometry.seqlen_k);
  return dbias;
}

template <class Element, int kHeaddim>
Status Run::launch_products() const {
  using Launches = GradientLaunches<Element, kHeaddim>;
  if (choice.keys_pass) {
    FOVEAL_RETURN_IF_ERROR(Launches::keys(args, choice.large, context.stream));
  }
  if (choice.rows_pass) {
    FOVEAL_RETURN_IF_ERROR(Launches::rows(args, choice.large, context.stream));
  }
  if (choice.dbias_pass) return Launches::dbias(dbias_args(), context.stream);
  return Status::ok();
}

template <class Element>
Status launch_16_bit(const Run& run) {
  switch (run.choice.headdim) {
    case 32: return run.launch_products<Element, 32>();
    case 64: return run.launch_products<Element, 64>();
    case 96: return run.launch_products<Element, 96>();
    case 128: return run.launch_products<Element, 128>();
    case 192: return run.launch_products<Element, 192>();
    case 256: return run.launch_products<Element, 256>();
    default: return run.launch_products<Element, 512>();
  }
}

Status launch_fp32(const Run& run) {
  switch (run.choice.headdim) {
    case 64: return run.launch_products<float, 64>();
    case 128: return run.launch_products<float, 128>();
    case 256: return run.launch_products<float, 256>();
    default: return run.launch_products<float, 512>();
  }
}

Status launch_of_dtype(const Run& run) {
  switch (run.choice.dtype) {
    case DType::kFloat16: return launch_16_bit<__half>(run);
    case DType::kBFloat16: return launch_16_bit<__nv_bfloat16>(run);
    default: return launch_fp32(run);
  }
}

}  // namespace

Status run(const LaunchContext& context) {
  const Run run(context);
  FOVEAL_RETURN_IF_ERROR(compute_stats(context, run.args));
  FOVEAL_RETURN_IF_ERROR(run.clear_dq_sums());
  FOVEAL_RETURN_IF_ERROR(run.list_tiles(Side::kKeys, Part::kKeyTiles));
  FOVEAL_RETURN_IF_ERROR(run.list_tiles(Side::kRows, Part::kRowTiles));
  FOVEAL_RETURN_IF_ERROR(launch_of_dtype(run));
  FOVEAL_RETURN_IF_ERROR(run.convert_dq());
  return sum_dsinks(context, run.args);
}

}  // namespace foveal::cuda::bwd
