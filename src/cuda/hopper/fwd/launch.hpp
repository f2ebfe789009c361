// The instances of hopper_fwd as host functions; those of a build without sm_90a don't exist.
#pragma once

#include <foveal/status.hpp>
#include <foveal/tensor.hpp>

#include "cuda/hopper/fwd/args.hpp"
#include "cuda/hopper/fwd/tile_config.hpp"

namespace foveal::cuda::hopper {

/// `num_blocks` blocks share the tiles. Defined in instances/*.cu.
template <class Config, DType kDType>
[[nodiscard]] Status launch_forward(const ForwardArgs& args, std::int64_t num_blocks, void* stream);

}  // namespace foveal::cuda::hopper
