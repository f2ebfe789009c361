// cpu_append: where new tokens go, how they turn, and that nothing else changes.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <foveal/attention.hpp>

#include "plan/kernel_table.hpp"
#include "support/case_runner.hpp"
#include "support/random.hpp"
#include "support/workbench.hpp"

namespace foveal::cpu {
namespace {

using test::Index;
using test::Workbench;

constexpr const char* kKernel = "cpu_append";
constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kDim = 6;

TensorSpec floats(std::initializer_list<std::int64_t> shape) {
  return TensorSpec::contiguous(DType::kFloat32, shape);
}

/// A number that tells where it came from.
double tag(const Index& at) {
  return 1000.0 * static_cast<double>(at[0]) + 100.0 * static_cast<double>(at[1]) +
         10.0 * static_cast<double>(at[2]) + static_cast<double>(at[3]);
}

void add_lengths(Workbench& bench, const char* name, const std::vector<std::int32_t>& values) {
  bench.add(name,
            TensorSpec::contiguous(DType::kInt32, {static_cast<std::int64_t>(values.size())}));
  bench.fill(name, [&](const Index& at) {
    return static_cast<double>(values.at(static_cast<std::size_t>(at[0])));
  });
}

/// A cache of -1 and two new tokens a sequence.
Workbench two_new_tokens(const std::vector<std::int32_t>& seqused_k, const TensorSpec& cache) {
  Workbench bench;
  bench.problem.pass = Pass::kAppend;
  const auto batch = static_cast<std::int64_t>(seqused_k.size());
  for (const char* name : {"k", "v"}) {
    bench.add(name, cache);
    bench.fill(name, -1.0);
  }
  for (const char* name : {"k_new", "v_new"}) {
    bench.add(name, floats({batch, 2, kHeads, kDim}));
    bench.fill(name, tag);
  }
  add_lengths(bench, "seqused_k", seqused_k);
  return bench;
}

/// Row `row` of entry `entry` of k and v holds new token i of sequence b.
void expect_token(const Workbench& bench, std::int64_t entry, std::int64_t row, std::int64_t b,
                  std::int64_t i) {
  for (const char* name : {"k", "v"}) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t d = 0; d < kDim; ++d) {
        EXPECT_EQ(bench.at(name).get({entry, row, h, d}), tag({b, i, h, d}))
            << name << " " << entry << " " << row;
      }
    }
  }
}

/// Elements of k that an append changed.
std::int64_t changed(const Workbench& bench) {
  std::int64_t count = 0;
  for (const double value : bench.at("k").values()) count += value != -1.0;
  return count;
}

TEST(CpuAppend, GoesBehindWhatTheCacheHolds) {
  for (const std::int64_t num_threads : {1, 3}) {
    Workbench bench = two_new_tokens({0, 3, 6}, floats({3, 8, kHeads, kDim}));
    ASSERT_TRUE(bench.run({.kernel = kKernel, .num_threads = num_threads}));
    const std::int64_t begins[] = {0, 3, 6};
    for (std::int64_t b = 0; b < 3; ++b) {
      for (std::int64_t i = 0; i < 2; ++i) expect_token(bench, b, begins[b] + i, b, i);
    }
    EXPECT_EQ(changed(bench), 3 * 2 * kHeads * kDim);
  }
}

TEST(CpuAppend, WritesTheCacheRowOfTheSequence) {
  Workbench bench = two_new_tokens({1, 2}, floats({4, 8, kHeads, kDim}));
  add_lengths(bench, "cache_batch_idx", {3, 0});
  ASSERT_TRUE(bench.run({.kernel = kKernel}));
  for (std::int64_t i = 0; i < 2; ++i) {
    expect_token(bench, 3, 1 + i, 0, i);
    expect_token(bench, 0, 2 + i, 1, i);
  }
  EXPECT_EQ(changed(bench), 2 * 2 * kHeads * kDim);
}

TEST(CpuAppend, CrossesPages) {
  Workbench bench = two_new_tokens({3, 0}, floats({5, 4, kHeads, kDim}));
  bench.add("block_table", TensorSpec::contiguous(DType::kInt32, {2, 2}));
  const std::int32_t pages[2][2] = {{4, 1}, {2, -1}};
  bench.fill("block_table",
             [&](const Index& at) { return static_cast<double>(pages[at[0]][at[1]]); });
  ASSERT_TRUE(bench.run({.kernel = kKernel}));
  expect_token(bench, 4, 3, 0, 0);
  expect_token(bench, 1, 0, 0, 1);
  expect_token(bench, 2, 0, 1, 0);
  expect_token(bench, 2, 1, 1, 1);
  EXPECT_EQ(changed(bench), 2 * 2 * kHeads * kDim);
}

TEST(CpuAppend, StridedCachesAndTokens) {
  // [batch, heads, dim, seqlen] in memory, as a cache kept for k^T.
  const TensorSpec cache = TensorSpec::strided(DType::kFloat32, {2, 8, kHeads, kDim},
                                               {kHeads * kDim * 8, 1, kDim * 8, 8});
  Workbench bench = two_new_tokens({0, 5}, cache);
  ASSERT_TRUE(bench.run({.kernel = kKernel}));
  for (std::int64_t i = 0; i < 2; ++i) {
    expect_token(bench, 0, i, 0, i);
    expect_token(bench, 1, 5 + i, 1, i);
  }
  EXPECT_EQ(changed(bench), 2 * 2 * kHeads * kDim);
}

