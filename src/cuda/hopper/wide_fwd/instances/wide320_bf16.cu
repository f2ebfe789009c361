#include "cuda/hopper/wide_fwd/launch.cuh"

namespace foveal::cuda::hopper::wide_fwd {

template Status launch_forward<WideHdim320, DType::kBFloat16>(const ForwardArgs&, std::int64_t,
                                                              void*);

}  // namespace foveal::cuda::hopper::wide_fwd
