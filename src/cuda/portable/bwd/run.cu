#include "cuda/portable/bwd/run.hpp"

#include <utility>

#include "cuda/device_rules.hpp"
#include "cuda/portable/bwd/launch.hpp"
#include "cuda/portable/bwd/row_passes.cuh"
#include "cuda/runtime/launch_kernel.hpp"

namespace foveal::cuda::bwd {
namespace {

using planner::LaunchContext;

constexpr std::size_t index_of(Part part) { return static_cast<std::size_t>(part); }

/// Whether rows are whole units of 16 bytes of `dtype`, aligned.
bool in_whole_units(const TensorSpec& spec, const void* data, DType dtype) {
  const auto last = static_cast<std::size_t>(spec.rank - 1);
  return spec.dtype == dtype && has_aligned_rows(spec, data) &&
         spec.shape[last] * dtype_bytes(dtype) % 16 == 0;
}

ElementsInfo elements_info(const LaunchContext& context, const TensorSpec& spec, const void* data) {
  return {spec.dtype, in_whole_units(spec, data, product_dtype(context.problem))};
}

/// Rows that begin at even multiples of the element, with adjacent elements.
bool in_pairs(const TensorSpec& spec, const void* data) {
  const auto last = static_cast<std::size_t>(spec.rank - 1);
  const std::int64_t pair_bytes = 2 * dtype_bytes(spec.dtype);
  if (spec.strides[last] != 1 || reinterpret_cast<std::uintptr_t>(data) % pair_bytes != 0) {
    return false;
  }
  for (std::size_t axis = 0; axis < last; ++axis) {
    if (spec.shape[axis] > 1 && spec.strides[axis] % 2 != 0) return false;
  }
  return true;
}

GradientInfo gradient_info(const TensorSpec& spec, const void* data) {
  if (!spec.present()) return {};
  return {spec.dtype, in_pairs(spec, data)};
}

RowOperand row_operand(const TensorSpec& spec, const void* data) {
  if (!spec.present()) return {};
  return {const_cast<void*>(data), row_strides(spec)};
}

KeyOperand key_operand(const LaunchContext& context, const TensorSpec& spec, void* data) {
  if (!spec.present()) return {};
  return {data, kv_layout(context.problem, context.geometry, spec, context.tensors)};
}

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
  [[nodiscard]] Status compute_stats() const;
  [[nodiscard]] Status list_tiles(Side side, Part part) const;
  [[nodiscard]] Status clear_dq_sums() const;
  [[nodiscard]] Status convert_dq() const;
  [[nodiscard]] Status sum_dsinks() const;
  [[nodiscard]] DbiasArgs dbias_args() const;
  template <class Element, int kHeaddim>
  [[nodiscard]] Status launch_products() const;
};

Run::Run(const LaunchContext& launch)
    : context(launch),
      choice(chosen(launch.problem, launch.geometry, launch.config)),
      tiles(tiles_of(choice.headdim, static_cast<int>(dtype_bytes(choice.dtype)))) {
  const AttentionProblem& problem = launch.problem;
  const AttentionTensors& tensors = launch.tensors;
  const AttentionGeometry& geometry = launch.geometry;
  args.attention = make_attention_args(launch);
  // None without query heads: no row then meets a key.
  if (geometry.nheads_q == 0) args.attention.qhead_per_khead = 0;
  args.dtype = choice.dtype;
  args.dout = row_operand(problem.dout, tensors.dout);
  if (problem.dlse.present()) {
    args.dlse = {static_cast<float*>(const_cast<void*>(tensors.dlse)), lse_strides(problem.dlse)};
  }
  args.dq = row_operand(problem.dq, tensors.dq);
  args.dk = key_operand(launch, problem.dk, tensors.dk);
  args.dv = key_operand(launch, problem.dv, tensors.dv);
  args.q_elements = elements_info(launch, problem.q, tensors.q);
  args.k_elements = elements_info(launch, problem.k, tensors.k);
  args.v_elements = elements_info(launch, problem.v, tensors.v);
  args.dout_elements = elements_info(launch, problem.dout, tensors.dout);
  args.dq_info = gradient_info(problem.dq, tensors.dq);
  args.dk_info = gradient_info(problem.dk, tensors.dk);
  args.dv_info = gradient_info(problem.dv, tensors.dv);
  args.stats = launch.workspace_part<float2>(index_of(Part::kStats));
  args.dq_ld = static_cast<std::int32_t>(dq_columns(geometry.headdim));
  if (choice.sums_dq) args.dq_sums = launch.workspace_part<float>(index_of(Part::kDqSums));
  args.total_q = geometry.total_q;
  args.rows_per_batch = geometry.packed_q ? 0 : geometry.seqlen_q;
  args.keys = schedule(geometry, Side::kKeys, held(Side::kKeys),
                       launch.workspace_part<TileEntry>(index_of(Part::kKeyTiles)));
  args.rows = schedule(geometry, Side::kRows, held(Side::kRows),
                       launch.workspace_part<TileEntry>(index_of(Part::kRowTiles)));
}

Status Run::compute_stats() const {
  static SharedMemoryGrant grant;
  const AttentionProblem& problem = context.problem;
  const auto in_eights = [&](const TensorSpec& spec, const void* data) {
    return in_whole_units(spec, data, spec.dtype) && context.geometry.headdim_v % 8 == 0;
  };
  const StatsArgs stats{args, in_eights(problem.out, context.tensors.out) &&
                                  in_eights(problem.dout, context.tensors.dout)};
  const std::int64_t warps = context.geometry.total_q * context.geometry.nheads_q;
  return launch_kernel(
      "lse and delta", stats_kernel, stats,
      {.num_blocks = min_of(ceil_div<std::int64_t>(warps, kRowThreads / 32), kMaxRowBlocks),
       .num_threads = kRowThreads,
       .stream = context.stream},
      grant);
}

Status Run::list_tiles(Side side, Part part) const {
  static SharedMemoryGrant grant;
  const std::int64_t bytes = context.config.workspace[index_of(part)].bytes;
  if (bytes == 0) return Status::ok();
  const ListArgs list{.lengths = args.attention.lengths,
                      .batch = args.attention.batch,
                      .held = held(side),
                      .side = side,
                      .entries = context.workspace_part<TileEntry>(index_of(part)),
                      .max_entries = static_cast<std::int32_t>(bytes / 8 - 1)};
  return launch_kernel("list of tiles", list_tiles_kernel, list,
                       {.num_blocks = 1, .num_threads = kRowThreads, .stream = context.stream},
                       grant);
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

Status Run::sum_dsinks() const {
  static SharedMemoryGrant grant;
  if (!context.problem.dsinks.present()) return Status::ok();
  const DsinksArgs dsinks{args, static_cast<float*>(context.tensors.dsinks),
                          context.problem.dsinks.strides[0]};
  return launch_kernel("gradient of sinks", dsinks_kernel, dsinks,
                       {.num_blocks = context.geometry.nheads_q,
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
  FOVEAL_RETURN_IF_ERROR(run.compute_stats());
  FOVEAL_RETURN_IF_ERROR(run.clear_dq_sums());
  FOVEAL_RETURN_IF_ERROR(run.list_tiles(Side::kKeys, Part::kKeyTiles));
  FOVEAL_RETURN_IF_ERROR(run.list_tiles(Side::kRows, Part::kRowTiles));
  FOVEAL_RETURN_IF_ERROR(launch_of_dtype(run));
  FOVEAL_RETURN_IF_ERROR(run.convert_dq());
  return run.sum_dsinks();
}

}  // namespace foveal::cuda::bwd
