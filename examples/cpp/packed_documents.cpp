// Documents of different lengths, packed one after the other without padding, causal, 8 query heads
// on 2 key/value heads. No token sees another document.
//
//   c++ -std=c++20 packed_documents.cpp $(pkg-config --cflags --libs foveal) && ./a.out
#include <cstdint>
#include <cstdio>
#include <foveal/attention.hpp>
#include <random>
#include <vector>

int main() {
  constexpr std::int64_t kHeadsQ = 8, kHeadsK = 2, kHeadDim = 64;
  const std::vector<std::int32_t> cu_seqlens{0, 5, 5, 96, 160};  // lengths 5, 0, 91, 64
  const std::int64_t total = cu_seqlens.back();
  const auto documents = static_cast<std::int64_t>(cu_seqlens.size()) - 1;

  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto normals = [&](std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = normal(random);
    return values;
  };
  const auto q = normals(total * kHeadsQ * kHeadDim);
  const auto k = normals(total * kHeadsK * kHeadDim), v = normals(total * kHeadsK * kHeadDim);
  std::vector<float> out(q.size());

  using foveal::DType, foveal::TensorSpec;
  foveal::AttentionProblem problem;
  problem.q = problem.out = TensorSpec::contiguous(DType::kFloat32, {total, kHeadsQ, kHeadDim});
  problem.k = problem.v = TensorSpec::contiguous(DType::kFloat32, {total, kHeadsK, kHeadDim});
  problem.cu_seqlens_q = problem.cu_seqlens_k =
      TensorSpec::contiguous(DType::kInt32, {documents + 1});
  problem.causal = true;

  const auto plan = foveal::plan(problem, foveal::Device::cpu());
  if (!plan) {
    std::printf("%s\n", plan.status().message().c_str());
    return 1;
  }
  std::printf("%s", to_string(plan->explanation()).c_str());

  const foveal::AttentionTensors tensors{.q = q.data(),
                                         .k = k.data(),
                                         .v = v.data(),
                                         .out = out.data(),
                                         .cu_seqlens_q = cu_seqlens.data(),
                                         .cu_seqlens_k = cu_seqlens.data()};
  // Planned above: this takes the plan from the cache and brings its own workspace.
  if (const foveal::Status status = foveal::forward(problem, tensors); !status) {
    std::printf("%s\n", status.message().c_str());
    return 1;
  }
  // The first token of a document sees itself alone: its output is its own value.
  float worst = 0;
  for (const std::int64_t first : {0, 5, 96}) {
    for (std::int64_t d = 0; d < kHeadDim; ++d) {
      const float difference = out[static_cast<std::size_t>(first * kHeadsQ * kHeadDim + d)] -
                               v[static_cast<std::size_t>(first * kHeadsK * kHeadDim + d)];
      worst = difference * difference > worst ? difference * difference : worst;
    }
  }
  std::printf("first tokens differ from their values by at most %g\n", static_cast<double>(worst));
  return worst < 1e-12f ? 0 : 1;
}
