// The part of the GPU runs that calls the CUDA runtime.
#include "support/device_memory.hpp"

#include <algorithm>
#include <vector>

#if FOVEAL_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace foveal::test {
namespace {

constexpr std::size_t kGuardBytes = 1024;
constexpr std::uint8_t kGuard = 0xA7;

}  // namespace

#if FOVEAL_WITH_CUDA
namespace {

/// What the pool may keep between cases: many test processes share a GPU.
constexpr std::uint64_t kKeptBytes = std::uint64_t{256} << 20;

cudaStream_t stream_of(const DeviceStream& stream) {
  return static_cast<cudaStream_t>(stream.handle());
}

Status status_of(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return Status::ok();
  cudaGetLastError();
  const std::string text = std::string(call) + ": " + cudaGetErrorString(error);
  return error == cudaErrorMemoryAllocation ? Status::out_of_memory(text)
                                            : Status::device_error(text);
}

/// The first use: the GPU becomes current and its pool keeps some memory.
Status open_gpu() {
  static const Status opened = [] {
    FOVEAL_RETURN_IF_ERROR(status_of(cudaSetDevice(kTestGpu.index), "cudaSetDevice"));
    cudaMemPool_t pool = nullptr;
    FOVEAL_RETURN_IF_ERROR(status_of(cudaDeviceGetDefaultMemPool(&pool, kTestGpu.index),
                                     "cudaDeviceGetDefaultMemPool"));
    std::uint64_t kept = kKeptBytes;
    return status_of(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept),
                     "cudaMemPoolSetAttribute");
  }();
  return opened;
}

}  // namespace

std::string no_gpu_reason() {
  if (const Result<DeviceInfo> info = device_info(kTestGpu); !info) return info.status().message();
  return open_gpu().message();
}

Status wait_for_gpu() { return status_of(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

std::size_t free_gpu_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
}

std::int32_t last_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count - 1 : 0;
}

std::int32_t current_gpu() {
  int index = -1;
  return cudaGetDevice(&index) == cudaSuccess ? index : -1;
}

CurrentGpu::CurrentGpu(std::int32_t index) { cudaSetDevice(index); }

CurrentGpu::~CurrentGpu() { cudaSetDevice(kTestGpu.index); }

DeviceStream::DeviceStream() {
  cudaStream_t stream = nullptr;
  if (open_gpu() && cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess) {
    handle_ = stream;
  }
}

DeviceStream::~DeviceStream() {
  if (handle_ != nullptr) cudaStreamDestroy(stream_of(*this));
}

Status DeviceStream::wait() const {
  return status_of(cudaStreamSynchronize(stream_of(*this)), "the kernel");
}

DeviceBuffer::DeviceBuffer(std::size_t bytes, std::uint8_t fill, const DeviceStream& stream)
    : stream_(stream), bytes_(bytes) {
  void* memory = nullptr;
  status_ = status_of(cudaMallocAsync(&memory, std::max<std::size_t>(bytes, 1), stream_of(stream)),
                      "cudaMallocAsync");
  if (!status_) return;
  data_ = static_cast<std::byte*>(memory);
  status_ = fill_bytes(data_, fill, bytes, stream);
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) cudaFreeAsync(data_, stream_of(stream_));
}

Status copy_bytes(void* to, const void* from, std::size_t bytes, const DeviceStream& stream) {
  FOVEAL_RETURN_IF_ERROR(status_of(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)), "cudaMemcpyAsync"));
  return stream.wait();
}

Status fill_bytes(void* memory, std::uint8_t value, std::size_t bytes, const DeviceStream& stream) {
  return status_of(cudaMemsetAsync(memory, value, bytes, stream_of(stream)), "cudaMemsetAsync");
}

DeviceGraph::~DeviceGraph() {
  if (executable_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
}

Status DeviceGraph::capture(const Plan& planned, const AttentionTensors& device,
                            const DeviceWorkspace& workspace, const DeviceStream& stream) {
  FOVEAL_RETURN_IF_ERROR(
      status_of(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeGlobal),
                "cudaStreamBeginCapture"));
  const Status ran = planned.run(device, workspace.data(), workspace.size(), stream.handle());
  cudaGraph_t graph = nullptr;
  const Status ended =
      status_of(cudaStreamEndCapture(stream_of(stream), &graph), "cudaStreamEndCapture");
  FOVEAL_RETURN_IF_ERROR(ran);
  FOVEAL_RETURN_IF_ERROR(ended);
  cudaGraphExec_t executable = nullptr;
  const Status made =
      status_of(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  cudaGraphDestroy(graph);
  executable_ = executable;
  return made;
}

Status DeviceGraph::replay(const DeviceStream& stream) const {
  return status_of(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), stream_of(stream)),
                   "cudaGraphLaunch");
}

#else  // without CUDA

namespace {

Status no_cuda() { return Status::unsupported("this build has no CUDA kernels"); }

}  // namespace

std::string no_gpu_reason() { return no_cuda().message(); }

Status wait_for_gpu() { return no_cuda(); }

std::size_t free_gpu_bytes() { return 0; }

std::int32_t last_gpu() { return 0; }

std::int32_t current_gpu() { return 0; }

CurrentGpu::CurrentGpu(std::int32_t) {}

CurrentGpu::~CurrentGpu() = default;

DeviceStream::DeviceStream() = default;

DeviceStream::~DeviceStream() = default;

Status DeviceStream::wait() const { return no_cuda(); }

DeviceBuffer::DeviceBuffer(std::size_t bytes, std::uint8_t /*fill*/, const DeviceStream& stream)
    : stream_(stream), bytes_(bytes), status_(no_cuda()) {}

DeviceBuffer::~DeviceBuffer() = default;

Status copy_bytes(void*, const void*, std::size_t, const DeviceStream&) { return no_cuda(); }

Status fill_bytes(void*, std::uint8_t, std::size_t, const DeviceStream&) { return no_cuda(); }

DeviceGraph::~DeviceGraph() = default;

Status DeviceGraph::capture(const Plan&, const AttentionTensors&, const DeviceWorkspace&,
                            const DeviceStream&) {
  return no_cuda();
}

Status DeviceGraph::replay(const DeviceStream&) const { return no_cuda(); }

#endif

DeviceWorkspace::DeviceWorkspace(std::size_t bytes, const DeviceStream& stream)
    : stream_(stream), bytes_(bytes), buffer_(bytes + 2 * kGuardBytes, kGuard, stream) {
  if (status()) (void)fill_bytes(data(), 0xFF, bytes, stream).is_ok();
}

void* DeviceWorkspace::data() const { return buffer_.data() + kGuardBytes; }

Status DeviceWorkspace::check_guards() const {
  std::vector<std::uint8_t> guards(2 * kGuardBytes);
  FOVEAL_RETURN_IF_ERROR(copy_bytes(guards.data(), buffer_.data(), kGuardBytes, stream_));
  FOVEAL_RETURN_IF_ERROR(copy_bytes(guards.data() + kGuardBytes,
                                    buffer_.data() + kGuardBytes + bytes_, kGuardBytes, stream_));
  const bool intact =
      std::all_of(guards.begin(), guards.end(), [](std::uint8_t byte) { return byte == kGuard; });
  return intact ? Status::ok() : Status::internal("memory beside the workspace was written");
}

}  // namespace foveal::test
