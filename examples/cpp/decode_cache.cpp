// Decoding over a preallocated cache: one new token a step, 8 query heads on 2 key/value heads, a
// cache [heads, max_len, dim] of which a growing part is valid. One plan serves every step: it
// appends the new token and attends. Each step is checked against attention in double.
//
//   c++ -std=c++20 decode_cache.cpp $(pkg-config --cflags --libs foveal) && ./a.out
//
// `--device cuda:0` records the 200 steps of a turn as one CUDA graph and replays it for the second
// turn, whose lengths are others (../cuda/graph.h says how to compile for that).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <foveal/attention.hpp>
#include <foveal/experimental.hpp>
#include <limits>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "../cuda/graph.h"

namespace {

using foveal::AttentionProblem, foveal::AttentionTensors, foveal::DType, foveal::TensorSpec;

constexpr int kHeadsQ = 8, kHeadsK = 2, kHeadDim = 64, kSteps = 200, kTurns = 2;
constexpr int kMaxLen = kTurns * kSteps;  // The last step fills the cache.

// The weights of a row sum to 1. A kernel for bf16 may round each (by 2^-9 of it at most) before it
// multiplies them with values, which here are at most 1; twice that is allowed.
constexpr double kLimit = 1.0 / 256;

using Bf16 = std::uint16_t;  // The upper half of a float.

Bf16 to_bf16(float value) {  // Towards zero.
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<Bf16>(bits >> 16);
}

/// All that a turn reads and writes, as one block, so that a GPU has it at the same offsets.
struct Memory {
  Bf16 k_cache[kHeadsK][kMaxLen][kHeadDim], v_cache[kHeadsK][kMaxLen][kHeadDim];
  Bf16 q[kSteps][kHeadsQ][kHeadDim];
  Bf16 k_new[kSteps][kHeadsK][kHeadDim], v_new[kSteps][kHeadsK][kHeadDim];
  float out[kSteps][kHeadsQ][kHeadDim];
  std::int32_t valid_len[kSteps];  ///< Tokens in the cache before each step.
};

/// The problem of every step. Dimensions are always [batch, seqlen, heads, dim]; the order in
/// memory is a matter of strides.
AttentionProblem decode_problem() {
  AttentionProblem problem;
  problem.q = TensorSpec::contiguous(DType::kBFloat16, {1, 1, kHeadsQ, kHeadDim});
  problem.out = TensorSpec::contiguous(DType::kFloat32, {1, 1, kHeadsQ, kHeadDim});
  problem.k = problem.v = TensorSpec::bhsd(DType::kBFloat16, 1, kMaxLen, kHeadsK, kHeadDim);
  problem.k_new = problem.v_new =
      TensorSpec::contiguous(DType::kBFloat16, {1, 1, kHeadsK, kHeadDim});
  problem.seqused_k = TensorSpec::contiguous(DType::kInt32, {1});
  return problem;
}

/// Only addresses: `memory` may be a GPU's. The length is read when the step runs, so that a graph
/// goes on where the cache then ends.
AttentionTensors tensors_of(Memory& memory, int step) {
  return {.q = memory.q[step],
          .k = memory.k_cache,
          .v = memory.v_cache,
          .out = memory.out[step],
          .seqused_k = &memory.valid_len[step],
          .k_new = memory.k_new[step],
          .v_new = memory.v_new[step]};
}

/// The steps of a turn on `stream`: null is OpenMP on the CPU. A gpu_launch.
int run_steps(void* context, void* memory, void* workspace, void* stream) {
  const auto& plan = *static_cast<const foveal::Plan*>(context);
  for (int step = 0; step < kSteps; ++step) {
    const foveal::Status status = plan.run(tensors_of(*static_cast<Memory*>(memory), step),
                                           workspace, plan.workspace_bytes(), stream);
    if (status) continue;
    std::fprintf(stderr, "step %d: %s\n", step, status.message().c_str());
    return 1;
  }
  return 0;
}

void set_turn(Memory& memory, int turn, std::mt19937& random) {
  const auto fill = [&](Bf16* values, std::size_t bytes, float limit) {
    std::uniform_real_distribution<float> uniform(-limit, limit);
    for (std::size_t i = 0; i < bytes / sizeof *values; ++i) values[i] = to_bf16(uniform(random));
  };
  fill(memory.q[0][0], sizeof memory.q, 8);  // Queries that prefer some keys clearly.
  fill(memory.k_new[0][0], sizeof memory.k_new, 1);
  fill(memory.v_new[0][0], sizeof memory.v_new, 1);
  for (int step = 0; step < kSteps; ++step) memory.valid_len[step] = turn * kSteps + step;
}

/// The largest difference of a turn from attention in double; infinite where a new token is not in
/// its place in the cache.
double largest_error(const AttentionProblem& problem, Memory& memory) {
  constexpr double kWrong = std::numeric_limits<double>::infinity();
  double worst = 0;
  for (int step = 0; step < kSteps; ++step) {
    // Later steps' tokens lie behind this step's length, where no step looks.
    const auto expected = foveal::oracle(problem, tensors_of(memory, step), {.num_threads = 1});
    if (!expected) return kWrong;
    for (std::size_t i = 0; i < expected->out.size(); ++i) {
      const double error =
          std::abs(memory.out[step][i / kHeadDim][i % kHeadDim] - expected->out[i]);
      if (!(error <= worst)) worst = error == error ? error : kWrong;
    }
    const int at = memory.valid_len[step];
    for (int head = 0; head < kHeadsK; ++head) {
      constexpr std::size_t kRowBytes = kHeadDim * sizeof(Bf16);
      if (std::memcmp(memory.k_cache[head][at], memory.k_new[step][head], kRowBytes) != 0 ||
          std::memcmp(memory.v_cache[head][at], memory.v_new[step][head], kRowBytes) != 0) {
        return kWrong;
      }
    }
  }
  return worst;
}

int fail(const foveal::Status& status) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  const bool has_device = argc == 3 && std::string_view(argv[1]) == "--device";
  if (argc != 1 && !has_device) {
    std::fprintf(stderr, "usage: %s [--device cpu | cuda:0]\n", argv[0]);
    return 2;
  }
  const auto device = foveal::device_from_name(has_device ? argv[2] : "cpu");
  if (!device) return fail(device.status());
  const AttentionProblem problem = decode_problem();
  auto plan = foveal::plan(problem, {.type = device->type, .index = device->index});
  if (!plan) return fail(plan.status());

