// Files whose tensors or options contradict each other or the contract: one sentence, exit code 2,
// nothing written.
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/tools/cli_process.hpp"
#include "tests/tools/input_file.hpp"
#include "tests/tools/temporary_directory.hpp"

namespace foveal::tools {
namespace {

struct BadProblem {
  const char* name;
  std::function<InputFile()> make;
  std::string message;  ///< Part of the sentence: the argument, the value and what is allowed.
  std::vector<std::string> flags = {};
};

InputFile cache_input() { return dense_input().integers("seqused_k", {7, 3}); }

InputFile append_input() {
  return dense_input()
      .integers("seqused_k", {4, 0})
      .normal("k_new", {2, 3, 2, 8})
      .normal("v_new", {2, 3, 2, 8});
}

InputFile with_metadata(InputFile file, const std::string& key, const std::string& value) {
  file.metadata[key] = value;
  return file;
}

void PrintTo(const BadProblem& problem, std::ostream* out) { *out << problem.name; }

class CliBadProblem : public testing::TestWithParam<BadProblem> {};

TEST_P(CliBadProblem, IsRefusedInOneSentenceAndNothingIsWritten) {
  const TemporaryDirectory directory;
  const std::string path = GetParam().make().write(directory.file("in.safetensors"));
  std::vector<std::string> arguments{"run", path, "-o", directory.file("out.safetensors")};
  arguments.insert(arguments.end(), GetParam().flags.begin(), GetParam().flags.end());

  const CliRun run = run_cli(arguments);

  EXPECT_EQ(run.exit_code, 2) << run.err;
  EXPECT_NE(run.err.find(GetParam().message), std::string::npos) << run.err;
  EXPECT_TRUE(is_one_error_line(run.err)) << run.err;
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(directory.num_entries(), 1u) << "something was left beside the input";
}

std::string name_of(const testing::TestParamInfo<BadProblem>& info) { return info.param.name; }

const BadProblem kShapes[] = {
    {"HeaddimOfQAndK",
     [] {
       return dense_input().normal("q", {2, 5, 4, 16});
     },
     "q has headdim 16 and k 8: they must be equal"},
    {"BatchOfQAndK",
     [] {
       return dense_input().normal("q", {3, 5, 4, 8});
     },
     "k has a batch of 2: it must be 3"},
    {"SeqlenOfKAndV",
     [] {
       return dense_input().normal("v", {2, 6, 2, 8});
     },
     "v [2, 6, 2, 8] and k [2, 7, 2, 8]: they may differ in the last dimension only"},
    {"HeadsOfKAndV",
     [] {
       return dense_input().normal("v", {2, 7, 4, 8});
     },
     "v [2, 7, 4, 8] and k [2, 7, 2, 8]"},
    {"RanksOfKAndV",
     [] {
       return dense_input().normal("v", {2, 2, 8});
     },
     "v has 3 dimensions and k 4"},
    {"RankOfQ",
     [] {
       return dense_input().normal("q", {2, 5, 32});
     },
     "cu_seqlens_q is missing"},
    {"RankOfQForItsLayout",
     [] {
       return with_metadata(dense_input().normal("q", {2, 5, 32}), "layout", "bshd");
     },
     "q [2, 5, 32]: layout bshd has 4 dimensions"},
    {"FiveDimensions",
     [] {
       return dense_input().normal("k", {1, 2, 7, 2, 8});
     },
     "k has 5 dimensions: between 1 and 4 are allowed"},
    {"NoDimensions", [] { return dense_input().filled("sinks", {}, 1); },
     "sinks has 0 dimensions: between 1 and 4 are allowed"},
    {"HeaddimZero",
     [] {
       return dense_input().normal("q", {2, 5, 4, 0}).normal("k", {2, 7, 2, 0});
     },
     "headdim 0: at least 1"},
    {"Headdim513",
     [] {
       return dense_input().normal("q", {2, 5, 4, 513}).normal("k", {2, 7, 2, 513});
     },
     "headdim 513: at most 512"},
    {"HeaddimV513",
     [] {
       return dense_input().normal("v", {2, 7, 2, 513});
     },
     "headdim_v 513: at most 512"},
    {"HeadsThatDoNotDivide",
     [] {
       return dense_input().normal("q", {2, 5, 3, 8});
     },
     "nheads_q 3: it must be a multiple of nheads_k 2"},
    {"Bias",
     [] {
       return dense_input().normal("bias", {2, 4, 5, 6});
     },
     "bias [2, 4, 5, 6]: it must broadcast to [2, 4, 5, 7]"},
    {"Sinks", [] { return dense_input().normal("sinks", {2}); }, "sinks [2]: it must be [4]"},
    {"AlibiSlopes",
     [] {
       return dense_input().normal("alibi_slopes", {2, 2});
     },
     "alibi_slopes [2, 2]: it must be [2, 4]"},
    {"Dout",
     [] {
       return dense_input().normal("dout", {2, 5, 4, 4});
     },
     "dout [2, 5, 4, 4]: it must be [2, 5, 4, 8]"},
    {"Dlse",
     [] {
       return dense_input().normal("dout", {2, 5, 4, 8}).normal("dlse", {2, 5, 4});
     },
     "dlse [2, 5, 4]: it must be [2, 4, 5]"},
    {"DlseWithoutDout",
     [] {
       return dense_input().normal("dlse", {2, 4, 5});
     },
     "dlse is given without dout"},
    {"SequsedK",
     [] {
       return dense_input().integers("seqused_k", {7, 7, 7});
     },
     "seqused_k [3]: it must be [2]"},
    {"SequsedQ", [] { return dense_input().integers("seqused_q", {5}); },
     "seqused_q [1]: it must be [2]"},
    {"LeftpadK",
     [] {
       return dense_input().integers("leftpad_k", {0, 0, 0});
     },
     "leftpad_k [3]: it must be [2]"},
    {"CacheBatchIdx", [] { return dense_input().integers("cache_batch_idx", {0}); },
     "cache_batch_idx [1]: it must be [2]"},
    {"CuSeqlensOfDifferentLength",
     [] {
       return packed_input().integers("cu_seqlens_k", {0, 2, 5, 9});
     },
     "cu_seqlens_k [4]: it must be [3]"},
    {"CuSeqlensOfADenseQ",
     [] {
       return dense_input().integers("cu_seqlens_q", {0, 3, 7});
     },
     "cu_seqlens_q is given, but q has 4 dimensions"},
    {"BlockTableBatch",
     [] {
       return paged_input().integers("block_table", {1, 2}, {3, 1});
     },
     "block_table [1, 2]: it must be [2, 2]"},
    {"KNew",
     [] {
       return append_input().normal("k_new", {2, 3, 2, 4});
     },
     "k_new [2, 3, 2, 4]: it must be [2, 3, 2, 8]"},
    {"VNewMissing", [] { return append_input().without("v_new"); }, "k_new is given without v_new"},
    {"RotarySin",
     [] {
       return append_input().normal("rotary_cos", {16, 4}).normal("rotary_sin", {16, 2});
     },
     "rotary_sin [16, 2]: it must be [16, 4], as rotary_cos"},
    {"BiasOfPackedSequences",
     [] {
       return packed_input().normal("bias", {1, 1, 7, 9});
     },
     "bias is given, but q or k is packed"},
    {"BackwardOfPages",
     [] {
       return paged_input().normal("dout", {2, 1, 4, 8});
     },
     "block_table is given: backward doesn't take it"},
    {"BackwardOfAnAppend",
     [] {
       return append_input().normal("dout", {2, 5, 4, 8});
     },
     "is given: backward doesn't take it"},
};
INSTANTIATE_TEST_SUITE_P(Shapes, CliBadProblem, testing::ValuesIn(kShapes), name_of);

const BadProblem kTypes[] = {
    {"DoubleQ",
     [] {
       return dense_input().zeros("q", FileDType::kF64, {2, 5, 4, 8});
     },
     "q is F64: it must be F16, BF16 or F32"},
    {"FloatEightK",
     [] {
       return dense_input().zeros("k", FileDType::kF8E4M3, {2, 7, 2, 8});
     },
     "k is F8_E4M3: it must be F16, BF16 or F32"},
    {"MixedQAndK",
     [] {
       return dense_input().zeros("k", FileDType::kF16, {2, 7, 2, 8});
     },
     "q is fp32 and k is fp16: q, k and v must have one dtype"},
    {"MixedKAndV",
     [] {
       return dense_input().zeros("v", FileDType::kBF16, {2, 7, 2, 8});
     },
     "v is bf16: it must be fp32"},
    {"NarrowBias",
     [] {
       return dense_input().zeros("bias", FileDType::kF16, {1, 1, 5, 7});
     },
     "bias is fp16: it must be fp32 or bool"},
    {"IntegerBias",
     [] {
       return dense_input().zeros("bias", FileDType::kI32, {1, 1, 5, 7});
     },
     "bias is I32: it must be F16, BF16, F32, BOOL or U8"},
    {"NarrowSinks", [] { return dense_input().zeros("sinks", FileDType::kF16, {4}); },
     "sinks is F16: it must be F32"},
    {"FloatLengths", [] { return dense_input().normal("seqused_k", {2}); },
     "seqused_k is F32: it must be I32 or I64"},
    {"LengthPast32Bits",
     [] {
       return dense_input().bytes("seqused_k", FileDType::kI64, {2},
                                  {7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0});
     },
     "seqused_k has element 1 = 4294967296: it must fit in 32 bits"},
    {"UnknownTensor",
     [] {
       return dense_input().normal("biass", {1, 1, 5, 7});
     },
     "unknown tensor 'biass': known are q, k, v, dout"},
    {"NoQ", [] { return dense_input().without("q"); }, "tensor q is missing"},
    {"NoV", [] { return dense_input().without("v"); }, "tensor v is missing"},
};
INSTANTIATE_TEST_SUITE_P(Types, CliBadProblem, testing::ValuesIn(kTypes), name_of);

const BadProblem kOptions[] = {
    {"WindowLeft", dense_input, "window_size_left -2: at least -1", {"--window-size-left", "-2"}},
    {"WindowRight", dense_input, "window_size_right -7: at least -1", {"--window", "3,-7"}},
    {"WindowInTheFile", [] { return with_metadata(dense_input(), "window_size_left", "-2"); },
     "window_size_left -2: at least -1"},
    {"WindowThatIsOneNumber", dense_input, "'3': must be two whole numbers", {"--window", "3"}},
    {"SoftcapBelowZero",
     dense_input,
     "softcap -1: it must be finite and at least 0",
     {"--softcap", "-1"}},
    {"SoftcapNan", [] { return with_metadata(dense_input(), "softcap", "nan"); },
     "softcap nan: it must be finite and at least 0"},
    {"SoftcapInfinite", dense_input, "softcap inf: it must be finite", {"--softcap=inf"}},
    {"ScaleNan", [] { return with_metadata(dense_input(), "softmax_scale", "nan"); },
     "softmax_scale nan: it must be finite"},
    {"ScaleInfinite",
     dense_input,
     "softmax_scale -inf: it must be finite",
     {"--softmax-scale=-inf"}},
    {"ScaleThatIsNoNumber", [] { return with_metadata(dense_input(), "softmax_scale", "1/8"); },
     "metadata softmax_scale '1/8': must be a number"},
    {"CausalThatIsNoBool", [] { return with_metadata(dense_input(), "causal", "2"); },
     "metadata causal '2': must be 0 or 1"},
    {"LayoutThatIsNone", [] { return with_metadata(dense_input(), "layout", "sbhd"); },
     "metadata layout 'sbhd': must be bshd, bhsd or thd"},
    {"DropoutAboveOne",
     dense_input,
     "dropout_p 1.5: it must be between 0 and 1",
     {"--dropout-p", "1.5"}},
    {"DropoutSeedBelowZero",
     dense_input,
     "'-3': must be a whole number from 0 to 2^64 - 1",
     {"--dropout-seed=-3"}},
    {"MaxSeqlenTooSmall",
     packed_input,
     "max_seqlen_q 2: sequence 0 has 3 tokens",
     {"--max-seqlen", "2"}},
};
INSTANTIATE_TEST_SUITE_P(Options, CliBadProblem, testing::ValuesIn(kOptions), name_of);

const BadProblem kLengths[] = {
    {"CuSeqlensQStart",
     [] {
       return packed_input().integers("cu_seqlens_q", {1, 3, 7});
     },
     "cu_seqlens_q must start at 0, got 1"},
    {"CuSeqlensKStart",
     [] {
       return packed_input().integers("cu_seqlens_k", {-1, 5, 9});
     },
     "cu_seqlens_k must start at 0, got -1"},
    {"CuSeqlensDecrease",
     [] {
       return packed_input().integers("cu_seqlens_k", {0, 10, 9});
     },
     "cu_seqlens_k must not decrease: entry 2 is 9 after 10"},
    {"CuSeqlensQEnd",
     [] {
       return packed_input().integers("cu_seqlens_q", {0, 3, 6});
     },
     "cu_seqlens_q must end at total_q = 7, got 6"},
    {"CuSeqlensKEnd",
     [] {
       return packed_input().integers("cu_seqlens_k", {0, 5, 13});
     },
     "cu_seqlens_k must end at total_k = 9, got 13"},
    {"CuSeqlensEmpty", [] { return packed_input().integers("cu_seqlens_q", std::vector<int>{}); },
     "cu_seqlens_q is empty: it has batch + 1 entries"},
    {"SequsedKAboveCapacity",
     [] {
       return cache_input().integers("seqused_k", {7, 8});
     },
     "seqused_k[1] 8: between 0 and the capacity of sequence 1, 7"},
    {"SequsedKBelowZero",
     [] {
       return cache_input().integers("seqused_k", {-1, 3});
     },
     "seqused_k[0] -1: between 0 and the capacity"},
    {"SequsedQAboveSeqlen",
     [] {
       return dense_input().integers("seqused_q", {6, 5});
     },
     "seqused_q[0] 6: between 0 and the capacity of sequence 0, 5"},
    {"LeftpadAboveLength",
     [] {
       return cache_input().integers("leftpad_k", {0, 4});
     },
     "leftpad_k[1] 4: between 0 and the keys in use of sequence 1, 3"},
    {"PageOutOfRange",
     [] {
       return paged_input().integers("block_table", {2, 2}, {3, 4, 0, -1});
     },
     "block_table[0][1] 4: between 0 and 3"},
    {"PageBelowZeroInUse",
     [] {
       return paged_input().integers("block_table", {2, 2}, {3, -1, 0, -1});
     },
     "block_table[0][1] -1: between 0 and 3"},
    {"LengthPastTheTable",
     [] {
       return paged_input().integers("seqused_k", {33, 5});
     },
     "seqused_k[0] 33: between 0 and the capacity of sequence 0, 32"},
    {"NoRoomToAppend",
     [] {
       return append_input().integers("seqused_k", {5, 0});
     },
     "seqused_k[0] 5: with 3 tokens to append at most 4"},
    {"CacheRowOutOfRange",
     [] {
       return dense_input().integers("cache_batch_idx", {0, 2});
     },
     "cache_batch_idx[1] 2: between 0 and 1"},
    {"TooFewRotaryPositions",
     [] {
       return with_metadata(
           append_input().normal("rotary_cos", {6, 4}).normal("rotary_sin", {6, 4}), "causal", "1");
     },
     "rotary_cos has 6 positions: sequence 0 reaches 9"},
};
INSTANTIATE_TEST_SUITE_P(Lengths, CliBadProblem, testing::ValuesIn(kLengths), name_of);

const BadProblem kAnswers[] = {
    {"ExpectedShape",
     [] {
       return dense_input().normal("expected_out", {2, 4, 5, 8});
     },
     "expected_out [2, 4, 5, 8]: it must be [2, 5, 4, 8], as out",
     {"--check"}},
    {"ExpectedOfNothing",
     [] {
       return dense_input().normal("expected_dq", {2, 5, 4, 8});
     },
     "expected_dq has no result to compare with: computed are out, lse",
     {"--check"}},
    {"ExpectedType",
     [] {
       return dense_input().zeros("expected_out", FileDType::kI32, {2, 5, 4, 8});
     },
     "expected_out is I32: it must be F16, BF16, F32 or F64",
     {"--check"}},
    {"ExpectedRowPastTheEnd",
     [] {
       return dense_input().integers("expected_rows", {0, 10}).normal("expected_out", {2, 4, 8});
     },
     "expected_rows[1] 10: q has 10 rows",
     {"--check"}},
    {"ExpectedRowsShape",
     [] {
       return dense_input().integers("expected_rows", {0, 9}).normal("expected_out", {3, 4, 8});
     },
     "expected_out [3, 4, 8]: with expected_rows it must be [2, 4, 8]",
     {"--check"}},
    {"ExpectedRowsType",
     [] {
       return dense_input().normal("expected_rows", {2}).normal("expected_out", {2, 4, 8});
     },
     "expected_rows is F32: it must be I32 or I64",
     {"--check"}},
};
INSTANTIATE_TEST_SUITE_P(Answers, CliBadProblem, testing::ValuesIn(kAnswers), name_of);

}  // namespace
}  // namespace foveal::tools
