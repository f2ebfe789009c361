#include "cuda/hopper/bwd/launch.cuh"

namespace foveal::cuda::hopper::bwd {

template Status launch_gradients<BackwardHdim96, DType::kFloat16>(const GradientArgs& args,
                                                                  std::int64_t num_blocks,
                                                                  void* stream);

}  // namespace foveal::cuda::hopper::bwd
