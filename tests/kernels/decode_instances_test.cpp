// One small case for every instance, schedule and feature of the kernels that decode, append and
// merge on a GPU: few enough for `scripts/gpu_tests.py --under compute-sanitizer`.
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernel_case_test.hpp"

namespace foveal::test {
namespace {

constexpr std::string_view kLines[] = {
    // The direct kernel: one block a head, clusters, a length on the device.
    "forward dtype=fp16 lens=1/50 hk=3 group=2",
    "forward dtype=bf16 lens=1/50 hk=3 group=2",
    "forward dtype=fp16 lens=1/600 hk=2 group=4 d=128",
    "forward dtype=bf16 lens=1/600 hk=2 group=4 d=128",
    "forward dtype=fp16 lens=2/601 k=cache slack_k=9 hk=2 group=4 d=256 causal=1",
    "forward dtype=bf16 lens=2/601 k=cache slack_k=9 hk=2 group=4 d=256 causal=1",
    "forward dtype=fp16 lens=1/600 hk=2 sinks=1 fp32_out=1 left=100",
    "forward dtype=fp16 lens=1/600 hk=2 out_layout=misaligned",
    "forward dtype=fp16 lens=1/600 k=paged page=48 hk=2 group=4",
    "forward dtype=bf16 lens=1/600 k=paged page=16 hk=2 group=4 left=200",
    "forward dtype=fp16 lens=1/600 k=paged page=256 hk=2 group=4 d=128",
    "forward dtype=bf16 lens=2/90 k=paged page=16 hk=40 d=128 causal=1",
    "forward dtype=fp16 lens=1/600 k=paged page=64 hk=2 d=256",
    "forward dtype=bf16 lens=1/600 k=paged page=32 hk=2 d=256 append=2",
    // The general kernel: every instance, in a cluster or alone.
    "forward dtype=fp16 lens=1/600 k=paged page=24 hk=2 group=4",
    "forward dtype=bf16 lens=1/600 hk=2 group=4 softcap=7",
    "forward dtype=fp16 lens=1/600 k=paged page=7 hk=2 group=4 d=128",
    "forward dtype=bf16 lens=1/600 k=paged page=1 hk=2 d=120",
    "forward dtype=fp16 lens=1/600 hk=2 group=2 d=200 softcap=5",
    "forward dtype=bf16 lens=1/600 hk=2 group=2 d=256 alibi=heads",
    "forward dtype=fp16 lens=1/600 hk=2 group=2 d=512",
    "forward dtype=bf16 lens=1/300 hk=2 group=2 d=320",
    "forward dtype=fp16 lens=3/300 hk=2 group=5 causal=1",
    "forward dtype=bf16 lens=3/300 hk=2 group=5 causal=1",
    "forward dtype=fp16 lens=16/300 hk=2 group=3 d=128 causal=1 left=40",
    "forward dtype=bf16 lens=16/300 hk=2 group=3 d=128",
    "forward dtype=fp16 lens=5/300 hk=2 group=3 d=256",
    "forward dtype=bf16 lens=5/300 hk=2 group=3 d=256",
    "forward dtype=fp16 lens=1/70,1/70 hk=2 d=128 kv_layout=misaligned",
    "forward dtype=fp16 lens=1/70,1/70 hk=2 d=99 kv_layout=padded q_layout=padded",
    // Work shared evenly by lengths on the device: the direct kernel for that, dense and in pages.
    "forward dtype=fp16 lens=1/900,1/3,1/0,1/450 k=cache slack_k=9 hk=2 group=4",
    "forward dtype=bf16 lens=1/900,1/3,1/0,1/450 k=cache slack_k=9 hk=2 group=4 sinks=1",
    "forward dtype=fp16 lens=1/900,1/3,1/0,1/450 k=cache slack_k=9 hk=2 group=4 d=128",
    "forward dtype=bf16 lens=2/9000,2/3,2/1,2/1450 k=cache slack_k=9 hk=1 group=3 d=128 causal=1",
    "forward dtype=fp16 lens=1/900,1/3,1/0,1/450 k=cache slack_k=9 hk=2 d=256 left=99",
    "forward dtype=bf16 lens=1/900,1/3,1/0,1/450 k=cache slack_k=9 hk=2 d=256 fp32_out=1",
    "forward dtype=fp16 lens=1/3000,1/3,1/0,1/450 k=paged page=64 hk=3 group=8",
    "forward dtype=bf16 lens=1/900,1/3,1/0,1/450 k=paged page=16 hk=2 group=4",
    "forward dtype=fp16 lens=1/900,1/3,1/2,1/450 k=paged page=32 hk=2 d=128 append=2",
    "forward dtype=bf16 lens=1/9000,1/3,1/40,1/450 k=paged page=64 hk=2 group=4 d=128",
    "forward dtype=fp16 lens=1/900,1/3,1/0,1/450 k=paged page=16 hk=2 d=256 sinks=1 left=200",
    "forward dtype=bf16 lens=1/900,1/3,1/0,1/450 k=paged page=256 hk=2 d=256",
    // The same by the general kernel.
    "forward dtype=fp16 lens=1/900,1/3,1/0,1/450 k=cache slack_k=9 hk=2 group=4 softcap=9",
    "forward dtype=bf16 lens=1/900,1/3,1/0,1/450 k=paged page=24 hk=2 group=4 d=128",
    "forward dtype=fp16 lens=2/300,1/33,0/5 q=packed k=packed hk=2 group=2 d=128 causal=1",
    "forward dtype=fp16 lens=2/300,1/33 q=used k=cache slack_q=1 slack_k=3 leftpad=3 hk=2 d=256",
    "forward dtype=bf16 lens=1/400,1/20 k=cache cache_batch_idx=1 hk=1 d=512",
    // batch_invariant: granules that meet in memory, and parts of a cluster in both kernels.
    "forward dtype=fp16 lens=1/2500,1/3 k=cache slack_k=9 hk=1 group=2 batch_invariant=1",
    "forward dtype=fp16 lens=1/2500,1/3 k=cache slack_k=9 hk=8 batch_invariant=1",
    "forward dtype=fp16 lens=1/2500,1/3 k=paged page=16 hk=8 batch_invariant=1",
    // Append, alone and before attending; merge.
    "forward dtype=fp16 lens=1/300 k=cache slack_k=9 hk=2 append=1 rotary=halves rotary_dim=32",
    "forward dtype=bf16 lens=2/90,2/31 k=paged page=16 hk=2 append=2 rotary=interleaved "
    "rotary_dim=16",
    "append dtype=fp16 lens=1/30,1/7 k=cache slack_k=9 hk=2 append=3 rotary=halves rotary_dim=64",
    "append dtype=bf16 lens=1/30,1/7 k=paged page=4 hk=2 append=3 rotary=interleaved "
    "rotary_dim=32",
    "append dtype=fp32 lens=1/30,1/7 k=cache slack_k=9 hk=2 append=3",
    "merge dtype=fp16 lens=5/0,5/0 hk=2",
    "merge dtype=bf16 lens=5/0 hk=2 d=120 out_layout=padded",
    "merge dtype=fp32 lens=5/0 hk=2 d=99",
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string_view line : kLines) {
    std::string error;
    const auto c = parse_case(line, error);
    if (c && illegal_reason(*c).empty()) {
      all.push_back(*c);
      continue;
    }
    ADD_FAILURE() << line << ": " << (c ? illegal_reason(*c) : error);
  }
  return all;
}

TEST(DecodeInstancesList, HoldsLegalCases) { EXPECT_EQ(cases().size(), std::size(kLines)); }

class DecodeInstances : public ::testing::TestWithParam<Case> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DecodeInstances);
TEST_P(DecodeInstances, MatchTheOracle) { expect_case(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Gpu, DecodeInstances,
                         ::testing::ValuesIn(for_every_kernel(cases(), DeviceType::kCuda)));

}  // namespace
}  // namespace foveal::test
