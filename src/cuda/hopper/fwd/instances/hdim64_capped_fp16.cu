#include "cuda/hopper/fwd/launch.cuh"

namespace foveal::cuda::hopper {

template Status launch_forward<ForwardCapped<ForwardHdim64>, DType::kFloat16>(const ForwardArgs&,
                                                                              std::int64_t, void*);

}  // namespace foveal::cuda::hopper
