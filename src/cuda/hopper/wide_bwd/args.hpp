// What hopper_wide_bwd is given: the backward as the passes over rows have it, descriptions of its
// operands for the copy engine, and how tiles of both sides are numbered.
#pragma once

#include "cuda/hopper/backward_softcap.hpp"
#include "cuda/hopper/wide_bwd/tile_config.hpp"
#include "cuda/portable/bwd/args.hpp"
#include "cuda/runtime/tensor_map.hpp"

namespace foveal::cuda::hopper::wide_bwd {

struct WideArgs {
  TensorMap q;  ///< (column, row, head, sequence); packed: one sequence.
  TensorMap dout;
  TensorMap k;
  TensorMap v;
  cuda::bwd::BackwardArgs backward;
  TileOrder keys;
  TileOrder rows;
  float scale_log2 = 0;  ///< softmax_scale for powers of two; 1 for capped scores.
  Softcap softcap;
};

}  // namespace foveal::cuda::hopper::wide_bwd
