#include "cuda/hopper/bwd/wide_launch.cuh"

namespace foveal::cuda::hopper::bwd {

template Status launch_wide_gradients<BackwardHdim256, DType::kFloat16>(const GradientArgs& args,
                                                                        std::int64_t num_clusters,
                                                                        void* stream);

}  // namespace foveal::cuda::hopper::bwd
