#include "cuda/portable/fwd/launch.cuh"

namespace foveal::cuda::portable {

template Status launch_forward<ForwardHdim192, DType::kFloat16>(const ForwardArgs& args,
                                                                void* stream);

}  // namespace foveal::cuda::portable
