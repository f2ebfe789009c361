// The instances of portable_fwd as host functions; those of a build without CUDA don't exist.
#pragma once

#include <foveal/status.hpp>
#include <foveal/tensor.hpp>

#include "cuda/portable/fwd/args.hpp"
#include "cuda/portable/fwd/tile_config.hpp"

namespace foveal::cuda::portable {

/// Defined in instances/*.cu.
template <class Config, DType kDType>
[[nodiscard]] Status launch_forward(const ForwardArgs& args, void* stream);

/// Merges the partial results of splits into out and lse, in the order of the splits.
[[nodiscard]] Status launch_combine(const ForwardArgs& args, void* stream);

}  // namespace foveal::cuda::portable
