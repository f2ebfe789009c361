// cpu_merge: the union of two sets of keys, in any dtypes and layouts, in place, and of nothing.
#include <cmath>
#include <cstdint>
#include <limits>
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

constexpr const char* kKernel = "cpu_merge";
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Part {
  float out = 0;
  float lse = -kInfinity;
};

AttentionProblem one_value() {
  AttentionProblem problem;
  problem.out = problem.out_a = problem.out_b =
      TensorSpec::contiguous(DType::kFloat32, {1, 1, 1, 1});
  problem.lse = problem.lse_a = problem.lse_b = TensorSpec::contiguous(DType::kFloat32, {1, 1, 1});
  return problem;
}

Part merge_values(const Part& a, const Part& b) {
  Part merged{kNan, kNan};
  AttentionTensors tensors;
  tensors.out_a = &a.out;
  tensors.lse_a = &a.lse;
  tensors.out_b = &b.out;
  tensors.lse_b = &b.lse;
  tensors.out = &merged.out;
  tensors.lse = &merged.lse;
  const Status status = merge(one_value(), tensors);
  EXPECT_TRUE(status) << status.message();
  return merged;
}

TEST(CpuMerge, NothingAndNothingIsNothing) {
  const Part merged = merge_values({}, {});
  EXPECT_EQ(merged.out, 0.0f);
  EXPECT_EQ(merged.lse, -kInfinity);
}

TEST(CpuMerge, NothingIsNeutralWhateverLiesInIt) {
  for (const float junk : {0.0f, kNan, kInfinity}) {
    for (const auto& merged : {merge_values({junk, -kInfinity}, {2.0f, 0.7f}),
                               merge_values({2.0f, 0.7f}, {junk, -kInfinity})}) {
      EXPECT_EQ(merged.out, 2.0f);
      EXPECT_EQ(merged.lse, 0.7f);
    }
    EXPECT_EQ(merge_values({junk, -kInfinity}, {junk, -kInfinity}).out, 0.0f);
  }
}

TEST(CpuMerge, WeighsByTheLse) {
  // Six keys of mean 2.5 and two of mean 6.5, all logits 0.
  const Part merged = merge_values({2.5f, std::log(6.0f)}, {6.5f, std::log(2.0f)});
  EXPECT_NEAR(merged.out, 3.5f, 1e-6);
  EXPECT_NEAR(merged.lse, std::log(8.0f), 1e-6);
  const Part far = merge_values({3.0f, -92000.0f}, {5.0f, -92724.0f});
  EXPECT_EQ(far.out, 3.0f);
  EXPECT_EQ(far.lse, -92000.0f);
}

TEST(CpuMerge, NanOfAPartWithKeysIsSeen) {
  EXPECT_TRUE(std::isnan(merge_values({kNan, 0.0f}, {2.0f, 0.7f}).out));
  EXPECT_TRUE(std::isnan(merge_values({1.0f, kNan}, {2.0f, 0.7f}).lse));
}

/// Fills both parts of `bench`: some rows without keys in one part, some in both.
void fill_parts(Workbench& bench) {
  test::Random random(11);
  for (const char* name : {"out_a", "out_b"}) {
    bench.fill(name, [&](const Index&) { return random.normal(); });
  }
  for (const char* name : {"lse_a", "lse_b"}) {
    bench.fill(name, [&](const Index&) {
      return random.chance(0.3) ? -static_cast<double>(kInfinity) : 3.0 * random.normal();
    });
  }
}

void expect_union(const Workbench& bench, const std::vector<double>& out_a, double tolerance) {
  const std::vector<double> out = bench.at("out").values();
  const std::vector<double> out_b = bench.at("out_b").values();
  const TensorSpec& spec = bench.problem.out;
  std::size_t place = 0;
  test::for_each_index(spec, [&](const Index& at) {
    const Index row = spec.rank == 4 ? Index{at[0], at[2], at[1], 0} : Index{at[1], at[0], 0, 0};
    const double weight_a = std::exp(bench.at("lse_a").get(row));
    const double weight_b = std::exp(bench.at("lse_b").get(row));
    const double sum = weight_a + weight_b;
    const double expected =
        sum == 0 ? 0 : (weight_a * out_a[place] + weight_b * out_b[place]) / sum;
    EXPECT_NEAR(out[place], expected, tolerance) << place;
    if (sum == 0) {
      EXPECT_EQ(bench.at("lse").get(row), -kInfinity);
    } else {
      EXPECT_NEAR(bench.at("lse").get(row), std::log(sum), 1e-5);
    }
    ++place;
  });
}

