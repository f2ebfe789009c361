#include "cuda/portable/bwd/launch.cuh"

namespace foveal::cuda::bwd {

template struct GradientLaunches<float, 64>;
template struct GradientLaunches<float, 128>;

}  // namespace foveal::cuda::bwd