  const bool on_gpu = device->type == foveal::DeviceType::kCuda;
  std::unique_ptr<gpu_graph, decltype(&gpu_graph_free)> graph(nullptr, gpu_graph_free);
  if (on_gpu) {
    graph.reset(gpu_graph_record(device->index, sizeof(Memory), plan->workspace_bytes(), run_steps,
                                 &*plan));
    if (!graph) return 2;
  }
  struct alignas(foveal::kWorkspaceAlignment) WorkspaceBlock {
    char bytes[foveal::kWorkspaceAlignment];
  };
  std::vector<WorkspaceBlock> workspace(plan->workspace_bytes() / sizeof(WorkspaceBlock) + 1);
  const auto memory = std::make_unique<Memory>();
  // Behind the valid length anything may lie: NaN here.
  std::memset(memory->k_cache, 0xff, sizeof memory->k_cache);
  std::memset(memory->v_cache, 0xff, sizeof memory->v_cache);

  std::mt19937 random(1);
  double worst = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    set_turn(*memory, turn, random);
    const int failed = on_gpu ? gpu_graph_replay(graph.get(), memory.get())
                              : run_steps(&*plan, memory.get(), workspace.data(), nullptr);
    if (failed) return 2;
    worst = std::max(worst, largest_error(problem, *memory));
  }
  std::printf("%d steps by %s, largest error %.2g, at most %.2g is allowed\n", kTurns * kSteps,
              plan->explanation().kernel.c_str(), worst, kLimit);
  return worst <= kLimit ? 0 : 1;
}