TEST(CpuMerge, EveryMixOfDtypesAndLayouts) {
  const DType dtypes[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32};
  for (const DType out : dtypes) {
    for (const DType a : dtypes) {
      for (const DType b : dtypes) {
        Workbench bench;
        bench.problem.pass = Pass::kMerge;
        bench.add("out", TensorSpec::bhsd(out, 2, 70, 3, 5));
        bench.add("out_a", TensorSpec::contiguous(a, {2, 70, 3, 5}));
        bench.add("out_b", TensorSpec::strided(b, {2, 70, 3, 5}, {1100, 1, 70, 211}));
        for (const char* name : {"lse", "lse_a", "lse_b"}) {
          bench.add(name, TensorSpec::contiguous(DType::kFloat32, {2, 3, 70}));
        }
        fill_parts(bench);
        const std::vector<double> out_a = bench.at("out_a").values();
        bench.freeze();
        ASSERT_TRUE(bench.run({.kernel = kKernel, .num_threads = 2}));
        EXPECT_TRUE(bench.check_memory());
        expect_union(bench, out_a, out == DType::kFloat32 ? 1e-6 : 2e-2);
      }
    }
  }
}

TEST(CpuMerge, OutMayBeTheFirstPart) {
  Workbench bench;
  bench.problem.pass = Pass::kMerge;
  for (const char* name : {"out", "out_a", "out_b"}) {
    bench.add(name, TensorSpec::contiguous(DType::kFloat16, {90, 4, 33}));
  }
  for (const char* name : {"lse", "lse_a", "lse_b"}) {
    bench.add(name, TensorSpec::contiguous(DType::kFloat32, {4, 90}));
  }
  fill_parts(bench);
  const std::vector<double> out_a = bench.at("out_a").values();
  bench.fill("out", [&](const Index& at) { return bench.at("out_a").get(at); });
  bench.tensors.out_a = bench.tensors.out;
  ASSERT_TRUE(bench.run({.kernel = kKernel, .num_threads = 3}));
  expect_union(bench, out_a, 2e-3);
}

TEST(CpuMerge, WithoutLse) {
  Workbench bench;
  bench.problem.pass = Pass::kMerge;
  for (const char* name : {"out", "out_a", "out_b"}) {
    bench.add(name, TensorSpec::contiguous(DType::kFloat32, {1, 1, 1, 2}));
  }
  for (const char* name : {"lse_a", "lse_b"}) {
    bench.add(name, TensorSpec::contiguous(DType::kFloat32, {1, 1, 1}));
    bench.fill(name, 0.0);
  }
  bench.fill("out_a", 1.0);
  bench.fill("out_b", 2.0);
  ASSERT_TRUE(bench.run({.kernel = kKernel}));
  EXPECT_EQ(bench.at("out").values(), (std::vector<double>{1.5, 1.5}));
}

TEST(CpuMerge, EmptyTensorsAreNoError) {
  for (const std::int64_t rows : {0, 5}) {
    AttentionProblem problem;
    problem.out = problem.out_a = problem.out_b =
        TensorSpec::contiguous(DType::kFloat32, {rows, rows == 0 ? 3 : 0, 8});
    problem.lse_a = problem.lse_b =
        TensorSpec::contiguous(DType::kFloat32, {rows == 0 ? 3 : 0, rows});
    const Status status = merge(problem, AttentionTensors{});
    EXPECT_TRUE(status) << status.message();
  }
}

TEST(CpuMerge, RefusesGpus) {
  DeviceInfo gpu;
  gpu.type = DeviceType::kCuda;
  gpu.name = "NVIDIA H200";
  EXPECT_EQ(kMerge.usable(gpu).message(), "cpu_merge runs on the CPU; the device is NVIDIA H200");
}

}  // namespace
}  // namespace foveal::cpu
