// plan/cuda_runtime.hpp in a build without CUDA.
#include "core/format.hpp"
#include "plan/cuda_runtime.hpp"

#if !FOVEAL_WITH_CUDA
namespace foveal::cuda {
namespace {

Status no_cuda(std::int32_t index) {
  return Status::unsupported(concat("device cuda:", index, ": this build has no CUDA kernels"));
}

}  // namespace

std::int32_t device_count() { return 0; }

Result<DeviceInfo> describe_device(std::int32_t index) { return no_cuda(index); }

DeviceScope::DeviceScope(std::int32_t index) : status_(no_cuda(index)) {}

DeviceScope::~DeviceScope() = default;

Result<void*> allocate(std::size_t /*bytes*/, void* /*stream*/) { return no_cuda(0); }

Status release(void* /*memory*/, void* /*stream*/) { return no_cuda(0); }

Result<bool> is_capturing(void* /*stream*/) { return no_cuda(0); }

Status read_back(void* /*host*/, const void* /*device*/, std::size_t /*bytes*/, void* /*stream*/) {
  return no_cuda(0);
}

}  // namespace foveal::cuda
#endif
