#include "cuda/portable/decode/direct_launch.cuh"

namespace foveal::cuda::decode {

template Status launch_direct_instance<__half, 64>(const DirectArgs& args, const DecodeGrid& grid,
                                                   void* stream);
template Status launch_direct_instance<__half, 64>(const SharedDirectArgs& args,
                                                   const DecodeGrid& grid, void* stream);

}  // namespace foveal::cuda::decode
