#include "cuda/hopper/wide_bwd/run.hpp"

#include "cuda/hopper/backward_launch.hpp"
#include "cuda/hopper/wide_bwd/config.hpp"
#include "cuda/hopper/wide_bwd/launch.hpp"
#include "cuda/portable/bwd/passes.hpp"
#include "cuda/portable/bwd/score_gradients.cuh"

namespace foveal::cuda::hopper::wide_bwd {
namespace {

using planner::LaunchContext;

constexpr std::size_t index_of(Part part) { return static_cast<std::size_t>(part); }

Status make_args(const LaunchContext& context, WideArgs& args) {
  const AttentionGeometry& geometry = context.geometry;
  cuda::bwd::BackwardArgs& backward = args.backward;
  backward = cuda::bwd::make_backward_args(context, context.problem.q.dtype);
  backward.stats = context.workspace_part<float2>(index_of(Part::kStats));
  if (geometry.packed_k) {
    backward.keys.entries = context.workspace_part<cuda::bwd::TileEntry>(index_of(Part::kKeyTiles));
  }
  if (geometry.packed_q) {
    backward.rows.entries = context.workspace_part<cuda::bwd::TileEntry>(index_of(Part::kRowTiles));
  }
  args.softcap = backward_softcap(geometry.softmax_scale, context.problem.softcap);
  args.scale_log2 = args.softcap.is_on() ? 1.0f : geometry.softmax_scale * cuda::bwd::kLog2e;
  args.keys = tile_order(geometry, Side::kKeys);
  args.rows = tile_order(geometry, Side::kRows);
  // Without rows or keys nothing is copied.
  if (geometry.total_q * geometry.nheads_q == 0 || geometry.total_k == 0) return Status::ok();
  const CopyBox box{wide_tile(geometry).half_layout().panel_columns(), kTileRows};
  const std::int64_t columns = geometry.headdim;
  const std::int64_t columns_v = geometry.headdim_v;
  FOVEAL_RETURN_IF_ERROR(describe_rows(geometry, backward.attention.q, columns, box, args.q));
  FOVEAL_RETURN_IF_ERROR(describe_rows(geometry, backward.dout, columns_v, box, args.dout));
  FOVEAL_RETURN_IF_ERROR(describe_keys(geometry, backward.attention.k, columns, box, args.k));
  return describe_keys(geometry, backward.attention.v, columns_v, box, args.v);
}

/// The gradients of one side.
template <class Config, Side kSide>
Status launch_side(const LaunchContext& context, const WideArgs& args) {
  const AttentionGeometry& geometry = context.geometry;
  const std::int64_t heads = kSide == Side::kKeys ? geometry.nheads_k : geometry.nheads_q;
  const std::int64_t tiles = num_tiles(geometry, kSide) * heads;
  return context.problem.q.dtype == DType::kFloat16
             ? launch_gradients<Config, DType::kFloat16, kSide>(args, tiles, context.stream)
             : launch_gradients<Config, DType::kBFloat16, kSide>(args, tiles, context.stream);
}

template <class Config>
Status launch_products(const LaunchContext& context, const WideArgs& args) {
  const AttentionProblem& problem = context.problem;
  if (problem.dk.present() || problem.dv.present()) {
    FOVEAL_RETURN_IF_ERROR((launch_side<Config, Side::kKeys>(context, args)));
  }
  if (!problem.dq.present()) return Status::ok();
  return launch_side<Config, Side::kRows>(context, args);
}

}  // namespace

Status run(const LaunchContext& context) {
  if (!can_copy_backward(context.tensors)) return launch_portable_backward(context);
  WideArgs args;
  FOVEAL_RETURN_IF_ERROR(make_args(context, args));
  const auto list = [&](Side side, Part part) {
    return cuda::bwd::list_tiles(context, args.backward, side, kTileRows, index_of(part));
  };
  FOVEAL_RETURN_IF_ERROR(cuda::bwd::compute_stats(context, args.backward));
  FOVEAL_RETURN_IF_ERROR(list(Side::kKeys, Part::kKeyTiles));
  FOVEAL_RETURN_IF_ERROR(list(Side::kRows, Part::kRowTiles));
  if (wide_tile(context.geometry) == WideHdim384::tile) {
    FOVEAL_RETURN_IF_ERROR(launch_products<WideHdim384>(context, args));
  } else {
    FOVEAL_RETURN_IF_ERROR(launch_products<WideHdim512>(context, args));
  }
  return cuda::bwd::sum_dsinks(context, args.backward);
}

}  // namespace foveal::cuda::hopper::wide_bwd
