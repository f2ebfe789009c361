// foveal run on good files: right values in the right layout, options from metadata and flags.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/tools/cli_process.hpp"
#include "tests/tools/input_file.hpp"
#include "tests/tools/temporary_directory.hpp"

namespace foveal::tools {
namespace {

using testing::ElementsAre;
using testing::FloatNear;
using testing::Pointwise;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Runs `foveal run` on the input with -o and gives the written file.
class CliRunTest : public testing::Test {
 protected:
  SafetensorsFile run(const InputFile& input, std::vector<std::string> flags = {}) {
    const std::string in = input.write(directory_.file("in.safetensors"));
    const std::string out = directory_.file("out.safetensors");
    flags.insert(flags.begin(), {"run", in, "-o", out, "--repeats", "1"});
    last_ = run_cli(flags);
    EXPECT_EQ(last_.exit_code, 0) << last_.out << last_.err;
    EXPECT_EQ(last_.err, "");
    Result<SafetensorsFile> file = SafetensorsFile::open(out);
    EXPECT_TRUE(file.is_ok()) << file.status().message();
    return file ? *std::move(file) : *SafetensorsFile::parse(kNothing, "nothing");
  }

  static constexpr std::byte kNothing[10] = {
      std::byte{2}, {}, {}, {}, {}, {}, {}, {}, std::byte{'{'}, std::byte{'}'}};
  TemporaryDirectory directory_;
  CliRun last_;
};

/// q is 0, so that out is the mean of the visible values, which count the keys, and lse is the
/// logarithm of their number.
InputFile counting_probe(std::int64_t seqlen_q, std::int64_t seqlen_k) {
  InputFile file;
  std::vector<float> v;
  for (std::int64_t j = 0; j < seqlen_k; ++j) v.push_back(static_cast<float>(j));
  file.zeros("q", FileDType::kF32, {1, seqlen_q, 1, 1}).normal("k", {1, seqlen_k, 1, 1});
  file.floats("v", {1, seqlen_k, 1, 1}, v);
  return file;
}

TEST_F(CliRunTest, CausalIsAlignedBottomRight) {
  InputFile input = counting_probe(3, 8);
  input.metadata["causal"] = "1";
  const SafetensorsFile file = run(input);
  EXPECT_THAT(floats_of(file, "out"),
              Pointwise(FloatNear(1e-6f), std::vector<float>{2.5f, 3.0f, 3.5f}));
  EXPECT_THAT(floats_of(file, "lse"),
              Pointwise(FloatNear(1e-6f),
                        std::vector<float>{std::log(6.0f), std::log(7.0f), std::log(8.0f)}));
  EXPECT_THAT(file.find("lse")->shape, ElementsAre(1, 1, 3));
}

TEST_F(CliRunTest, FlagsOverrideMetadata) {
  InputFile input = counting_probe(2, 5);
  input.metadata["causal"] = "1";
  input.metadata["window_size_left"] = "0";
  const auto near = [](std::vector<float> values) {
    return Pointwise(FloatNear(1e-6f), std::move(values));
  };
  EXPECT_THAT(floats_of(run(input), "out"), near({3, 4}));
  EXPECT_THAT(floats_of(run(input, {"--window-size-left", "1"}), "out"), near({2.5f, 3.5f}));
  EXPECT_THAT(floats_of(run(input, {"--window", "-1,-1", "--no-causal"}), "out"), near({2, 2}));
  EXPECT_THAT(floats_of(run(input, {"--window", "1,1", "--no-causal"}), "out"), near({3, 3.5f}));
}

TEST_F(CliRunTest, DimensionsOfTheOutputAreThoseOfTheInput) {
  const std::vector<float> values{0, 10, 1, 11, 2, 12};  // [seqlen 3, heads 2]
  const std::vector<float> heads_first{0, 1, 2, 10, 11, 12};
  InputFile bshd;
  bshd.zeros("q", FileDType::kF32, {1, 3, 2, 1}).zeros("k", FileDType::kF32, {1, 3, 2, 1});
  bshd.floats("v", {1, 3, 2, 1}, values);
  bshd.metadata = {{"window_size_left", "0"}, {"window_size_right", "0"}};
  const SafetensorsFile of_bshd = run(bshd);
  EXPECT_EQ(floats_of(of_bshd, "out"), values);
  EXPECT_EQ(of_bshd.metadata().at("layout"), "bshd");

  InputFile bhsd;
  bhsd.zeros("q", FileDType::kF32, {1, 2, 3, 1}).zeros("k", FileDType::kF32, {1, 2, 3, 1});
  bhsd.floats("v", {1, 2, 3, 1}, heads_first);
  bhsd.metadata = bshd.metadata;
  bhsd.metadata["layout"] = "bhsd";
  const SafetensorsFile of_bhsd = run(bhsd);
  EXPECT_EQ(floats_of(of_bhsd, "out"), heads_first);
  EXPECT_THAT(of_bhsd.find("out")->shape, ElementsAre(1, 2, 3, 1));
  EXPECT_THAT(of_bhsd.find("lse")->shape, ElementsAre(1, 2, 3));
}

TEST_F(CliRunTest, PackedDocumentsStayApart) {
  InputFile input;
  input.zeros("q", FileDType::kF32, {7, 1, 1}).zeros("k", FileDType::kF32, {9, 1, 1});
  input.floats("v", {9, 1, 1}, {0, 1, 2, 3, 4, 0, 1, 2, 3});
  input.integers("cu_seqlens_q", {0, 3, 7}).integers("cu_seqlens_k", {0, 5, 9});
  const SafetensorsFile file = run(input, {"--causal"});
  EXPECT_THAT(floats_of(file, "out"),
              Pointwise(FloatNear(1e-6f), std::vector<float>{1, 1.5f, 2, 0, 0.5f, 1, 1.5f}));
  EXPECT_THAT(file.find("lse")->shape, ElementsAre(1, 7));
  EXPECT_EQ(file.metadata().at("layout"), "thd");
}

TEST_F(CliRunTest, MaskOfBytesIsABiasOfZeroAndMinusInfinity) {
  InputFile input = dense_input();
  std::vector<std::uint8_t> mask(35, 1);
  std::vector<float> bias(35, 0.0f);
  for (const std::size_t masked : {0u, 3u, 8u, 14u, 15u, 16u, 17u, 18u, 19u, 20u}) {
    mask[masked] = 0;
    bias[masked] = -kInfinity;
  }
  const std::vector<float> by_bias =
      floats_of(run(InputFile(input).floats("bias", {1, 1, 5, 7}, bias)), "out");
  for (const FileDType dtype : {FileDType::kBool, FileDType::kU8}) {
    // Not bit by bit: where no bias is added the scale waits for the exponential.
    EXPECT_THAT(floats_of(run(InputFile(input).bytes("bias", dtype, {1, 1, 5, 7}, mask)), "out"),
                Pointwise(FloatNear(1e-6f), by_bias));
  }
  EXPECT_EQ(by_bias[2 * 4 * 8], 0.0f) << "row 2 sees no key";
}

TEST_F(CliRunTest, LengthsOf64BitsAreTaken) {
  InputFile input = dense_input();
  const std::vector<float> narrow =
      floats_of(run(InputFile(input).integers("seqused_k", {3, 7})), "out");
  input.bytes("seqused_k", FileDType::kI64, {2}, {3, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0});
  EXPECT_EQ(floats_of(run(input), "out"), narrow);
}

TEST_F(CliRunTest, DtypeConvertsTheInputsAndSoTheResults) {
  const SafetensorsFile file = run(dense_input(), {"--dtype", "bf16", "--check"});
  EXPECT_EQ(file.find("out")->dtype, FileDType::kBF16);
  EXPECT_EQ(file.find("lse")->dtype, FileDType::kF32);
}

TEST_F(CliRunTest, BackwardWritesAGradientForEachInput) {
  InputFile input = dense_input();
  input.normal("dout", {2, 5, 4, 8}).normal("dlse", {2, 4, 5}).normal("sinks", {4});
  input.normal("bias", {1, 4, 5, 7});
  const SafetensorsFile file = run(input, {"--check", "--causal"});
  EXPECT_EQ(file.find("dq")->shape, (Shape{2, 5, 4, 8}));
  EXPECT_EQ(file.find("dk")->shape, (Shape{2, 7, 2, 8}));
  EXPECT_EQ(file.find("dv")->shape, (Shape{2, 7, 2, 8}));
  EXPECT_EQ(file.find("dsinks")->shape, Shape{4});
  EXPECT_EQ(file.find("dbias")->shape, (Shape{1, 4, 5, 7}));
  EXPECT_EQ(file.tensors().size(), 7u);
}

TEST_F(CliRunTest, GradientsHaveTheLayoutOfTheInput) {
  InputFile input;
  input.normal("q", {2, 4, 5, 8}).normal("k", {2, 2, 7, 8}).normal("v", {2, 2, 7, 8});
  input.normal("dout", {2, 4, 5, 8});
  input.metadata["layout"] = "bhsd";
  const SafetensorsFile file = run(input, {"--check"});
  EXPECT_EQ(file.find("dq")->shape, (Shape{2, 4, 5, 8}));
  EXPECT_EQ(file.find("dk")->shape, (Shape{2, 2, 7, 8}));
}

TEST_F(CliRunTest, AppendWritesTheCacheAndLeavesTheInputAlone) {
  InputFile input = dense_input();
  input.integers("seqused_k", {4, 0}).normal("k_new", {2, 3, 2, 8});
  input.filled("v_new", {2, 3, 2, 8}, 42.0f);
  const std::string before = input.write(directory_.file("before.safetensors"));
  const SafetensorsFile file = run(input, {"--check"});
  const std::vector<float> v = floats_of(file, "v");
  const std::vector<float> old = floats_of(*SafetensorsFile::open(before), "v");
  ASSERT_EQ(v.size(), old.size());
  for (std::size_t i = 0; i < v.size(); ++i) {
    const std::size_t b = i / (7 * 16);
    const std::size_t token = i / 16 % 7;
    const bool appended = b == 0 ? token >= 4 : token < 3;
    EXPECT_EQ(v[i], appended ? 42.0f : old[i]) << "sequence " << b << " token " << token;
  }
  EXPECT_EQ(directory_.read("before.safetensors"), directory_.read("in.safetensors"));
}

TEST_F(CliRunTest, AppendWithRotaryEmbeddingAgreesWithTheOracle) {
  InputFile input = paged_input();
  input.integers("seqused_k", {20, 0}).normal("k_new", {2, 1, 2, 8}).normal("v_new", {2, 1, 2, 8});
  input.normal("rotary_cos", {32, 3}).normal("rotary_sin", {32, 3});
  const SafetensorsFile file = run(input, {"--check", "--causal", "--rotary-interleaved"});
  EXPECT_EQ(file.find("k")->shape, (Shape{4, 16, 2, 8}));
}

TEST_F(CliRunTest, OracleGivesFp32WhateverTheInput) {
  InputFile input = counting_probe(3, 8);
  const SafetensorsFile file = run(input, {"--oracle", "--dtype", "fp16", "--causal"});
  EXPECT_THAT(floats_of(file, "out"),
              Pointwise(FloatNear(1e-6f), std::vector<float>{2.5f, 3.0f, 3.5f}));
  EXPECT_EQ(file.metadata().at("kernel"), "fp64 oracle");
  EXPECT_NE(last_.out.find("fp64 oracle"), std::string::npos) << last_.out;
}

TEST_F(CliRunTest, OutputReplacesAnOlderFileButNotTheInput) {
  const std::string path = counting_probe(1, 4).write(directory_.file("input.safetensors"));
  const std::string older = directory_.file("older.safetensors");
  for (int i = 0; i < 2; ++i) {
    const CliRun run = run_cli({"run", path, "-o", older});
    EXPECT_EQ(run.exit_code, 0) << run.err;
  }
  const Result<SafetensorsFile> file = SafetensorsFile::open(older);
  ASSERT_TRUE(file.is_ok());
  EXPECT_THAT(floats_of(*file, "out"), ElementsAre(1.5f));
  const CliRun over_input = run_cli({"run", path, "-o", path});
  EXPECT_EQ(over_input.exit_code, 2);
  EXPECT_NE(over_input.err.find("the results would replace the input"), std::string::npos)
      << over_input.err;
  EXPECT_NE(SafetensorsFile::open(path)->find("q"), nullptr);
  EXPECT_EQ(directory_.num_entries(), 2u);
}

TEST_F(CliRunTest, NothingToComputeIsNoError) {
  InputFile input;
  input.normal("q", {0, 5, 4, 8}).normal("k", {0, 7, 2, 8}).normal("v", {0, 7, 2, 8});
  EXPECT_THAT(run(input, {"--check"}).find("out")->shape, ElementsAre(0, 5, 4, 8));
  InputFile no_keys;
  no_keys.normal("q", {1, 2, 1, 4}).normal("k", {1, 0, 1, 4}).normal("v", {1, 0, 1, 4});
  const SafetensorsFile file = run(no_keys, {"--check"});
  EXPECT_THAT(floats_of(file, "lse"), ElementsAre(-kInfinity, -kInfinity));
  EXPECT_THAT(floats_of(file, "out"), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
}

TEST_F(CliRunTest, NanAndInfinityInTheInputsNeverCrash) {
  InputFile input = dense_input();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float value : {nan, kInfinity, -kInfinity}) {
    for (const char* name : {"q", "k", "v"}) {
      InputFile poisoned = input;
      poisoned.filled(name, name[0] == 'q' ? Shape{2, 5, 4, 8} : Shape{2, 7, 2, 8}, value);
      const std::string path = poisoned.write(directory_.file("poisoned.safetensors"));
      const CliRun result = run_cli({"run", path});
      EXPECT_EQ(result.exit_code, 0) << name << " " << value << ": " << result.err;
    }
  }
}

TEST_F(CliRunTest, ForcedKernelIsTheOneThatRuns) {
  const std::string path = dense_input().write(directory_.file("in.safetensors"));
  const CliRun result =
      run_cli({"run", path, "--kernel", "cpu_blocked_fwd", "--threads", "1", "--json"});
  const nlohmann::json pass = result.json()["passes"][0];
  EXPECT_EQ(pass["kernel"], "cpu_blocked_fwd");
  EXPECT_EQ(pass["device"]["num_threads"], 1);
  bool forced = false;
  for (const auto& kernel : pass["kernels"]) {
    forced = forced || kernel["reason"] == "forced by FOVEAL_FORCE_KERNEL";
  }
  EXPECT_TRUE(forced) << result.out;
}

}  // namespace
}  // namespace foveal::tools
