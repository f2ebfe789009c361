// What only the data can tell: every clause of validate(problem, tensors).
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <foveal/problem.hpp>

namespace foveal {
namespace {

constexpr DType kF32 = DType::kFloat32;
constexpr DType kI32 = DType::kInt32;

/// A problem with its lengths in host memory. The data of q, k, v and out is never read here.
struct Lengths {
  AttentionProblem problem;
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k;
  std::vector<std::int32_t> block_table, cache_batch_idx;
  float any[1] = {};

  [[nodiscard]] Status check() {
    AttentionTensors tensors;
    for (const OperandInfo& operand : operands()) {
      if (!(problem.*operand.spec).present()) continue;
      if (operand.input != nullptr) tensors.*operand.input = any;
      if (operand.output != nullptr) tensors.*operand.output = any;
    }
    tensors.cu_seqlens_q = cu_seqlens_q.data();
    tensors.cu_seqlens_k = cu_seqlens_k.data();
    tensors.seqused_q = seqused_q.data();
    tensors.seqused_k = seqused_k.data();
    tensors.leftpad_k = leftpad_k.data();
    tensors.block_table = block_table.data();
    tensors.cache_batch_idx = cache_batch_idx.data();
    EXPECT_EQ(validate(problem).message(), "");
    return validate(problem, tensors);
  }
};

Lengths packed() {
  Lengths l;
  l.problem.q = l.problem.out = TensorSpec::contiguous(kF32, {10, 2, 8});
  l.problem.k = l.problem.v = TensorSpec::contiguous(kF32, {14, 2, 8});
  l.problem.cu_seqlens_q = l.problem.cu_seqlens_k = TensorSpec::contiguous(kI32, {4});
  l.cu_seqlens_q = {0, 3, 3, 10};
  l.cu_seqlens_k = {0, 5, 7, 14};
  return l;
}

Lengths cache() {
  Lengths l;
  l.problem.q = l.problem.out = TensorSpec::contiguous(kF32, {2, 4, 2, 8});
  l.problem.k = l.problem.v = TensorSpec::contiguous(kF32, {2, 16, 2, 8});
  l.problem.seqused_q = l.problem.seqused_k = l.problem.leftpad_k =
      TensorSpec::contiguous(kI32, {2});
  l.seqused_q = {4, 0};
  l.seqused_k = {16, 5};
  l.leftpad_k = {0, 5};
  return l;
}

Lengths paged() {
  Lengths l;
  l.problem.q = l.problem.out = TensorSpec::contiguous(kF32, {1, 1, 2, 8});
  l.problem.k = l.problem.v = TensorSpec::contiguous(kF32, {4, 16, 2, 8});
  l.problem.block_table = TensorSpec::contiguous(kI32, {1, 2});
  l.problem.seqused_k = TensorSpec::contiguous(kI32, {1});
  l.block_table = {3, 1};
  l.seqused_k = {32};
  return l;
}

Lengths rows_of_cache() {
  Lengths l = cache();
  l.problem.k.shape[0] = l.problem.v.shape[0] = 5;
  l.problem.cache_batch_idx = TensorSpec::contiguous(kI32, {2});
  l.cache_batch_idx = {4, 0};
  return l;
}

Lengths appending() {
  Lengths l = paged();
  l.problem.pass = Pass::kAppend;
  l.problem.q = l.problem.out = {};
  l.problem.k_new = l.problem.v_new = TensorSpec::contiguous(kF32, {1, 1, 2, 8});
  l.problem.rotary_cos = l.problem.rotary_sin = TensorSpec::contiguous(kF32, {32, 4});
  l.seqused_k = {31};
  return l;
}

/// Two sequences of two new tokens each; the first page is the prefix of both.
Lengths appending_to_pages() {
  Lengths l = appending();
  l.problem.block_table = TensorSpec::contiguous(kI32, {2, 2});
  l.problem.k_new = l.problem.v_new = TensorSpec::contiguous(kF32, {2, 2, 2, 8});
  l.problem.seqused_k = TensorSpec::contiguous(kI32, {2});
  l.block_table = {3, 1, 3, 2};
  l.seqused_k = {20, 16};
  return l;
}

/// The same in one row of a dense cache, one after the other.
Lengths appending_to_rows() {
  Lengths l = appending_to_pages();
  l.problem.block_table = {};
  l.problem.k = l.problem.v = TensorSpec::contiguous(kF32, {3, 32, 2, 8});
  l.problem.cache_batch_idx = TensorSpec::contiguous(kI32, {2});
  l.cache_batch_idx = {2, 2};
  l.seqused_k = {7, 5};
  return l;
}

struct Refusal {
  const char* name;
  Lengths (*valid)();
  std::function<void(Lengths&)> spoil;
  const char* message;
};

void PrintTo(const Refusal& refusal, std::ostream* stream) { *stream << refusal.name; }

const Refusal kRefusals[] = {
    {"CuStart", packed, [](Lengths& l) { l.cu_seqlens_q[0] = 1; },
     "cu_seqlens_q must start at 0, got 1"},
    {"CuDecreases", packed,
     [](Lengths& l) {
       l.cu_seqlens_k = {0, 9, 7, 14};
     },
     "cu_seqlens_k must not decrease: entry 2 is 7 after 9"},
    {"CuEnd", packed, [](Lengths& l) { l.cu_seqlens_k[3] = 13; },
     "cu_seqlens_k must end at total_k = 14, got 13"},
    {"CuBeyond", packed, [](Lengths& l) { l.cu_seqlens_q[3] = 11; },
     "cu_seqlens_q must end at total_q = 10, got 11"},
    {"MaxSeqlen", packed, [](Lengths& l) { l.problem.max_seqlen_q = 6; },
     "max_seqlen_q 6: sequence 2 has 7 tokens"},
    {"SequsedQ", cache, [](Lengths& l) { l.seqused_q[1] = 5; },
     "seqused_q[1] 5: between 0 and the capacity of sequence 1, 4"},
    {"SequsedK", cache, [](Lengths& l) { l.seqused_k[0] = 17; },
     "seqused_k[0] 17: between 0 and the capacity of sequence 0, 16"},
    {"SequsedNegative", cache, [](Lengths& l) { l.seqused_k[1] = -1; },
     "seqused_k[1] -1: between 0 and the capacity of sequence 1, 16"},
    {"Leftpad", cache, [](Lengths& l) { l.leftpad_k[1] = 6; },
     "leftpad_k[1] 6: between 0 and the keys in use of sequence 1, 5"},
    {"LeftpadNegative", cache, [](Lengths& l) { l.leftpad_k[0] = -1; },
     "leftpad_k[0] -1: between 0 and the keys in use of sequence 0, 16"},
    {"TableTooShort", paged, [](Lengths& l) { l.seqused_k[0] = 33; },
     "seqused_k[0] 33: between 0 and the capacity of sequence 0, 32"},
    {"PageBeyond", paged, [](Lengths& l) { l.block_table[1] = 4; },
     "block_table[0][1] 4: between 0 and 3, since sequence 0 uses 32 keys"},
    {"PageNegative", paged,
     [](Lengths& l) {
       l.block_table[1] = -1;
       l.seqused_k[0] = 17;
     },
     "block_table[0][1] -1: between 0 and 3, since sequence 0 uses 17 keys"},
    {"CacheRow", rows_of_cache, [](Lengths& l) { l.cache_batch_idx[0] = 5; },
     "cache_batch_idx[0] 5: between 0 and 4, the rows of the cache"},
    {"NoRoom", appending, [](Lengths& l) { l.seqused_k[0] = 32; },
     "seqused_k[0] 32: with 1 tokens to append at most 31, the capacity being 32"},
    {"RotaryShort", appending,
     [](Lengths& l) {
       l.problem.rotary_cos = l.problem.rotary_sin = TensorSpec::contiguous(kF32, {31, 4});
     },
     "rotary_cos has 31 positions: sequence 0 reaches 32"},
    {"PageOfTwo", appending_to_pages,
     [](Lengths& l) {
       l.block_table[3] = 1;
       l.seqused_k[1] = 19;
     },
     "block_table: sequences 0 and 1 both append to page 1, at 4"},
    {"PrefixOfTwo", appending_to_pages,
     [](Lengths& l) {
       l.seqused_k = {14, 15};
     },
     "block_table: sequences 0 and 1 both append to page 3, at 15"},
    {"RowOfTwo", appending_to_rows, [](Lengths& l) { l.seqused_k[1] = 6; },
     "cache_batch_idx: sequences 0 and 1 both append to row 2, at 7"},
};

class ValidateRefusesValues : public testing::TestWithParam<Refusal> {};

TEST_P(ValidateRefusesValues, WithOneSentence) {
  Lengths lengths = GetParam().valid();
  ASSERT_EQ(lengths.check().message(), "");
  GetParam().spoil(lengths);
  const Status status = lengths.check();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(All, ValidateRefusesValues, testing::ValuesIn(kRefusals),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ValidateValues, IgnoresEntriesOfPagesThatAreNotInUse) {
  Lengths lengths = paged();
  lengths.block_table = {3, -1};
  lengths.seqused_k = {16};
  EXPECT_EQ(lengths.check().message(), "");
}

TEST(ValidateValues, AsksForRotaryPositionsThatAreRead) {
  Lengths lengths = appending();
  lengths.problem.q = lengths.problem.q_rotated = TensorSpec::contiguous(kF32, {1, 5, 2, 8});
  EXPECT_EQ(lengths.check().message(), "") << "all rows of q stand at the first new position";
  lengths.problem.causal = true;
  EXPECT_EQ(lengths.check().message(), "rotary_cos has 32 positions: sequence 0 reaches 36");
}

TEST(ValidateValues, LooksAtNoSequenceWithoutLengths) {
  AttentionProblem problem;
  problem.q = problem.out = TensorSpec::strided(kF32, {2147483647, 1, 2, 8}, {0, 0, 8, 1});
  problem.k = problem.v = problem.q;
  float any[1] = {};
  EXPECT_EQ(validate(problem, {.q = any, .k = any, .v = any, .out = any}).message(), "");
}

TEST(ValidateValues, RefusesNullAndMisalignedPointers) {
  Lengths lengths = cache();
  const float any[1] = {};
  float out[1] = {};
  AttentionTensors tensors{.q = any, .k = any, .v = any, .out = out};
  tensors.seqused_q = lengths.seqused_q.data();
  tensors.seqused_k = lengths.seqused_k.data();
  EXPECT_EQ(validate(lengths.problem, tensors).message(),
            "leftpad_k has no data: its pointer is null");
  tensors.leftpad_k = reinterpret_cast<const char*>(lengths.leftpad_k.data()) + 1;
  EXPECT_EQ(validate(lengths.problem, tensors).message(), "leftpad_k is not aligned to 4 bytes");
}

TEST(ValidateValues, TakesNullForEmptyTensors) {
  AttentionProblem problem;
  problem.q = problem.out = TensorSpec::contiguous(kF32, {0, 4, 2, 8});
  problem.k = problem.v = TensorSpec::contiguous(kF32, {0, 4, 2, 8});
  EXPECT_EQ(validate(problem, AttentionTensors{}).message(), "");
}

}  // namespace
}  // namespace foveal
