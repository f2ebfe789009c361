// A project that uses an installed foveal through find_package: three queries over eight keys,
// causal. All queries are 0, so each row is the mean of the values it sees and its lse is the
// logarithm of their number.
#include <cmath>
#include <cstdio>
#include <vector>

#include <foveal/attention.hpp>

int main() {
  constexpr std::int64_t kRows = 3, kKeys = 8, kHeadDim = 16;
  std::vector<float> q(kRows * kHeadDim, 0.0f), k(kKeys * kHeadDim, 1.0f), v(kKeys * kHeadDim);
  std::vector<float> out(kRows * kHeadDim), lse(kRows);
  for (std::int64_t j = 0; j < kKeys; ++j) {
    for (std::int64_t d = 0; d < kHeadDim; ++d) v[j * kHeadDim + d] = static_cast<float>(j);
  }

  using foveal::DType;
  using foveal::TensorSpec;
  foveal::AttentionProblem problem;
  problem.q = problem.out = TensorSpec::contiguous(DType::kFloat32, {1, kRows, 1, kHeadDim});
  problem.k = problem.v = TensorSpec::contiguous(DType::kFloat32, {1, kKeys, 1, kHeadDim});
  problem.lse = TensorSpec::contiguous(DType::kFloat32, {1, 1, kRows});
  problem.causal = true;
  const foveal::AttentionTensors tensors{
      .q = q.data(), .k = k.data(), .v = v.data(), .out = out.data(), .lse = lse.data()};
  if (const foveal::Status status = foveal::forward(problem, tensors); !status) {
    std::printf("forward: %s\n", status.message().c_str());
    return 1;
  }

  int wrong = 0;
  for (std::int64_t i = 0; i < kRows; ++i) {
    const auto seen = static_cast<float>(kKeys - kRows + i + 1);  // keys 0 .. seen - 1
    wrong += std::fabs(lse[i] - std::log(seen)) > 1e-6f;
    for (std::int64_t d = 0; d < kHeadDim; ++d) {
      wrong += std::fabs(out[i * kHeadDim + d] - (seen - 1) / 2) > 1e-6f;
    }
  }

  // An error comes back as a value that says what is wrong.
  problem.k = problem.v = TensorSpec::contiguous(DType::kFloat32, {1, kKeys, 1, kHeadDim + 1});
  const foveal::Status refused = foveal::forward(problem, tensors);
  wrong += refused.code() != foveal::StatusCode::kInvalidArgument || refused.message().empty();

  std::printf("out[0] = %g %g %g, %d wrong\n", out[0], out[kHeadDim], out[2 * kHeadDim], wrong);
  return wrong == 0 ? 0 : 1;
}
