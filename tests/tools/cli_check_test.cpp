// foveal run --check: right on real inputs, and it does find what is wrong.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/source_directory.hpp"
#include "tests/tools/cli_process.hpp"
#include "tests/tools/input_file.hpp"
#include "tests/tools/temporary_directory.hpp"

namespace foveal::tools {
namespace {

std::vector<std::string> example_files() {
  std::vector<std::string> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(test::source_directory() + "/examples/data")) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  return files;
}

TEST(CliCheck, ThereAreExamples) { EXPECT_GE(example_files().size(), 4u); }

class CliCheckOfExample : public testing::TestWithParam<std::string> {};

TEST_P(CliCheckOfExample, PassesInEveryDtype) {
  for (const char* dtype : {"", "fp32", "fp16", "bf16"}) {
    std::vector<std::string> arguments{"run", GetParam(), "--check", "--json", "--repeats", "1"};
    if (*dtype != '\0') arguments.insert(arguments.end(), {"--dtype", dtype});
    const CliRun run = run_cli(arguments);
    EXPECT_EQ(run.exit_code, 0) << dtype << run.out << run.err;
    const nlohmann::json check = run.json()["check"];
    EXPECT_EQ(check["passed"], true);
    EXPECT_EQ(check["comparisons"].size(), 4u) << "out and lse, each with oracle and expected";
    for (const auto& comparison : check["comparisons"]) EXPECT_GT(comparison["compared"], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Examples, CliCheckOfExample, testing::ValuesIn(example_files()),
                         [](const auto& info) {
                           std::string name = std::filesystem::path(info.param).stem();
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

/// One key, so that out is v and lse is 0 whatever q is.
InputFile single_key(float v) {
  InputFile input;
  input.zeros("q", FileDType::kF32, {1, 2, 1, 2}).zeros("k", FileDType::kF32, {1, 1, 1, 2});
  input.filled("v", {1, 1, 1, 2}, v).filled("expected_out", {1, 2, 1, 2}, v);
  return input;
}

TEST(CliCheck, WrongExpectedValueExitsWithOneAndNamesThePlace) {
  const TemporaryDirectory directory;
  InputFile input = single_key(3.0f);
  input.floats("expected_out", {1, 2, 1, 2}, {3.0f, 3.0f, 3.001f, 3.0f});
  const std::string path = input.write(directory.file("in.safetensors"));
  const CliRun run = run_cli({"run", path, "--check", "-o", directory.file("out.safetensors")});
  EXPECT_EQ(run.exit_code, 1) << run.out;
  EXPECT_EQ(run.err, "");
  EXPECT_NE(run.out.find("check FAILED"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("FAIL out    expected"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("at [0, 1, 0, 0]"), std::string::npos) << run.out;
  EXPECT_TRUE(std::filesystem::exists(directory.file("out.safetensors")))
      << "the results are there to look at";
}

TEST(CliCheck, ExpectedValueThatIsNotFiniteFails) {
  const TemporaryDirectory directory;
  InputFile input = single_key(3.0f);
  input.filled("expected_lse", {1, 1, 2}, -std::numeric_limits<float>::infinity());
  const CliRun run =
      run_cli({"run", input.write(directory.file("in.safetensors")), "--check", "--json"});
  EXPECT_EQ(run.exit_code, 1);
  const nlohmann::json json = run.json();
  for (const auto& comparison : json["check"]["comparisons"]) {
    const bool wrong = comparison["result"] == "lse" && comparison["against"] == "expected";
    EXPECT_EQ(comparison["passed"], !wrong);
    EXPECT_EQ(comparison["not_finite"], wrong ? 2 : 0);
  }
}

TEST(CliCheck, RowsPastSequsedQAreNotCompared) {
  const TemporaryDirectory directory;
  InputFile input = single_key(3.0f);
  input.integers("seqused_q", {1});
  input.floats("expected_out", {1, 2, 1, 2}, {3.0f, 3.0f, 777.0f, 777.0f});
  const CliRun run =
      run_cli({"run", input.write(directory.file("in.safetensors")), "--check", "--json"});
  EXPECT_EQ(run.exit_code, 0) << run.out;
  const nlohmann::json json = run.json();
  for (const auto& comparison : json["check"]["comparisons"]) {
    EXPECT_EQ(comparison["compared"], comparison["result"] == "out" ? 2 : 1);
  }
}

TEST(CliCheck, ExpectedRowsSelectRows) {
  const TemporaryDirectory directory;
  InputFile input = single_key(3.0f);
  input.integers("expected_rows", {1}).filled("expected_out", {1, 1, 2}, 3.0f);
  const std::string path = input.write(directory.file("in.safetensors"));
  EXPECT_EQ(run_cli({"run", path, "--check"}).exit_code, 0);
  input.filled("expected_out", {1, 1, 2}, 3.01f).write(path);
  EXPECT_EQ(run_cli({"run", path, "--check"}).exit_code, 1);
}

TEST(CliCheck, OracleIsHeldAgainstTheExpectedValuesToo) {
  const TemporaryDirectory directory;
  const std::string path = single_key(3.0f).write(directory.file("right.safetensors"));
  EXPECT_EQ(run_cli({"run", path, "--oracle", "--check"}).exit_code, 0);
  InputFile wrong = single_key(3.0f);
  wrong.filled("expected_out", {1, 2, 1, 2}, 3.01f).write(path);
  EXPECT_EQ(run_cli({"run", path, "--oracle", "--check"}).exit_code, 1);
}

TEST(CliCheck, JsonHasThePlanTheTimesAndTheErrors) {
  const TemporaryDirectory directory;
  InputFile input = dense_input();
  input.normal("dout", {2, 5, 4, 8});
  const CliRun run = run_cli({"run", input.write(directory.file("in.safetensors")), "--check",
                              "--json", "--repeats", "3", "-o", directory.file("out.safetensors")});
  const nlohmann::json report = run.json();
  ASSERT_FALSE(report.is_discarded()) << run.out;
  EXPECT_EQ(run.err, "");
  ASSERT_EQ(report["passes"].size(), 2u);
  EXPECT_EQ(report["passes"][0]["pass"], "forward");
  EXPECT_EQ(report["passes"][1]["pass"], "backward");
  for (const auto& pass : report["passes"]) {
    EXPECT_EQ(pass["time_us"]["repeats"], 3);
    EXPECT_GT(pass["time_us"]["median"], 0);
    EXPECT_GT(pass["gflops"], 0);
    EXPECT_GT(pass["gbs"], 0);
    EXPECT_GE(pass["kernels"].size(), 4u);
    EXPECT_GE(pass["workspace_bytes"], 0);
  }
  std::vector<std::string> compared;
  for (const auto& comparison : report["check"]["comparisons"]) {
    compared.push_back(comparison["result"]);
  }
  EXPECT_EQ(compared, (std::vector<std::string>{"out", "lse", "dq", "dk", "dv"}));
  EXPECT_EQ(report["output"]["tensors"].size(), 5u);
}

/// Every feature of the file convention over shapes that are not round, in each dtype: the limits
/// hold for what the kernels do.
class CliSlowFeatures : public testing::Test {
 protected:
  void expect_passes(const InputFile& input, std::vector<std::string> flags) {
    const std::string path = input.write(directory_.file("in.safetensors"));
    flags.insert(flags.begin(), {"run", path, "--check", "--repeats", "1"});
    for (const char* dtype : {"fp32", "fp16", "bf16"}) {
      std::vector<std::string> arguments = flags;
      arguments.insert(arguments.end(), {"--dtype", dtype});
      const CliRun run = run_cli(arguments);
      EXPECT_EQ(run.exit_code, 0) << dtype << "\n" << run.out << run.err;
    }
  }

  static InputFile dense(std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t headdim) {
    InputFile input;
    input.normal("q", {2, seqlen_q, 6, headdim}).normal("k", {2, seqlen_k, 2, headdim});
    input.normal("v", {2, seqlen_k, 2, headdim}).normal("dout", {2, seqlen_q, 6, headdim});
    return input;
  }

  TemporaryDirectory directory_;
};

TEST_F(CliSlowFeatures, HeadDimensionsAndLengths) {
  for (const std::int64_t headdim : {1, 7, 64, 200, 512}) {
    expect_passes(dense(33, 70, headdim), {"--causal"});
  }
  expect_passes(dense(1, 1, 64), {});
  expect_passes(dense(1, 3000, 64), {});
  expect_passes(dense(300, 300, 64), {"--causal"});
}

TEST_F(CliSlowFeatures, ScoreOptions) {
  expect_passes(dense(40, 50, 32), {"--softcap", "5", "--window", "9,3"});
  expect_passes(dense(40, 50, 32), {"--softmax-scale", "1.5"});
  expect_passes(dense(40, 50, 32).normal("sinks", {6}).normal("alibi_slopes", {2, 6}), {});
  expect_passes(dense(40, 50, 32).normal("bias", {1, 6, 40, 50}).normal("dlse", {2, 6, 40}), {});
  expect_passes(dense(40, 50, 32), {"--dropout-p", "0.3", "--dropout-seed", "7"});
}

TEST_F(CliSlowFeatures, LengthsAndPacking) {
  expect_passes(dense(40, 50, 32).integers("seqused_k", {50, 0}).integers("seqused_q", {3, 40}),
                {"--causal"});
  InputFile packed = packed_input();
  packed.normal("dout", {7, 4, 8});
  expect_passes(packed, {"--causal", "--max-seqlen", "5"});
  expect_passes(paged_input().integers("leftpad_k", {3, 0}), {});
}

}  // namespace
}  // namespace foveal::tools
