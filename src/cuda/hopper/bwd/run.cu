#include "cuda/hopper/bwd/run.hpp"

#include "cuda/hopper/backward_launch.hpp"
#include "cuda/hopper/bwd/config.hpp"
#include "cuda/hopper/bwd/convert.cuh"
#include "cuda/hopper/bwd/launch.hpp"
#include "cuda/hopper/bwd/prepare.cuh"
#include "cuda/portable/bwd/passes.hpp"
#include "cuda/portable/bwd/score_gradients.cuh"
#include "cuda/runtime/launch_kernel.hpp"

namespace foveal::cuda::hopper::bwd {
namespace {

using planner::LaunchContext;

constexpr std::size_t index_of(Part part) { return static_cast<std::size_t>(part); }

/// Rows in the operands' type that are whole, aligned units of 16 bytes.
bool in_units(const cuda::bwd::GradientInfo& gradient, DType dtype) {
  return gradient.whole_units && gradient.dtype == dtype;
}

Status make_args(const LaunchContext& context, GradientArgs& args) {
  const AttentionProblem& problem = context.problem;
  const AttentionGeometry& geometry = context.geometry;
  cuda::bwd::BackwardArgs& backward = args.backward;
  backward = cuda::bwd::make_backward_args(context, problem.q.dtype);
  backward.stats = context.workspace_part<float2>(index_of(Part::kStats));
  backward.dq_sums = context.workspace_part<float>(index_of(Part::kDqSums));
  if (geometry.packed_k) {
    backward.keys.entries = context.workspace_part<cuda::bwd::TileEntry>(index_of(Part::kKeyTiles));
  }
  if (geometry.packed_q) {
    backward.rows.entries = context.workspace_part<cuda::bwd::TileEntry>(index_of(Part::kRowTiles));
  }
  args.softcap = backward_softcap(geometry.softmax_scale, problem.softcap);
  args.scale_log2 = args.softcap.is_on() ? 1.0f : geometry.softmax_scale * cuda::bwd::kLog2e;
  args.order = key_tile_order(geometry, problem.deterministic);
  args.key_tiles = static_cast<std::int32_t>(key_tiles(geometry) * geometry.nheads_k);
  args.tickets = context.workspace_part<std::uint64_t>(index_of(Part::kCounters));
  args.row_tiles = static_cast<std::int32_t>(row_tiles(geometry));
  if (sums_counters(geometry, problem.deterministic) > 0) {
    (problem.deterministic ? args.turns : args.additions) = args.tickets + kFirstOfSums;
  }
  args.row_blocks = static_cast<std::int32_t>(
      ceil_div<std::int64_t>(geometry.seqlen_q, backward_tile(geometry).m));
  args.dq_in_units = in_units(backward.dq_info, problem.q.dtype);
  args.dk_in_units = in_units(backward.dk_info, problem.q.dtype);
  args.dv_in_units = in_units(backward.dv_info, problem.q.dtype);
  // Without rows or keys nothing is copied.
  if (geometry.total_q * geometry.nheads_q == 0 || geometry.total_k == 0) return Status::ok();
  const BackwardTile& tile = backward_tile(geometry);
  const CopyBox rows{tile.q_layout().panel_columns(), tile.q_box_rows()};
  const CopyBox keys{tile.k_layout().panel_columns(), tile.k_layout().rows};
  const std::int64_t columns = geometry.headdim;
  const std::int64_t columns_v = geometry.headdim_v;
  const KeyOperand& k = backward.attention.k;
  FOVEAL_RETURN_IF_ERROR(describe_rows(geometry, backward.attention.q, columns, rows, args.q));
  FOVEAL_RETURN_IF_ERROR(describe_rows(geometry, backward.dout, columns_v, rows, args.dout));
  FOVEAL_RETURN_IF_ERROR(describe_keys(geometry, k, columns, keys, args.k));
  if (tile.is_wide()) {
    const CopyBox part{tile.part_layout().panel_columns(), tile.part_layout().rows};
    FOVEAL_RETURN_IF_ERROR(describe_keys(geometry, k, columns, part, args.k_part));
  }
  return describe_keys(geometry, backward.attention.v, columns_v, keys, args.v);
}

ClearedPart cleared_part(const LaunchContext& context, Part part) {
  const std::int64_t bytes = context.config.workspace[index_of(part)].bytes;
  return {context.workspace_part<uint4>(index_of(part)), bytes / 16};
}

Status launch_preparation(const LaunchContext& context, const GradientArgs& args) {
  const BackwardTile& tile = backward_tile(context.geometry);
  const auto list = [&](cuda::bwd::Side side, int held, Part part) {
    return cuda::bwd::make_list_args(context, args.backward, side, held, index_of(part));
  };
  const PrepareArgs prepare{
      .stats = cuda::bwd::make_stats_args(context, args.backward),
      .keys = list(cuda::bwd::Side::kKeys, tile.n, Part::kKeyTiles),
      .rows = list(cuda::bwd::Side::kRows, tile.m, Part::kRowTiles),
      .counters = cleared_part(context, Part::kCounters),
      // Wide heads without an order add to zeroes; else the first to add stores.
      .dq_sums = tile.is_wide() && args.turns == nullptr ? cleared_part(context, Part::kDqSums)
                                                         : ClearedPart{},
  };
  return cuda::bwd::with_units(prepare.stats, [&](auto units) {
    static SharedMemoryGrant grant;
    const std::int64_t blocks = cuda::bwd::stats_blocks(context, prepare.stats);
    return launch_kernel("lse, delta and zeroes", prepare_kernel<units.value>, prepare,
                         {.num_blocks = max_of<std::int64_t>(blocks, 1),
                          .num_threads = cuda::bwd::kRowThreads,
                          .stream = context.stream},
                         grant);
  });
}

/// It relies on the preparation, for which the products have waited. Without products it begins
/// when the preparation has ended.
template <class Config>
Status launch_conversion_of(const GradientArgs& args, std::int64_t num_blocks, bool after_products,
                            void* stream) {
  static SharedMemoryGrant grant;
  return launch_kernel("conversion of dq", convert_dq_kernel<Config>, args,
                       {.num_blocks = num_blocks,
                        .num_threads = kConvertThreads,
                        .stream = stream,
                        .overlaps_before = after_products},
                       grant);
}

template <class Config, DType kDType>
Status launch_gradients_of(const GradientArgs& args, std::int64_t num_blocks, void* stream) {
  if constexpr (Config::tile.is_wide()) {
    return launch_wide_gradients<Config, kDType>(args, num_blocks, stream);
  } else {
    return launch_gradients<Config, kDType>(args, num_blocks, stream);
  }
}

template <class Config>
Status launch_products(const LaunchContext& context, const GradientArgs& args) {
  const AttentionGeometry& geometry = context.geometry;
  const std::int64_t key_blocks =
      Config::tile.is_wide() ? key_tiles(geometry) * geometry.nheads_k : context.config.num_blocks;
  const std::int64_t row_blocks = row_tiles(geometry) * geometry.nheads_q;
  if (context.problem.q.dtype == DType::kFloat16) {
    FOVEAL_RETURN_IF_ERROR(
        (launch_gradients_of<Config, DType::kFloat16>(args, key_blocks, context.stream)));
  } else {
    FOVEAL_RETURN_IF_ERROR(
        (launch_gradients_of<Config, DType::kBFloat16>(args, key_blocks, context.stream)));
  }
  return launch_conversion_of<Config>(args, row_blocks, key_blocks > 0, context.stream);
}

}  // namespace

Status run(const LaunchContext& context) {
  if (!can_copy_backward(context.tensors)) return launch_portable_backward(context);
  GradientArgs args;
  FOVEAL_RETURN_IF_ERROR(make_args(context, args));
  FOVEAL_RETURN_IF_ERROR(launch_preparation(context, args));
  const BackwardTile& tile = backward_tile(context.geometry);
  if (tile == BackwardHdim64::tile) {
    FOVEAL_RETURN_IF_ERROR(launch_products<BackwardHdim64>(context, args));
  } else if (tile == BackwardHdim96::tile) {
    FOVEAL_RETURN_IF_ERROR(launch_products<BackwardHdim96>(context, args));
  } else if (tile == BackwardHdim128::tile) {
    FOVEAL_RETURN_IF_ERROR(launch_products<BackwardHdim128>(context, args));
  } else if (tile == BackwardHdim192::tile) {
    FOVEAL_RETURN_IF_ERROR(launch_products<BackwardHdim192>(context, args));
  } else {
    FOVEAL_RETURN_IF_ERROR(launch_products<BackwardHdim256>(context, args));
  }
  return cuda::bwd::sum_dsinks(context, args.backward);
}

}  // namespace foveal::cuda::hopper::bwd
