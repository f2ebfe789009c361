// One small case for every tile and feature of the kernels for prefill and training on a GPU, in
// every kernel that takes it: few enough for `scripts/gpu_tests.py --under compute-sanitizer`.
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernel_case_test.hpp"

namespace foveal::test {
namespace {

/// A headdim for each tile of each family, odd ones among them.
constexpr std::int64_t kHeaddims[] = {24, 64, 96, 128, 192, 250, 256, 320, 384, 448, 512};

/// What a kernel may do beside the plain case.
constexpr std::string_view kForwardFeatures[] = {
    "left=40 right=0",
    "left=20 right=30 sinks=1",
    "causal=1 softcap=7",
    "alibi=heads causal=1",
    "bias=same",
    "bias=fp32 bias_shape=11qk",
    "dropout=0.2 causal=1",
    "causal=1 batch_invariant=1",
    "causal=1 out_layout=misaligned",
    "causal=1 q_layout=misaligned kv_layout=padded",
    "causal=1 softcap=30",
};
constexpr std::string_view kCachedFeatures[] = {
    "k=cache slack_k=9 causal=1",
    "k=paged page=64 causal=1",
    "k=paged page=16",
    "k=cache slack_k=9 leftpad=5 causal=1 sinks=1",
};
constexpr std::string_view kBackwardFeatures[] = {
    "left=40 right=0 deterministic=1",
    "left=20 right=30 sinks=1 dsinks=1",
    "causal=1 softcap=7",
    "alibi=heads causal=1",
    "bias=same dbias=1",
    "dropout=0.2 causal=1",
    "causal=1 dlse=1 deterministic=1",
    "causal=1 fp32_grads=1",
    "causal=1 out_layout=misaligned",
    "causal=1 q_layout=misaligned kv_layout=padded",
    "sinks=1 dsinks=1 dlse=1",
    "causal=1 softcap=30",
};

/// Headdims of every second feature, and of the others.
constexpr const char* kEvenWidths[] = {"64", "96", "256"};
constexpr const char* kOddWidths[] = {"128", "512"};

/// The line's case; a failure of the test below where there is none.
std::optional<Case> case_of_line(const std::string& line) {
  std::string error;
  const auto c = parse_case(line, error);
  if (c && illegal_reason(*c).empty()) return c;
  ADD_FAILURE() << line << ": " << (c ? illegal_reason(*c) : error);
  return std::nullopt;
}

std::vector<Case> cases_of(Pass pass) {
  const std::string name = pass == Pass::kForward ? "forward" : "backward";
  const std::string packed = " lens=150/150,0/5,33/90,140/40 q=packed k=packed hk=2 group=3 ";
  const std::string dense = " lens=70/140,70/140 hk=2 group=2 ";
  std::vector<Case> all;
  const auto add = [&all](const std::string& line) {
    if (const auto c = case_of_line(line)) all.push_back(*c);
  };
  for (const std::string dtype : {"fp16", "bf16", "fp32"}) {
    const std::string start = name + " dtype=" + dtype;
    for (const std::int64_t headdim : kHeaddims) {
      add(start + packed + "causal=1 d=" + std::to_string(headdim));
    }
    const auto features = pass == Pass::kForward
                              ? std::span<const std::string_view>(kForwardFeatures)
                              : kBackwardFeatures;
    for (std::size_t i = 0; i < features.size(); ++i) {
      const auto widths =
          i % 2 == 0 ? std::span<const char* const>(kEvenWidths) : std::span(kOddWidths);
      for (const char* width : widths) {
        add(start + dense + "d=" + width + " " + std::string(features[i]));
      }
    }
    if (pass != Pass::kForward) continue;
    for (const std::string_view feature : kCachedFeatures) {
      for (const char* width : kOddWidths) {
        add(start + dense + "d=" + width + " " + std::string(feature));
      }
    }
  }
  return all;
}

/// The cases with each GPU kernel that takes them.
std::vector<Case> taken_cases(Pass pass) {
  if (usable_kernels_of(pass, DeviceType::kCuda).empty()) return {};
  std::vector<Case> taken;
  for (const Case& c : for_every_kernel(cases_of(pass), DeviceType::kCuda)) {
    if (kernel_takes(BuiltCase(c).bench.problem, {.kernel = c.kernel})) taken.push_back(c);
  }
  return taken;
}

TEST(KernelInstancesList, HoldsLegalCases) {
  EXPECT_EQ(cases_of(Pass::kForward).size(), 3 * (11 + 6 * 3 + 5 * 2 + 4 * 2));
  EXPECT_EQ(cases_of(Pass::kBackward).size(), 3 * (11 + 6 * 3 + 6 * 2));
}

class KernelInstances : public ::testing::TestWithParam<Case> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(KernelInstances);
TEST_P(KernelInstances, MatchTheOracle) { expect_case(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Forward, KernelInstances,
                         ::testing::ValuesIn(taken_cases(Pass::kForward)));
INSTANTIATE_TEST_SUITE_P(Backward, KernelInstances,
                         ::testing::ValuesIn(taken_cases(Pass::kBackward)));

}  // namespace
}  // namespace foveal::test
