#include "cuda/portable/append/kernel.cuh"
#include "cuda/runtime/runtime_error.hpp"

namespace foveal::cuda::append {
namespace {

template <class Element>
void launch(const AppendArgs& args, cudaStream_t stream) {
  append_kernel<Element><<<static_cast<unsigned>(args.num_blocks()), kThreads, 0, stream>>>(args);
}

}  // namespace

Status launch_append(const AppendArgs& args, void* stream) {
  auto* on = static_cast<cudaStream_t>(stream);
  switch (args.dtype) {
    case DType::kFloat16: launch<__half>(args, on); break;
    case DType::kBFloat16: launch<__nv_bfloat16>(args, on); break;
    default: launch<float>(args, on); break;
  }
  return launch_status("cuda_append");
}

}  // namespace foveal::cuda::append
