// The launches of one head size, which instances/ hold.
#pragma once

#include <cstdint>

#include <foveal/status.hpp>
#include <foveal/tensor.hpp>

#include "cuda/hopper/bwd/args.hpp"

namespace foveal::cuda::hopper::bwd {

/// dk, dv and dq's sums.
template <class Config, DType kDType>
Status launch_gradients(const GradientArgs& args, std::int64_t num_blocks, void* stream);

/// The same of heads wider than 128: `num_clusters` of Config::tile.blocks each.
template <class Config, DType kDType>
Status launch_wide_gradients(const GradientArgs& args, std::int64_t num_clusters, void* stream);

}  // namespace foveal::cuda::hopper::bwd
