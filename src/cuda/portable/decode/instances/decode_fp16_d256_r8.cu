#include "cuda/portable/decode/launch.cuh"

namespace foveal::cuda::decode {

template Status launch_instance<__half, 256, 1>(const DecodeArgs& args, const DecodeGrid& grid,
                                                void* stream);

}  // namespace foveal::cuda::decode
