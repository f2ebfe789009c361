// The instances of hopper_wide_fwd as host functions; those of a build without sm_90a don't exist.
#pragma once

#include <foveal/status.hpp>
#include <foveal/tensor.hpp>

#include "cuda/hopper/fwd/args.hpp"
#include "cuda/hopper/wide_fwd/tile_config.hpp"

namespace foveal::cuda::hopper::wide_fwd {

/// `num_blocks` blocks, in clusters of two, share the tiles. Defined in instances/*.cu.
template <class Config, DType kDType>
[[nodiscard]] Status launch_forward(const ForwardArgs& args, std::int64_t num_blocks, void* stream);

}  // namespace foveal::cuda::hopper::wide_fwd
