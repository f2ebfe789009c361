// What a planned call costs the host: plan() of a problem that was planned before, by kind of
// problem. Prints one line each; the claim is under 1 us.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>

#include <foveal/plan.hpp>

namespace {

using foveal::AttentionProblem;
using foveal::DType;
using foveal::TensorSpec;

AttentionProblem decode() {
  AttentionProblem p;
  p.q = p.out = TensorSpec::contiguous(DType::kFloat16, {1, 1, 32, 128});
  p.k = p.v = TensorSpec::contiguous(DType::kFloat16, {1, 8192, 8, 128});
  p.seqused_k = TensorSpec::contiguous(DType::kInt32, {1});
  return p;
}

AttentionProblem packed_training() {
  AttentionProblem p;
  p.pass = foveal::Pass::kBackward;
  p.q = p.out = p.dout = p.dq = TensorSpec::contiguous(DType::kBFloat16, {16384, 16, 512});
  p.k = p.v = p.dk = p.dv = TensorSpec::contiguous(DType::kBFloat16, {16384, 8, 512});
  p.lse = p.dlse = TensorSpec::contiguous(DType::kFloat32, {16, 16384});
  p.cu_seqlens_q = p.cu_seqlens_k = TensorSpec::contiguous(DType::kInt32, {5});
  p.max_seqlen_q = p.max_seqlen_k = 4096;
  p.causal = true;
  return p;
}

AttentionProblem paged_append() {
  AttentionProblem p = decode();
  p.k = p.v = TensorSpec::contiguous(DType::kFloat16, {1024, 16, 8, 128});
  p.block_table = TensorSpec::contiguous(DType::kInt32, {1, 512});
  p.k_new = p.v_new = TensorSpec::contiguous(DType::kFloat16, {1, 1, 8, 128});
  p.rotary_cos = p.rotary_sin = TensorSpec::contiguous(DType::kFloat32, {8192, 64});
  return p;
}

/// Nanoseconds of one repeated plan(), the median of rounds.
double repeated_plan_ns(const AttentionProblem& problem) {
  constexpr int kRounds = 21;
  constexpr int kCalls = 10000;
  std::array<double, kRounds> rounds{};
  for (double& round : rounds) {
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < kCalls; ++call) {
      if (!foveal::plan(problem, foveal::Device::cpu(2))) return -1;
    }
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    round = time.count() / kCalls;
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[kRounds / 2];
}

}  // namespace

int main() {
  const std::pair<const char*, AttentionProblem> problems[] = {
      {"decode", decode()},
      {"packed training", packed_training()},
      {"paged append", paged_append()}};
  for (const auto& [name, problem] : problems) {
    const auto planned = foveal::plan(problem, foveal::Device::cpu(2));
    if (!planned) {
      std::fprintf(stderr, "%s: %s\n", name, planned.status().message().c_str());
      return 1;
    }
    std::printf("%-16s %6.0f ns a repeated plan\n", name, repeated_plan_ns(problem));
  }
  return 0;
}
