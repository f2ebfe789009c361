#include <cuda_fp16.h>

#include "cuda/portable/bwd/launch.cuh"

namespace foveal::cuda::bwd {

template struct GradientLaunches<__half, 32>;

}  // namespace foveal::cuda::bwd
