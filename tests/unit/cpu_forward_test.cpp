// cpu_blocked_fwd in any number of splits, and at shapes that the case grid doesn't have. Accuracy
// over all features is the kernel grid's business.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <foveal/attention.hpp>
#include <foveal/experimental.hpp>

#include "core/half.hpp"
#include "cpu/fwd/config.hpp"
#include "plan/kernel_table.hpp"
#include "support/built_case.hpp"
#include "support/random.hpp"

namespace foveal::cpu {
namespace {

using test::BuiltCase;
using test::Case;
using test::Index;

constexpr const char* kKernel = "cpu_blocked_fwd";

Case case_of(const std::string& line) {
  std::string error;
  const auto parsed = test::parse_case(line, error);
  EXPECT_TRUE(parsed) << error;
  return parsed.value_or(Case{});
}

/// Launches with a number of splits that the plan didn't choose.
std::vector<float> launch_split(BuiltCase& built, std::int64_t num_splits, std::int64_t split_keys,
                                std::vector<float>& lse) {
  const AttentionProblem& problem = built.bench.problem;
  const AttentionGeometry geometry = make_geometry(problem);
  const DeviceInfo device = *device_info(Device::cpu(2));
  planner::KernelConfig config = kBlockedForward.configure(problem, geometry, device);
  config.num_splits = num_splits;
  config.split_keys = split_keys;
  size_workspace(config, tile_math(problem.q.dtype, config.isa), geometry);
  const auto bytes = static_cast<std::size_t>(config.workspace_bytes());
  const std::unique_ptr<std::byte, decltype(&std::free)> workspace(
      static_cast<std::byte*>(std::aligned_alloc(kWorkspaceAlignment, bytes)), &std::free);
  std::fill_n(workspace.get(), bytes, std::byte{0xff});
  std::vector<float> out(static_cast<std::size_t>(problem.out.numel()));
  lse.assign(static_cast<std::size_t>(problem.lse.numel()), 0.0f);
  AttentionTensors tensors = built.bench.tensors;
  tensors.out = out.data();
  tensors.lse = lse.data();
  EXPECT_TRUE(kBlockedForward.launch({.problem = problem,
                                      .geometry = geometry,
                                      .config = config,
                                      .tensors = tensors,
                                      .workspace = workspace.get(),
                                      .stream = nullptr}));
  return out;
}

void expect_near(const std::vector<float>& actual, const std::vector<float>& expected,
                 const std::string& what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::isinf(expected[i])) {
      ASSERT_EQ(actual[i], expected[i]) << what << " " << i;
    } else {
      ASSERT_NEAR(actual[i], expected[i], 2e-6) << what << " " << i;
    }
  }
}

TEST(CpuForward, AnyNumberOfSplitsGivesTheWhole) {
  const char* lines[] = {
      "forward lens=1/1000,1/0,1/70 k=cache hk=2 group=2 d=40 sinks=1 dropout=0.1",
      "forward lens=1/1000,1/0,1/70 k=cache hk=2 group=2 d=40",
      "forward lens=150/600 hk=1 group=1 d=64 left=100 right=20",
      "forward lens=3/500,20/200,0/64 q=packed k=packed hk=1 group=5 d=16 causal=1 alibi=heads",
      "forward lens=100/5,100/400 q=used k=cache hk=1 d=16 causal=1 sinks=1",
  };
  for (const char* line : lines) {
    BuiltCase built(case_of(line));
    std::vector<float> whole_lse, lse;
    const std::vector<float> whole = launch_split(built, 1, 0, whole_lse);
    for (const std::int64_t num_splits : {2, 3, 7, 16}) {
      const std::vector<float> out = launch_split(built, num_splits, 0, lse);
      expect_near(out, whole, std::string("out ") + line);
      expect_near(lse, whole_lse, std::string("lse ") + line);
    }
    for (const std::int64_t split_keys : {kForwardKeys, 2 * kForwardKeys, 5 * kForwardKeys}) {
      const std::vector<float> out = launch_split(built, 1, split_keys, lse);
      expect_near(out, whole, std::string("out, fixed splits ") + line);
      expect_near(lse, whole_lse, std::string("lse, fixed splits ") + line);
    }
  }
}

