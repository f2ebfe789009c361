// Every clause of validate(problem) has one message; each is provoked here from a valid problem.
#include <functional>
#include <limits>
#include <string>

#include <gtest/gtest.h>
#include <foveal/problem.hpp>

namespace foveal {
namespace {

constexpr DType kF16 = DType::kFloat16;
constexpr DType kBF16 = DType::kBFloat16;
constexpr DType kF32 = DType::kFloat32;
constexpr DType kI32 = DType::kInt32;

TensorSpec lengths(std::int64_t count) { return TensorSpec::contiguous(kI32, {count}); }

/// Batch 2, 5 queries on 7 keys, 6 query heads on 2, headdim 64.
AttentionProblem dense() {
  AttentionProblem p;
  p.q = p.out = TensorSpec::contiguous(kF16, {2, 5, 6, 64});
  p.k = p.v = TensorSpec::contiguous(kF16, {2, 7, 2, 64});
  p.lse = TensorSpec::contiguous(kF32, {2, 6, 5});
  return p;
}

AttentionProblem packed() {
  AttentionProblem p;
  p.q = p.out = TensorSpec::contiguous(kF16, {10, 6, 64});
  p.k = p.v = TensorSpec::contiguous(kF16, {14, 2, 64});
  p.cu_seqlens_q = p.cu_seqlens_k = lengths(3);
  p.lse = TensorSpec::contiguous(kF32, {6, 10});
  return p;
}

AttentionProblem paged() {
  AttentionProblem p = dense();
  p.k = p.v = TensorSpec::contiguous(kF16, {4, 16, 2, 64});
  p.block_table = TensorSpec::contiguous(kI32, {2, 3});
  p.seqused_k = lengths(2);
  return p;
}

AttentionProblem backward() {
  AttentionProblem p = dense();
  p.pass = Pass::kBackward;
  p.dout = p.out;
  p.dq = p.q;
  p.dk = p.dv = p.k;
  return p;
}

AttentionProblem append() {
  AttentionProblem p;
  p.pass = Pass::kAppend;
  p.k = p.v = TensorSpec::contiguous(kF16, {2, 16, 2, 64});
  p.k_new = p.v_new = TensorSpec::contiguous(kF16, {2, 3, 2, 64});
  p.seqused_k = lengths(2);
  return p;
}

AttentionProblem rotating() {
  AttentionProblem p = append();
  p.q = p.q_rotated = TensorSpec::contiguous(kF16, {2, 3, 6, 64});
  p.rotary_cos = p.rotary_sin = TensorSpec::contiguous(kF32, {32, 16});
  return p;
}

AttentionProblem merge() {
  AttentionProblem p;
  p.pass = Pass::kMerge;
  p.out = p.out_a = p.out_b = TensorSpec::contiguous(kF16, {2, 5, 6, 64});
  p.lse = p.lse_a = p.lse_b = TensorSpec::contiguous(kF32, {2, 6, 5});
  return p;
}

struct Refusal {
  const char* name;
  AttentionProblem (*valid)();
  std::function<void(AttentionProblem&)> spoil;
  const char* message;
  StatusCode code = StatusCode::kInvalidArgument;
};

void PrintTo(const Refusal& refusal, std::ostream* stream) { *stream << refusal.name; }

class ValidateRefuses : public testing::TestWithParam<Refusal> {};

TEST_P(ValidateRefuses, WithOneSentence) {
  AttentionProblem problem = GetParam().valid();
  ASSERT_EQ(validate(problem).message(), "");
  GetParam().spoil(problem);
  const Status status = validate(problem);
  EXPECT_EQ(status.code(), GetParam().code);
  EXPECT_EQ(status.message(), GetParam().message);
}

using P = AttentionProblem;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

const Refusal kOperandRefusals[] = {
    {"NoQ", dense, [](P& p) { p.q = {}; }, "q is missing: forward needs it"},
    {"NoLse", backward, [](P& p) { p.lse = {}; }, "lse is missing: backward needs it"},
    {"ForeignDout", dense, [](P& p) { p.dout = p.out; }, "dout is given: forward doesn't take it"},
    {"NoGradient", backward, [](P& p) { p.dq = p.dk = p.dv = {}; },
     "dq is missing, and so are dk, dv, dbias and dsinks: backward needs one of them"},
    {"PagedBackward", backward, [](P& p) { p.block_table = lengths(1); },
     "block_table is given: backward doesn't take it"},
    {"KNewAlone", append, [](P& p) { p.v_new = {}; }, "v_new is missing: append needs it"},
    {"KNewAloneInForward", paged,
     [](P& p) {
       p.k_new = TensorSpec::contiguous(kF16, {2, 1, 2, 64});
     },
     "k_new is given without v_new: it needs it"},
    {"AppendWithoutLengths", dense,
     [](P& p) {
       p.k_new = p.v_new = TensorSpec::contiguous(kF16, {2, 1, 2, 64});
     },
     "k_new is given without seqused_k: it needs it"},
    {"CosAlone", rotating, [](P& p) { p.rotary_sin = {}; },
     "rotary_cos is given without rotary_sin: it needs it"},
    {"QWithoutRotated", rotating, [](P& p) { p.q_rotated = {}; },
     "q is given without q_rotated: append only rotates q"},
    {"RotatedWithoutRotary", rotating, [](P& p) { p.rotary_cos = p.rotary_sin = {}; },
     "q_rotated is given without rotary_cos: it needs it"},
    {"DsinksAlone", backward, [](P& p) { p.dsinks = TensorSpec::contiguous(kF32, {6}); },
     "dsinks is given without sinks: it needs it"},
    {"DbiasAlone", backward,
     [](P& p) {
       p.dbias = TensorSpec::contiguous(kF16, {1, 1, 5, 7});
     },
     "dbias is given without bias: it needs it"},
    {"UnknownPass", dense, [](P& p) { p.pass = static_cast<Pass>(9); },
     "pass 9: it must be forward, backward, append or merge"},
};

const Refusal kDtypeRefusals[] = {
    {"MixedQK", dense, [](P& p) { p.q.dtype = kBF16; },
     "q is bf16 and k is fp16: q, k and v must have one dtype"},
    {"MixedV", dense, [](P& p) { p.v.dtype = kF32; }, "v is fp32: it must be fp16"},
    {"IntegerQ", dense, [](P& p) { p.q.dtype = kI32; },
     "q is int32: it must be fp16, bf16 or fp32"},
    {"BoolK", dense, [](P& p) { p.k.dtype = DType::kBool; },
     "k is bool: it must be fp16, bf16 or fp32"},
    {"OutDtype", dense, [](P& p) { p.out.dtype = kBF16; }, "out is bf16: it must be fp16 or fp32"},
    {"HalfLse", dense, [](P& p) { p.lse.dtype = kF16; }, "lse is fp16: it must be fp32"},
    {"FloatLengths", dense, [](P& p) { p.seqused_k = TensorSpec::contiguous(kF32, {2}); },
     "seqused_k is fp32: it must be int32"},
    {"BiasDtype", dense,
     [](P& p) {
       p.bias = TensorSpec::contiguous(kBF16, {1, 1, 5, 7});
     },
     "bias is bf16: it must be fp16, fp32 or bool"},
    {"MaskGradient", backward,
     [](P& p) {
       p.bias = TensorSpec::contiguous(DType::kBool, {1, 1, 5, 7});
       p.dbias = TensorSpec::contiguous(kF16, {1, 1, 5, 7});
     },
     "dbias is given, but bias is bool: a mask has no gradient"},
    {"DbiasDtype", backward,
     [](P& p) {
       p.bias = TensorSpec::contiguous(kF16, {1, 1, 5, 7});
       p.dbias = TensorSpec::contiguous(kF32, {1, 1, 5, 7});
     },
     "dbias is fp32: it must be fp16, as bias"},
    {"KNewDtype", append, [](P& p) { p.k_new.dtype = kF32; }, "k_new is fp32: it must be fp16"},
    {"RotarySinDtype", rotating, [](P& p) { p.rotary_sin.dtype = kF16; },
     "rotary_sin is fp16: it must be fp32"},
    {"MergeDtype", merge, [](P& p) { p.out_b.dtype = kI32; },
     "out_b is int32: it must be fp16, bf16 or fp32"},
    {"MergeLseDtype", merge, [](P& p) { p.lse_b.dtype = kF16; }, "lse_b is fp16: it must be fp32"},
};

const Refusal kShapeRefusals[] = {
    {"Headdim0", dense,
     [](P& p) { p.q.shape[3] = p.out.shape[3] = p.k.shape[3] = p.v.shape[3] = 0; },
     "headdim 0: at least 1"},
    {"Headdim513", dense,
     [](P& p) { p.q.shape[3] = p.out.shape[3] = p.k.shape[3] = p.v.shape[3] = 513; },
     "headdim 513: at most 512"},
    {"HeaddimV", dense, [](P& p) { p.v.shape[3] = p.out.shape[3] = 520; },
     "headdim_v 520: at most 512"},
    {"HeaddimOfQ", dense, [](P& p) { p.q.shape[3] = 32; },
     "q has headdim 32 and k 64: they must be equal"},
    {"HeadRatio", dense,
     [](P& p) {
       p.q.shape[2] = p.out.shape[2] = 5;
       p.lse.shape[1] = 5;
     },
     "nheads_q 5: it must be a multiple of nheads_k 2"},
    {"NoKeyHeads", dense, [](P& p) { p.k.shape[2] = p.v.shape[2] = 0; },
     "nheads_q 6: it must be a multiple of nheads_k 0"},
    {"VLength", dense, [](P& p) { p.v.shape[1] = 8; },
     "v [2, 8, 2, 64] and k [2, 7, 2, 64]: they may differ in the last dimension only"},
    {"VRank", dense,
     [](P& p) {
       p.v = TensorSpec::contiguous(kF16, {7, 2, 64});
     },
     "v has 3 dimensions and k 4: they must be equal"},
    {"Batch", dense, [](P& p) { p.k.shape[0] = p.v.shape[0] = 3; },
     "k has a batch of 3: it must be 2, the number of sequences, without cache_batch_idx"},
    {"OutShape", dense, [](P& p) { p.out.shape[1] = 4; },
     "out [2, 4, 6, 64]: it must be [2, 5, 6, 64], [batch, seqlen_q, nheads_q, dim]"},
    {"PackedOutShape", packed, [](P& p) { p.out.shape[0] = 9; },
     "out [9, 6, 64]: it must be [10, 6, 64], [total_q, nheads_q, dim]"},
    {"LseShape", dense, [](P& p) { p.lse.shape[1] = 5; },
     "lse [2, 5, 5]: it must be [2, 6, 5], [batch, nheads_q, seqlen_q]"},
    {"PackedLseShape", packed, [](P& p) { p.lse.shape[1] = 5; },
     "lse [6, 5]: it must be [6, 10], [nheads_q, total_q]"},
    {"DqShape", backward, [](P& p) { p.dq.shape[3] = 32; },
     "dq [2, 5, 6, 32]: it must be [2, 5, 6, 64], [batch, seqlen_q, nheads_q, dim]"},
    {"DkShape", backward, [](P& p) { p.dk.shape[1] = 6; },
     "dk [2, 6, 2, 64]: it must be [2, 7, 2, 64], as k"},
    {"Bias", dense,
     [](P& p) {
       p.bias = TensorSpec::contiguous(kF16, {1, 6, 4, 7});
     },
     "bias [1, 6, 4, 7]: it must broadcast to [2, 6, 5, 7], [batch, nheads_q, seqlen_q, seqlen_k]"},
    {"Sinks", dense, [](P& p) { p.sinks = TensorSpec::contiguous(kF32, {2}); },
     "sinks [2]: it must be [6], [nheads_q]"},
    {"AlibiSlopes", dense,
     [](P& p) {
       p.alibi_slopes = TensorSpec::contiguous(kF32, {2, 5});
     },
     "alibi_slopes [2, 5]: it must be [2, 6], [nheads_q] or [batch, nheads_q]"},
    {"SequsedLength", dense, [](P& p) { p.seqused_k = lengths(3); },
     "seqused_k [3]: it must be [2], one a sequence"},
    {"CuSeqlensLength", packed, [](P& p) { p.cu_seqlens_k = lengths(4); },
     "cu_seqlens_k [4]: it must be [3], [batch + 1]"},
    {"StridedLengths", dense, [](P& p) { p.seqused_k = TensorSpec::strided(kI32, {2}, {2}); },
     "seqused_k has stride 2: its elements must be adjacent"},
    {"BlockTableBatch", paged,
     [](P& p) {
       p.block_table = TensorSpec::contiguous(kI32, {3, 3});
     },
     "block_table [3, 3]: it must be [2, 3], [batch, max_pages]"},
    {"KNewShape", append, [](P& p) { p.k_new.shape[2] = 3; },
     "k_new [2, 3, 3, 64]: it must be [2, 3, 2, 64], [batch, seqlen_new, nheads_k, headdim]"},
    {"RotaryDim", rotating,
     [](P& p) {
       p.rotary_cos = p.rotary_sin = TensorSpec::contiguous(kF32, {32, 33});
     },
     "rotary_cos has 33 pairs: at most headdim / 2 = 32"},
    {"RotarySinShape", rotating, [](P& p) { p.rotary_sin.shape[0] = 31; },
     "rotary_sin [31, 16]: it must be [32, 16], as rotary_cos"},
    {"RotatedShape", rotating, [](P& p) { p.q_rotated.shape[1] = 2; },
     "q_rotated [2, 2, 6, 64]: it must be [2, 3, 6, 64], [batch, seqlen_q, nheads_q, dim]"},
    {"MergeShape", merge, [](P& p) { p.out_b.shape[1] = 4; },
     "out_b [2, 4, 6, 64]: it must be [2, 5, 6, 64], as out"},
    {"MergeLse", merge, [](P& p) { p.lse_a.shape[1] = 4; },
     "lse_a [2, 4, 5]: it must be [2, 6, 5], [batch, nheads_q, seqlen_q]"},
    {"NegativeExtent", dense, [](P& p) { p.q.shape[1] = -1; },
     "q has an extent of -1 in dimension 1: between 0 and 2147483647 is allowed"},
    {"Rank5", dense, [](P& p) { p.q.rank = 5; }, "q has 5 dimensions: between 1 and 4 are allowed"},
    {"Rank2", dense,
     [](P& p) {
       p.q = TensorSpec::contiguous(kF16, {5, 64});
     },
     "q has 2 dimensions: 3 or 4 needed"},
    {"Overflow", dense,
     [](P& p) {
       p.q = TensorSpec::strided(kF16, {2147483647, 2147483647, 4, 64}, {0, 0, 0, 1});
     },
     "q [2147483647, 2147483647, 4, 64]: its size in bytes must fit in 64 bits"},
    {"StrideOverflow", dense,
     [](P& p) { p.q.strides[0] = std::numeric_limits<std::int64_t>::max() - 100; },
     "q [2, 5, 6, 64]: its size in bytes must fit in 64 bits"},
};

const Refusal kCombinationRefusals[] = {
    {"PackedWithoutCu", packed, [](P& p) { p.cu_seqlens_q = {}; },
     "q has 3 dimensions, which means packed: cu_seqlens_q is missing"},
    {"CuWithDense", dense, [](P& p) { p.cu_seqlens_k = lengths(3); },
     "cu_seqlens_k is given, but k has 4 dimensions: packed tensors have 3"},
    {"EmptyCu", packed, [](P& p) { p.cu_seqlens_q = lengths(0); },
     "cu_seqlens_q is empty: it has batch + 1 entries"},
    {"TableWithPacked", packed,
     [](P& p) {
       p.block_table = TensorSpec::contiguous(kI32, {2, 3});
     },
     "block_table is given, but k is packed: pages are [num_pages, page_size, nheads_k, headdim]"},
    {"EmptyPages", paged, [](P& p) { p.k.shape[1] = p.v.shape[1] = 0; },
     "k has pages of 0 tokens: page_size is at least 1"},
    {"CacheRowsOfPages", paged, [](P& p) { p.cache_batch_idx = lengths(2); },
     "cache_batch_idx is given, but k is packed or paged: it selects rows of a dense cache"},
    {"AppendToPacked", packed,
     [](P& p) {
       p.k_new = p.v_new = TensorSpec::contiguous(kF16, {2, 1, 2, 64});
       p.seqused_k = lengths(2);
     },
     "k_new is given, but k is packed: tokens are appended to a dense or paged cache"},
    {"PackedBias", packed,
     [](P& p) {
       p.bias = TensorSpec::contiguous(kF16, {1, 1, 1, 1});
     },
     "bias is given, but q or k is packed (cu_seqlens): bias takes dense q and k",
     StatusCode::kUnsupported},
};

const Refusal kOptionRefusals[] = {
    {"ScaleNan", dense, [](P& p) { p.softmax_scale = kNan; },
     "softmax_scale nan: it must be finite"},
    {"ScaleInf", dense, [](P& p) { p.softmax_scale = kInf; },
     "softmax_scale inf: it must be finite"},
    {"SoftcapNegative", dense, [](P& p) { p.softcap = -1; },
     "softcap -1: it must be finite and at least 0, which is off"},
    {"SoftcapNan", dense, [](P& p) { p.softcap = kNan; },
     "softcap nan: it must be finite and at least 0, which is off"},
    {"DropoutNan", dense, [](P& p) { p.dropout_p = kNan; },
     "dropout_p nan: it must be between 0 and 1"},
    {"DropoutAboveOne", dense, [](P& p) { p.dropout_p = 1.5f; },
     "dropout_p 1.5: it must be between 0 and 1"},
    {"WindowLeft", dense, [](P& p) { p.window_size_left = -2; },
     "window_size_left -2: at least -1, which is unbounded"},
    {"WindowRight", dense, [](P& p) { p.window_size_right = -7; },
     "window_size_right -7: at least -1, which is unbounded"},
    {"MaxSeqlenNegative", packed, [](P& p) { p.max_seqlen_q = -1; },
     "max_seqlen_q -1: at least 0, which takes the total"},
    {"MaxSeqlenDense", dense, [](P& p) { p.max_seqlen_k = 7; },
     "max_seqlen_k 7: k is not packed, so its shape says it"},
};

std::string refusal_name(const testing::TestParamInfo<Refusal>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Operands, ValidateRefuses, testing::ValuesIn(kOperandRefusals),
                         refusal_name);
INSTANTIATE_TEST_SUITE_P(Dtypes, ValidateRefuses, testing::ValuesIn(kDtypeRefusals), refusal_name);
INSTANTIATE_TEST_SUITE_P(Shapes, ValidateRefuses, testing::ValuesIn(kShapeRefusals), refusal_name);
INSTANTIATE_TEST_SUITE_P(Combinations, ValidateRefuses, testing::ValuesIn(kCombinationRefusals),
                         refusal_name);
INSTANTIATE_TEST_SUITE_P(Options, ValidateRefuses, testing::ValuesIn(kOptionRefusals),
                         refusal_name);

TEST(Validate, TakesEmptyExtents) {
  AttentionProblem p = dense();
  p.q.shape[0] = p.out.shape[0] = p.k.shape[0] = p.v.shape[0] = p.lse.shape[0] = 0;
  EXPECT_EQ(validate(p).message(), "");
  p = dense();
  p.k.shape[1] = p.v.shape[1] = 0;
  EXPECT_EQ(validate(p).message(), "");
  p = dense();
  p.q.shape[2] = p.out.shape[2] = p.k.shape[2] = p.v.shape[2] = p.lse.shape[1] = 0;
  EXPECT_EQ(validate(p).message(), "");
}

TEST(Validate, TakesPackedQueriesOnADenseCache) {
  AttentionProblem p = dense();
  p.q = p.out = TensorSpec::contiguous(kF16, {9, 6, 64});
  p.lse = TensorSpec::contiguous(kF32, {6, 9});
  p.cu_seqlens_q = lengths(3);
  EXPECT_EQ(validate(p).message(), "");
}

TEST(Validate, TakesACacheOfMoreRowsThanSequences) {
  AttentionProblem p = dense();
  p.k.shape[0] = p.v.shape[0] = 9;
  p.cache_batch_idx = lengths(2);
  EXPECT_EQ(validate(p).message(), "");
}

}  // namespace
}  // namespace foveal
