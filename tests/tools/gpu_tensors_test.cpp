// Which host memory goes to a GPU, and what a command says where there is none.
#include <vector>

#include <gtest/gtest.h>

#include <foveal/device.hpp>

#include "support/source_directory.hpp"
#include "tests/tools/cli_process.hpp"
#include "tools/gpu_tensors.hpp"

namespace foveal::tools {
namespace {

TEST(GpuTensors, SlicesOfOneTensorAreOneRange) {
  std::vector<std::byte> qkv(2 * 4 * 3 * 16 * 2);
  AttentionProblem problem;
  problem.q = problem.k = problem.v =
      TensorSpec::strided(DType::kFloat16, {2, 4, 1, 16}, {4 * 48, 48, 16, 1});
  AttentionTensors tensors;
  tensors.q = qkv.data();
  tensors.k = qkv.data() + 32;
  tensors.v = qkv.data() + 64;
  std::vector<std::byte> out(2 * 4 * 16 * 2);
  problem.out = TensorSpec::contiguous(DType::kFloat16, {2, 4, 1, 16});
  tensors.out = out.data();
  const AttentionProblem both[] = {problem, problem};
  const std::vector<HostRange> ranges = operand_ranges(both, tensors);
  ASSERT_EQ(ranges.size(), 2u) << "qkv, and out, each once";
  std::size_t bytes = 0;
  for (const HostRange& range : ranges) bytes += range.bytes;
  EXPECT_EQ(bytes, qkv.size() + out.size());
}

TEST(GpuTensors, RangesReachToBothSidesOfNegativeStrides) {
  std::vector<float> rows(30);
  AttentionProblem problem;
  problem.q = TensorSpec::strided(DType::kFloat32, {1, 3, 1, 10}, {30, -10, 10, 1});
  problem.k = TensorSpec::contiguous(DType::kFloat32, {1, 0, 1, 10});
  AttentionTensors tensors;
  tensors.q = rows.data() + 20;
  tensors.k = rows.data();
  const std::vector<HostRange> ranges = operand_ranges({&problem, 1}, tensors);
  ASSERT_EQ(ranges.size(), 1u) << "an operand without elements has no memory";
  EXPECT_EQ(ranges[0].begin, reinterpret_cast<const std::byte*>(rows.data()));
  EXPECT_EQ(ranges[0].bytes, rows.size() * sizeof(float));
}

bool has_gpu() { return device_info(Device::cuda(0)).is_ok(); }

std::string example(const char* name) {
  return test::source_directory() + "/examples/data/" + name + ".safetensors";
}

TEST(CliGpu, SaysThatThereIsNone) {
  if (has_gpu()) GTEST_SKIP() << "there is one";
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"run", example("minilm-packed-layer0"), "--device", "cuda:0"},
        {"bench", test::source_directory() + "/bench/manifests/foundation.json", "--device",
         "cuda:0"},
        {"devices", "--device", "cuda:0", "--measure"}}) {
    const CliRun run = run_cli(arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments.front();
    EXPECT_TRUE(is_one_error_line(run.err)) << run.err;
    EXPECT_NE(run.err.find("device cuda:0"), std::string::npos) << run.err;
  }
}

TEST(CliGpu, ChecksTheExamples) {
  if (!has_gpu()) GTEST_SKIP() << device_info(Device::cuda(0)).status().message();
  for (const char* name : {"minilm-packed-layer0", "minilm-packed-layer5", "smollm2-causal-layer18",
                           "smollm2-paged-decode-layer18"}) {
    for (const char* dtype : {"fp16", "bf16", "fp32"}) {
      std::vector<std::string> arguments{"run",     example(name), "--device", "cuda:0",
                                         "--dtype", dtype,         "--json"};
      // The file's own answers are those of its own dtype.
      const CliRun run = run_cli(arguments);
      EXPECT_EQ(run.exit_code, 0) << name << " " << dtype << ": " << run.err;
      ASSERT_FALSE(run.json().is_discarded());
    }
    const CliRun checked = run_cli({"run", example(name), "--device", "cuda:0", "--check"});
    EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
  }
}

TEST(CliGpu, BenchesAManifest) {
  if (!has_gpu()) GTEST_SKIP() << device_info(Device::cuda(0)).status().message();
  const CliRun run = run_cli({"bench", test::source_directory() + "/bench/manifests/decode.json",
                              "--device", "cuda:0", "--only", "decode-b1-h16-kv1024", "--rounds",
                              "3", "--min-sample-ms", "1", "--json", "-"});
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  const nlohmann::json json = run.json();
  ASSERT_FALSE(json.is_discarded());
  const nlohmann::json& row = json.at("workloads").at(0);
  EXPECT_GT(row.at("time_us").at("median"), 0);
  EXPECT_GT(row.at("input_copies"), 1) << "4 MB of keys and values would stay in L2";
  EXPECT_EQ(json.at("device").at("type"), "cuda");
}

}  // namespace
}  // namespace foveal::tools
