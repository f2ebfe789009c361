#include "cuda/portable/bwd/launch.cuh"

namespace foveal::cuda::bwd {

template struct GradientLaunches<float, 256>;
template struct GradientLaunches<float, 512>;

}  // namespace foveal::cuda::bwd
