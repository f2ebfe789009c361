// Options in metadata, and what overrides what.
#include "tools/compute_options.hpp"

#include <gtest/gtest.h>

#include <string>

#include "tools/units_text.hpp"

namespace foveal::tools {
namespace {

TEST(ComputeOptions, EveryOptionIsReadFromMetadata) {
  const Result<ComputeOptions> options =
      options_from_metadata({{"layout", "thd"},
                             {"causal", "1"},
                             {"rotary_interleaved", "True"},
                             {"deterministic", "true"},
                             {"batch_invariant", "0"},
                             {"softmax_scale", "0.125"},
                             {"softcap", "2e1"},
                             {"dropout_p", "0.5"},
                             {"window_size_left", "-1"},
                             {"window_size_right", "7"},
                             {"dropout_seed", "18446744073709551615"},
                             {"dropout_offset", "3"},
                             {"max_seqlen", "107"},
                             {"model", "some other thing"}},
                            "f");
  ASSERT_TRUE(options.is_ok()) << options.status().message();
  EXPECT_EQ(options->layout, TensorLayout::kThd);
  EXPECT_EQ(options->causal, true);
  EXPECT_EQ(options->rotary_interleaved, true);
  EXPECT_EQ(options->deterministic, true);
  EXPECT_EQ(options->batch_invariant, false);
  EXPECT_EQ(options->softmax_scale, 0.125f);
  EXPECT_EQ(options->softcap, 20.0f);
  EXPECT_EQ(options->dropout_p, 0.5f);
  EXPECT_EQ(options->window_size_left, -1);
  EXPECT_EQ(options->window_size_right, 7);
  EXPECT_EQ(options->dropout_seed, 18446744073709551615u);
  EXPECT_EQ(options->dropout_offset, 3u);
  EXPECT_EQ(options->max_seqlen, 107);
}

TEST(ComputeOptions, TextThatIsNoValueIsRefusedWhole) {
  for (const char* text : {"", " 1", "1 ", "1x", "0x1", "None", "1,5", "1e999"}) {
    const Result<ComputeOptions> options = options_from_metadata({{"softcap", text}}, "f.st");
    ASSERT_FALSE(options.is_ok()) << text;
    EXPECT_EQ(options.status().message(),
              "f.st: metadata softcap '" + std::string(text) + "': must be a number");
  }
  EXPECT_FALSE(options_from_metadata({{"window_size_left", "1.0"}}, "f").is_ok());
  EXPECT_FALSE(options_from_metadata({{"dropout_seed", "-1"}}, "f").is_ok());
  EXPECT_FALSE(options_from_metadata({{"causal", "yes"}}, "f").is_ok());
}

TEST(ComputeOptions, FlagsWinWhereTheySaySomething) {
  ComputeOptions flags;
  flags.causal = false;
  flags.softcap = 3.0f;
  ComputeOptions metadata;
  metadata.causal = true;
  metadata.window_size_left = 5;
  const ComputeOptions options = overlay(flags, metadata);
  EXPECT_EQ(options.causal, false);
  EXPECT_EQ(options.softcap, 3.0f);
  EXPECT_EQ(options.window_size_left, 5);
  EXPECT_FALSE(options.softmax_scale.has_value());
}

TEST(ComputeOptions, MaxSeqlenIsOfPackedTensorsAlone) {
  ComputeOptions options;
  options.max_seqlen = 9;
  AttentionProblem problem;
  AttentionTensors tensors;
  problem.q = TensorSpec::contiguous(DType::kFloat32, {20, 2, 8});
  problem.k = TensorSpec::contiguous(DType::kFloat32, {2, 10, 2, 8});
  apply_options(options, problem, tensors);
  EXPECT_EQ(problem.max_seqlen_q, 9);
  EXPECT_EQ(problem.max_seqlen_k, 0);
}

TEST(UnitsText, LargestUnitThatLeavesOneOrMore) {
  EXPECT_EQ(time_text(0.5), "500 ns");
  EXPECT_EQ(time_text(12.345), "12.3 us");
  EXPECT_EQ(time_text(2.5e6), "2.5 s");
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(0x1p31), "2 GiB");
  EXPECT_EQ(flops_rate_text(3e9, 1e6), "3 GFLOP/s");
  EXPECT_EQ(flops_rate_text(2e6, 1), "2 TFLOP/s");
  EXPECT_EQ(bytes_rate_text(5e6, 1e6), "5 MB/s");
}

}  // namespace
}  // namespace foveal::tools
