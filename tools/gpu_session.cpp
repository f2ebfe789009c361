#include "tools/gpu_session.hpp"

#include <fmt/format.h>

#include <algorithm>

#if FOVEAL_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace foveal::tools {

#if FOVEAL_WITH_CUDA

namespace {

Status status_of(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return Status::ok();
  cudaGetLastError();  // the next call must not find it
  return Status::device_error(fmt::format("{}: {}", call, cudaGetErrorString(error)));
}

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(void* event) { return static_cast<cudaEvent_t>(event); }
cudaGraphExec_t as_graph(void* graph) { return static_cast<cudaGraphExec_t>(graph); }

}  // namespace

void GpuBuffer::Release::operator()(std::byte* data) const { cudaFree(data); }

void GpuGraph::Release::operator()(void* executable) const {
  cudaGraphExecDestroy(as_graph(executable));
}

Result<std::unique_ptr<GpuSession>> GpuSession::open(std::int32_t index) {
  std::unique_ptr<GpuSession> session(new GpuSession);
  FOVEAL_RETURN_IF_ERROR(status_of(cudaSetDevice(index), "cudaSetDevice"));
  cudaStream_t stream = nullptr;
  FOVEAL_RETURN_IF_ERROR(status_of(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                                   "cudaStreamCreateWithFlags"));
  session->stream_ = stream;
  cudaEvent_t begin = nullptr;
  FOVEAL_RETURN_IF_ERROR(status_of(cudaEventCreate(&begin), "cudaEventCreate"));
  session->begin_ = begin;
  cudaEvent_t end = nullptr;
  FOVEAL_RETURN_IF_ERROR(status_of(cudaEventCreate(&end), "cudaEventCreate"));
  session->end_ = end;
  int l2_bytes = 0;
  FOVEAL_RETURN_IF_ERROR(status_of(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, index),
                                   "cudaDeviceGetAttribute"));
  session->l2_bytes_ = l2_bytes;
  return session;
}

GpuSession::~GpuSession() {
  if (begin_ != nullptr) cudaEventDestroy(as_event(begin_));
  if (end_ != nullptr) cudaEventDestroy(as_event(end_));
  if (stream_ != nullptr) cudaStreamDestroy(as_stream(stream_));
}

Result<GpuBuffer> GpuSession::allocate(std::int64_t bytes, std::string_view what) {
  GpuBuffer buffer;
  if (bytes == 0) return buffer;
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, static_cast<std::size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return Status::out_of_memory(
        fmt::format("out of memory on the GPU: {} needs {} bytes", what, bytes));
  }
  FOVEAL_RETURN_IF_ERROR(status_of(error, "cudaMalloc"));
  buffer.data_.reset(static_cast<std::byte*>(memory));
  buffer.size_ = static_cast<std::size_t>(bytes);
  return buffer;
}

Status GpuSession::copy(void* to, const void* from, std::size_t bytes) {
  FOVEAL_RETURN_IF_ERROR(status_of(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, as_stream(stream_)), "cudaMemcpyAsync"));
  return wait();
}

Status GpuSession::wait() {
  return status_of(cudaStreamSynchronize(as_stream(stream_)), "the GPU");
}

Result<double> GpuSession::time_us(const std::function<Status()>& launch) {
  FOVEAL_RETURN_IF_ERROR(
      status_of(cudaEventRecord(as_event(begin_), as_stream(stream_)), "cudaEventRecord"));
  FOVEAL_RETURN_IF_ERROR(launch());
  FOVEAL_RETURN_IF_ERROR(
      status_of(cudaEventRecord(as_event(end_), as_stream(stream_)), "cudaEventRecord"));
  FOVEAL_RETURN_IF_ERROR(wait());
  float milliseconds = 0;
  FOVEAL_RETURN_IF_ERROR(
      status_of(cudaEventElapsedTime(&milliseconds, as_event(begin_), as_event(end_)),
                "cudaEventElapsedTime"));
  return 1e3 * static_cast<double>(milliseconds);
}

Result<GpuGraph> GpuSession::record(const std::function<Status()>& launch) {
  FOVEAL_RETURN_IF_ERROR(
      status_of(cudaStreamBeginCapture(as_stream(stream_), cudaStreamCaptureModeThreadLocal),
                "cudaStreamBeginCapture"));
  const Status launched = launch();
  cudaGraph_t recorded = nullptr;
  const Status ended =
      status_of(cudaStreamEndCapture(as_stream(stream_), &recorded), "cudaStreamEndCapture");
  FOVEAL_RETURN_IF_ERROR(launched);
  FOVEAL_RETURN_IF_ERROR(ended);
  cudaGraphExec_t executable = nullptr;
  const Status made =
      status_of(cudaGraphInstantiate(&executable, recorded, 0), "cudaGraphInstantiate");
  cudaGraphDestroy(recorded);
  FOVEAL_RETURN_IF_ERROR(made);
  GpuGraph graph;
  graph.executable_.reset(executable);
  return graph;
}

Status GpuSession::launch(const GpuGraph& graph) {
  return status_of(cudaGraphLaunch(as_graph(graph.executable_.get()), as_stream(stream_)),
                   "cudaGraphLaunch");
}

Result<double> GpuSession::measure_copy_gbs() {
  constexpr std::int64_t kBytes = std::int64_t{1} << 30;
  constexpr int kRounds = 10;
  FOVEAL_ASSIGN_OR_RETURN(from, allocate(kBytes, "the measurement of copies"));
  FOVEAL_ASSIGN_OR_RETURN(to, allocate(kBytes, "the measurement of copies"));
  double best_us = 0;
  for (int round = 0; round < kRounds; ++round) {
    FOVEAL_ASSIGN_OR_RETURN(
        us, time_us([&] {
          return status_of(cudaMemcpyAsync(to.data(), from.data(), static_cast<std::size_t>(kBytes),
                                           cudaMemcpyDeviceToDevice, as_stream(stream_)),
                           "cudaMemcpyAsync");
        }));
    best_us = round == 0 ? us : std::min(best_us, us);
  }
  return 2 * static_cast<double>(kBytes) / (best_us * 1e3);
}

#else  // without CUDA

namespace {

Status no_cuda() { return Status::unsupported("this build has no CUDA kernels"); }

}  // namespace

void GpuBuffer::Release::operator()(std::byte*) const {}

void GpuGraph::Release::operator()(void*) const {}

Result<std::unique_ptr<GpuSession>> GpuSession::open(std::int32_t) { return no_cuda(); }

GpuSession::~GpuSession() = default;

Result<GpuBuffer> GpuSession::allocate(std::int64_t, std::string_view) { return no_cuda(); }

Status GpuSession::copy(void*, const void*, std::size_t) { return no_cuda(); }

Status GpuSession::wait() { return no_cuda(); }

Result<double> GpuSession::time_us(const std::function<Status()>&) { return no_cuda(); }

Result<GpuGraph> GpuSession::record(const std::function<Status()>&) { return no_cuda(); }

Status GpuSession::launch(const GpuGraph&) { return no_cuda(); }

Result<double> GpuSession::measure_copy_gbs() { return no_cuda(); }

#endif

}  // namespace foveal::tools
