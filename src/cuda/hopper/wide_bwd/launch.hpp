// The launches of one head size, which instances/ hold.
#pragma once

#include <cstdint>

#include <foveal/status.hpp>
#include <foveal/tensor.hpp>

#include "cuda/hopper/wide_bwd/args.hpp"

namespace foveal::cuda::hopper::wide_bwd {

/// dk and dv, or dq: the gradients of kSide, in tiles of as many rows as a cluster holds.
template <class Config, DType kDType, Side kSide>
Status launch_gradients(const WideArgs& args, std::int64_t num_tiles, void* stream);

}  // namespace foveal::cuda::hopper::wide_bwd
