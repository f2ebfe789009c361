#include "cuda/portable/fwd/launch.cuh"

namespace foveal::cuda::portable {

template Status launch_forward<ForwardFp32Hdim256, DType::kFloat32>(const ForwardArgs& args,
                                                                    void* stream);

}  // namespace foveal::cuda::portable