TEST(CpuAppend, CopiesBitForBitWithoutRotation) {
  // Signalling NaNs and subnormals of fp16 survive.
  AttentionProblem problem;
  problem.k = problem.v = TensorSpec::contiguous(DType::kFloat16, {1, 4, 1, 4});
  problem.k_new = problem.v_new = TensorSpec::contiguous(DType::kFloat16, {1, 1, 1, 4});
  problem.seqused_k = TensorSpec::contiguous(DType::kInt32, {1});
  const std::uint16_t fresh[4] = {0x7c01, 0xfd55, 0x0001, 0x8000};
  std::uint16_t k[16] = {}, v[16] = {};
  const std::int32_t used = 2;
  AttentionTensors tensors;
  tensors.k = k;
  tensors.v = v;
  tensors.k_new = tensors.v_new = fresh;
  tensors.seqused_k = &used;
  ASSERT_TRUE(append_kv(problem, tensors));
  EXPECT_EQ(std::memcmp(k + 8, fresh, sizeof fresh), 0);
  EXPECT_EQ(std::memcmp(v + 8, fresh, sizeof fresh), 0);
}

/// One head of 6, of which 4 turn; tables of angle = position * (pair + 1) / 10.
Workbench rotary_bench(bool interleaved, bool causal) {
  Workbench bench = two_new_tokens({3}, floats({1, 8, kHeads, kDim}));
  bench.problem.rotary_interleaved = interleaved;
  bench.problem.causal = causal;
  bench.add("rotary_cos", floats({8, 2}));
  bench.add("rotary_sin", floats({8, 2}));
  const auto angle = [](const Index& at) {
    return static_cast<double>(at[0]) * static_cast<double>(at[1] + 1) / 10.0;
  };
  bench.fill("rotary_cos", [&](const Index& at) { return std::cos(angle(at)); });
  bench.fill("rotary_sin", [&](const Index& at) { return std::sin(angle(at)); });
  bench.add("q", floats({1, 2, 1 * kHeads, kDim}));
  bench.fill("q", tag);
  bench.add("q_rotated", floats({1, 2, 1 * kHeads, kDim}));
  return bench;
}

double turned(const Index& at, std::int64_t position, bool interleaved) {
  const std::int64_t d = at[3];
  if (d >= 4) return tag(at);
  const std::int64_t pair = interleaved ? d / 2 : d % 2;
  const bool is_second = interleaved ? d % 2 == 1 : d >= 2;
  Index first = at, second = at;
  first[3] = interleaved ? 2 * pair : pair;
  second[3] = interleaved ? 2 * pair + 1 : pair + 2;
  const double angle = static_cast<double>(position) * static_cast<double>(pair + 1) / 10.0;
  return is_second ? tag(first) * std::sin(angle) + tag(second) * std::cos(angle)
                   : tag(first) * std::cos(angle) - tag(second) * std::sin(angle);
}

TEST(CpuAppend, TurnsKeysAndQueriesByTheirPositions) {
  for (const bool interleaved : {false, true}) {
    for (const bool causal : {false, true}) {
      Workbench bench = rotary_bench(interleaved, causal);
      ASSERT_TRUE(bench.run({.kernel = kKernel}));
      test::for_each_index(bench.problem.q, [&](const Index& at) {
        const std::int64_t i = at[1];
        // Without a mask all rows of q stand at the first new token.
        EXPECT_NEAR(bench.at("q_rotated").get(at), turned(at, causal ? 3 + i : 3, interleaved),
                    1e-3);
        EXPECT_NEAR(bench.at("k").get({0, 3 + i, at[2], at[3]}), turned(at, 3 + i, interleaved),
                    1e-3);
        EXPECT_EQ(bench.at("v").get({0, 3 + i, at[2], at[3]}), tag(at));
      });
    }
  }
}

TEST(CpuAppend, MatchesTheOracle) {
  const char* lines[] = {
      "append dtype=bf16 lens=3/40,1/9,17/17 q=packed k=paged page=16 append=9 rotary=halves "
      "rotary_dim=20 "
      "d=33 hk=2 group=3 causal=1 threads=2",
      "append dtype=fp16 lens=2/70,0/80,5/66 q=packed_used slack_q=2 k=cache append=66 slack_k=3 "
      "rotary=interleaved rotary_dim=64 rotary_fp32=1 d=64 cache_batch_idx=1 threads=3",
      "append lens=1/5,4/300 q=used slack_q=40 k=cache leftpad=2 append=1 rotary=halves "
      "rotary_dim=2 d=2 q_layout=dim_outermost kv_layout=reversed out_layout=padded left=3",
  };
  for (const char* line : lines) {
    std::string error;
    const auto c = test::parse_case(line, error);
    ASSERT_TRUE(c) << error;
    EXPECT_TRUE(test::case_passes(*c));
  }
}

TEST(CpuAppend, RefusesGpus) {
  DeviceInfo gpu;
  gpu.type = DeviceType::kCuda;
  gpu.name = "NVIDIA H200";
  EXPECT_EQ(kAppend.usable(gpu).message(), "cpu_append runs on the CPU; the device is NVIDIA H200");
}

}  // namespace
}  // namespace foveal::cpu
