#include <cuda_fp16.h>

#include "cuda/portable/bwd/launch.cuh"

namespace foveal::cuda::bwd {

template struct GradientLaunches<__half, 256>;

}  // namespace foveal::cuda::bwd
