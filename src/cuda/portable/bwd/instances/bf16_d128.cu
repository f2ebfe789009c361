#include <cuda_bf16.h>

#include "cuda/portable/bwd/launch.cuh"

namespace foveal::cuda::bwd {

template struct GradientLaunches<__nv_bfloat16, 128>;

}  // namespace foveal::cuda::bwd
