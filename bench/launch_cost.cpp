// What Plan::run costs the host beyond the launch itself: decode plans on a GPU beside a kernel
// that does nothing, launched through the runtime with arguments of the same size. Prints one line
// each; the claim is 5 us.
//
//   build/cuda/bin/foveal_launch_cost      (on a machine with a GPU)
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <foveal/plan.hpp>

#include "bench/read_floor.hpp"

namespace {

using foveal::AttentionProblem;
using foveal::AttentionTensors;
using foveal::DType;
using foveal::TensorSpec;

constexpr std::int64_t kHeads = 16, kKeys = 1024, kHeadDim = 128, kPageSize = 64;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

std::byte* device_memory(std::int64_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, static_cast<std::size_t>(bytes)), "cudaMalloc");
  check(cudaMemset(memory, 0, static_cast<std::size_t>(bytes)), "cudaMemset");
  return static_cast<std::byte*>(memory);
}

/// Microseconds of one call on the host, the median of rounds; the GPU's queue never fills.
template <class Call>
double host_us(cudaStream_t stream, const Call& call) {
  constexpr int kRounds = 201;
  constexpr int kCalls = 100;
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    check(cudaStreamSynchronize(stream), "synchronize");
    rounds.push_back(time.count() / kCalls);
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[kRounds / 2];
}

AttentionProblem dense() {
  AttentionProblem p;
  p.q = p.out = TensorSpec::contiguous(DType::kFloat16, {1, 1, kHeads, kHeadDim});
  p.k = p.v = TensorSpec::bhsd(DType::kFloat16, 1, kKeys, kHeads, kHeadDim);
  return p;
}

AttentionProblem growing() {
  AttentionProblem p = dense();
  p.seqused_k = TensorSpec::contiguous(DType::kInt32, {1});
  return p;
}

AttentionProblem paged() {
  AttentionProblem p = growing();
  p.k = p.v =
      TensorSpec::contiguous(DType::kFloat16, {kKeys / kPageSize, kPageSize, kHeads, kHeadDim});
  p.block_table = TensorSpec::contiguous(DType::kInt32, {1, kKeys / kPageSize});
  return p;
}

AttentionProblem appending() {
  AttentionProblem p = growing();
  p.k_new = p.v_new = TensorSpec::contiguous(DType::kFloat16, {1, 1, kHeads, kHeadDim});
  return p;
}

/// Returns whether it could be planned and run.
bool measure(const char* name, const AttentionProblem& problem, const AttentionTensors& tensors,
             double empty_us, cudaStream_t stream) {
  const auto plan = foveal::plan(problem, foveal::Device::cuda(0));
  if (!plan) {
    std::fprintf(stderr, "%s: %s\n", name, plan.status().message().c_str());
    return false;
  }
  const std::size_t workspace_bytes = plan->workspace_bytes();
  std::byte* workspace = device_memory(static_cast<std::int64_t>(workspace_bytes) + 1);
  foveal::Status failed = foveal::Status::ok();
  const double us = host_us(stream, [&] {
    const foveal::Status status = plan->run(tensors, workspace, workspace_bytes, stream);
    if (!status) failed = status;
  });
  check(cudaFree(workspace), "cudaFree");
  if (!failed) {
    std::fprintf(stderr, "%s: %s\n", name, failed.message().c_str());
    return false;
  }
  std::printf("%-28s %6.2f us a run, %6.2f us beyond an empty launch\n", name, us, us - empty_us);
  return true;
}

}  // namespace

int main() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream), "stream");
  constexpr std::int64_t kCacheBytes = kHeads * kKeys * kHeadDim * 2;
  AttentionTensors tensors;
  tensors.q = device_memory(kHeads * kHeadDim * 2);
  tensors.out = device_memory(kHeads * kHeadDim * 2);
  tensors.k = device_memory(kCacheBytes);
  tensors.v = device_memory(kCacheBytes);
  tensors.k_new = device_memory(kHeads * kHeadDim * 2);
  tensors.v_new = device_memory(kHeads * kHeadDim * 2);
  tensors.seqused_k = reinterpret_cast<const std::int32_t*>(device_memory(4));
  tensors.block_table = reinterpret_cast<const std::int32_t*>(device_memory(kKeys / kPageSize * 4));

  const double empty_us = host_us(stream, [&] { foveal::bench::launch_nothing(stream); });
  std::printf("%-28s %6.2f us a launch\n", "empty kernel", empty_us);
  bool done = measure("dense", dense(), tensors, empty_us, stream);
  done &= measure("length on the device", growing(), tensors, empty_us, stream);
  done &= measure("pages", paged(), tensors, empty_us, stream);
  done &= measure("append and attend, 2 kernels", appending(), tensors, empty_us, stream);
  return done ? 0 : 1;
}
