// Lengths of a sequence: exact for valid arrays, inside the tensors for any others.
#include "algorithm/seqlen_info.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>

#include "support/random.hpp"

namespace foveal::test {
namespace {

using algorithm::SeqlenInfo;
using algorithm::SeqlenSource;

TEST(AlgorithmSeqlenInfo, DenseTakesTheDimensions) {
  const SeqlenInfo info = algorithm::seqlen_info({.rows_q = 5, .rows_k = 7}, 3);
  EXPECT_EQ(info.q_begin, 0);
  EXPECT_EQ(info.k_begin, 0);
  EXPECT_EQ(info.seqlen_q, 5);
  EXPECT_EQ(info.seqlen_k, 7);
  EXPECT_EQ(info.capacity_q, 5);
  EXPECT_EQ(info.capacity_k, 7);
  EXPECT_EQ(info.seqlen_cache, 7);
}

TEST(AlgorithmSeqlenInfo, PackedTakesTheDocumentAndWhatIsUsedOfIt) {
  const std::array<std::int32_t, 4> cu_seqlens_q{0, 3, 3, 9};
  const std::array<std::int32_t, 4> cu_seqlens_k{0, 5, 9, 9};
  const std::array<std::int32_t, 3> seqused_q{2, 0, 6};
  const std::array<std::int32_t, 3> seqused_k{5, 1, 0};
  const SeqlenSource source{.cu_seqlens_q = cu_seqlens_q.data(),
                            .cu_seqlens_k = cu_seqlens_k.data(),
                            .seqused_q = seqused_q.data(),
                            .seqused_k = seqused_k.data(),
                            .rows_q = 9,
                            .rows_k = 9};
  const SeqlenInfo first = algorithm::seqlen_info(source, 0);
  EXPECT_EQ(first.seqlen_q, 2);
  EXPECT_EQ(first.capacity_q, 3);
  EXPECT_EQ(first.seqlen_k, 5);
  const SeqlenInfo second = algorithm::seqlen_info(source, 1);
  EXPECT_EQ(second.q_begin, 3);
  EXPECT_EQ(second.capacity_q, 0);
  EXPECT_EQ(second.k_begin, 5);
  EXPECT_EQ(second.capacity_k, 4);
  EXPECT_EQ(second.seqlen_k, 1);
  const SeqlenInfo third = algorithm::seqlen_info(source, 2);
  EXPECT_EQ(third.q_begin, 3);
  EXPECT_EQ(third.seqlen_q, 6);
  EXPECT_EQ(third.k_begin, 9);
  EXPECT_EQ(third.seqlen_k, 0);
}

TEST(AlgorithmSeqlenInfo, AppendedTokensCountAndLeftPaddingDoesNot) {
  const std::array<std::int32_t, 1> seqused_k{6};
  const std::array<std::int32_t, 1> leftpad_k{4};
  const SeqlenSource source{.seqused_k = seqused_k.data(),
                            .leftpad_k = leftpad_k.data(),
                            .rows_q = 2,
                            .rows_k = 16,
                            .seqlen_new = 3};
  const SeqlenInfo info = algorithm::seqlen_info(source, 0);
  EXPECT_EQ(info.seqlen_cache, 6);
  EXPECT_EQ(info.leftpad_k, 4);
  EXPECT_EQ(info.seqlen_k, 5);
}

/// Small numbers of either sign, and now and then the ends of the type.
std::int32_t wild_value(Random& random) {
  if (random.chance(0.1)) return std::numeric_limits<std::int32_t>::max();
  if (random.chance(0.1)) return std::numeric_limits<std::int32_t>::min();
  return static_cast<std::int32_t>(random.integer(-4, 12));
}

void expect_inside(const SeqlenSource& source, const SeqlenInfo& info) {
  ASSERT_GE(info.q_begin, 0);
  ASSERT_GE(info.capacity_q, 0);
  ASSERT_LE(info.q_begin + info.capacity_q, source.rows_q);
  ASSERT_GE(info.seqlen_q, 0);
  ASSERT_LE(info.seqlen_q, info.capacity_q);
  ASSERT_GE(info.k_begin, 0);
  ASSERT_GE(info.capacity_k, 0);
  ASSERT_LE(info.k_begin + info.capacity_k, source.rows_k);
  ASSERT_GE(info.seqlen_cache, 0);
  ASSERT_LE(info.seqlen_cache, info.capacity_k);
  ASSERT_GE(info.leftpad_k, 0);
  ASSERT_GE(info.seqlen_k, 0);
  ASSERT_LE(info.leftpad_k + info.seqlen_k, info.capacity_k);
  ASSERT_LE(info.leftpad_k + info.seqlen_k, info.seqlen_cache + source.seqlen_new);
}

TEST(AlgorithmSeqlenInfo, WildArraysNeverLeaveTheTensors) {
  Random random(1);
  for (int repeat = 0; repeat < 200000; ++repeat) {
    std::array<std::int32_t, 2> cu_seqlens_q{wild_value(random), wild_value(random)};
    std::array<std::int32_t, 2> cu_seqlens_k{wild_value(random), wild_value(random)};
    const std::array<std::int32_t, 1> seqused_q{wild_value(random)};
    const std::array<std::int32_t, 1> seqused_k{wild_value(random)};
    const std::array<std::int32_t, 1> leftpad_k{wild_value(random)};
    SeqlenSource source;
    if (random.chance(0.7)) source.cu_seqlens_q = cu_seqlens_q.data();
    if (random.chance(0.7)) source.cu_seqlens_k = cu_seqlens_k.data();
    if (random.chance(0.5)) source.seqused_q = seqused_q.data();
    if (random.chance(0.5)) source.seqused_k = seqused_k.data();
    if (random.chance(0.5)) source.leftpad_k = leftpad_k.data();
    source.rows_q = random.integer(0, 8);
    source.rows_k = random.integer(0, 8);
    source.seqlen_new = random.integer(0, 4);
    expect_inside(source, algorithm::seqlen_info(source, 0));
    if (HasFatalFailure()) FAIL() << "repeat " << repeat;
  }
}

TEST(AlgorithmSeqlenInfo, ValidArraysAreTakenAsTheyAre) {
  Random random(2);
  for (int repeat = 0; repeat < 20000; ++repeat) {
    const auto draw = [&](std::int64_t low, std::int64_t high) {
      return static_cast<std::int32_t>(random.integer(low, high));
    };
    const std::int32_t k_end = draw(0, 12);
    const std::int32_t k_begin = draw(0, k_end);
    const std::int32_t used = draw(0, k_end - k_begin);
    const std::int64_t seqlen_new = random.integer(0, k_end - k_begin - used);
    const std::int32_t leftpad = draw(0, used + seqlen_new);
    const std::array<std::int32_t, 2> cu_seqlens_k{k_begin, k_end};
    const SeqlenSource source{.cu_seqlens_k = cu_seqlens_k.data(),
                              .seqused_k = &used,
                              .leftpad_k = &leftpad,
                              .rows_q = 1,
                              .rows_k = 12,
                              .seqlen_new = seqlen_new};
    const SeqlenInfo info = algorithm::seqlen_info(source, 0);
    ASSERT_EQ(info.k_begin, k_begin);
    ASSERT_EQ(info.capacity_k, k_end - k_begin);
    ASSERT_EQ(info.seqlen_cache, used);
    ASSERT_EQ(info.leftpad_k, leftpad);
    ASSERT_EQ(info.seqlen_k, used + seqlen_new - leftpad);
  }
}

}  // namespace
}  // namespace foveal::test