// The plan -------------------------------------------------------------------

TEST(CpuForward, ValueHeadsOfAnotherSize) {
  for (const auto& [headdim, headdim_v] : {std::pair{48, 128}, {192, 24}, {1, 512}}) {
    test::Workbench bench;
    const auto spec = [](std::initializer_list<std::int64_t> shape) {
      return TensorSpec::contiguous(DType::kFloat32, shape);
    };
    bench.problem.causal = true;
    bench.add("q", spec({1, 70, 2, headdim}));
    bench.add("k", spec({1, 90, 2, headdim}));
    bench.add("v", spec({1, 90, 2, headdim_v}));
    bench.add("out", spec({1, 70, 2, headdim_v}));
    test::Random random(5);
    for (const char* name : {"q", "k", "v"}) {
      bench.fill(name, [&](const Index&) { return random.normal(); });
    }
    bench.freeze();
    ASSERT_TRUE(bench.run({.kernel = kKernel, .num_threads = 2}));
    EXPECT_TRUE(bench.check_memory());
    const auto expected = oracle(bench.problem, bench.tensors);
    ASSERT_TRUE(expected) << expected.status().message();
    const std::vector<double> out = bench.at("out").values();
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected->out[i], 1e-5) << i;
  }
}

/// Address space that is hardly touched: pages appear when they are written.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseMemory() {
    if (mapped()) munmap(data_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  [[nodiscard]] bool mapped() const { return data_ != MAP_FAILED; }
  [[nodiscard]] void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

TEST(CpuForward, StridesPast31Bits) {
  constexpr std::int64_t kFar = std::int64_t{1} << 31;  // elements between the two heads
  const SparseMemory far(2 * (static_cast<std::size_t>(kFar) + 8 * 64));
  if (!far.mapped()) GTEST_SKIP() << "no address space of 4 GiB";
  const TensorSpec near_spec = TensorSpec::bhsd(DType::kFloat16, 1, 8, 2, 64);
  TensorSpec far_spec = near_spec;
  far_spec.strides[2] = kFar;
  AttentionProblem problem;
  problem.q = problem.k = problem.v = problem.out = near_spec;
  std::vector<Half> q, k, v, expected(1024), out(1024);
  test::Random random(3);
  for (auto* values : {&q, &k, &v}) {
    for (int i = 0; i < 1024; ++i) {
      values->push_back(from_float<Half>(static_cast<float>(random.normal())));
    }
  }
  AttentionTensors tensors;
  tensors.q = q.data();
  tensors.k = k.data();
  tensors.v = v.data();
  tensors.out = expected.data();
  ASSERT_TRUE(forward(problem, tensors));
  auto* memory = static_cast<Half*>(far.data());
  const auto spread = [&](const std::vector<Half>& values) {
    std::copy_n(values.data(), 512, memory);
    std::copy_n(values.data() + 512, 512, memory + kFar);
  };
  for (const auto& [spec, data, values] :
       {std::tuple{&AttentionProblem::q, &AttentionTensors::q, &q},
        std::tuple{&AttentionProblem::k, &AttentionTensors::k, &k},
        std::tuple{&AttentionProblem::v, &AttentionTensors::v, &v}}) {
    AttentionProblem far_problem = problem;
    AttentionTensors far_tensors = tensors;
    far_problem.*spec = far_spec;
    far_tensors.*data = memory;
    far_tensors.out = out.data();
    spread(*values);
    ASSERT_TRUE(forward(far_problem, far_tensors));
    EXPECT_EQ(std::memcmp(out.data(), expected.data(), 2048), 0);
  }
  problem.out = far_spec;
  tensors.out = memory;
  ASSERT_TRUE(forward(problem, tensors));
  EXPECT_EQ(std::memcmp(memory, expected.data(), 1024), 0);
  EXPECT_EQ(std::memcmp(memory + kFar, expected.data() + 512, 1024), 0);
}

}  // namespace
}  // namespace foveal::cpu
