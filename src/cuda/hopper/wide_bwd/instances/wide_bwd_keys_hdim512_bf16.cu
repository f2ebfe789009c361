#include "cuda/hopper/wide_bwd/launch.cuh"

namespace foveal::cuda::hopper::wide_bwd {

template Status launch_gradients<WideHdim512, DType::kBFloat16, Side::kKeys>(const WideArgs& args,
                                                                             std::int64_t num_tiles,
                                                                             void* stream);

}  // namespace foveal::cuda::hopper::wide_bwd
