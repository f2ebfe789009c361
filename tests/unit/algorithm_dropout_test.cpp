// Philox against the vectors that its authors publish with Random123, and dropout's mask as a
// function of each of its coordinates.
#include "algorithm/dropout.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace foveal::test {
namespace {

using algorithm::Dropout;
using algorithm::dropout_keeps;
using algorithm::make_dropout;
using algorithm::PhiloxWords;

void expect_words(const PhiloxWords& actual, const PhiloxWords& expected) {
  for (int i = 0; i < 4; ++i) EXPECT_EQ(actual.word[i], expected.word[i]) << "word " << i;
}

TEST(AlgorithmPhilox, KnownAnswers) {
  expect_words(algorithm::philox4x32({{0, 0, 0, 0}}, 0, 0),
               {{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}});
  expect_words(algorithm::philox4x32({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u),
               {{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}});
  expect_words(algorithm::philox4x32({{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}},
                                     0xa4093822u, 0x299f31d0u),
               {{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}});
}

// The layout of counter and key is part of the contract: another device must draw the same mask.
TEST(AlgorithmDropout, CounterAndKeyLayout) {
  const Dropout dropout = make_dropout(0.5f, 0x1122334455667788u, 0x99aabbccddeeff00u);
  expect_words(
      algorithm::dropout_words(dropout, /*batch_head=*/3, /*i=*/5, /*column_block=*/7),
      algorithm::philox4x32({{7, 5, 3, 0xddeeff00u}}, 0x55667788u, 0x11223344u ^ 0x99aabbccu));
}

TEST(AlgorithmDropout, ElementsComeFromTheirWordOfFour) {
  const Dropout dropout = make_dropout(0.3f, 11, 12);
  for (std::int64_t j = 0; j < 64; ++j) {
    const PhiloxWords words = algorithm::dropout_words(dropout, 2, 9, j / 4);
    EXPECT_EQ(dropout_keeps(dropout, 2, 9, j), words.word[j % 4] >= dropout.threshold) << j;
  }
}

TEST(AlgorithmDropout, AWordBelowTheThresholdDrops) {
  Dropout dropout = make_dropout(0.5f, 11, 12);
  const std::uint32_t word = algorithm::dropout_words(dropout, 2, 9, 0).word[3];
  dropout.threshold = word;
  EXPECT_TRUE(dropout_keeps(dropout, 2, 9, 3));
  dropout.threshold = std::uint64_t{word} + 1;
  EXPECT_FALSE(dropout_keeps(dropout, 2, 9, 3));
}

TEST(AlgorithmDropout, ZeroAndOneAreExact) {
  const Dropout none = make_dropout(0.0f, 1, 2);
  EXPECT_FALSE(none.enabled());
  EXPECT_EQ(none.keep_scale, 1.0f);
  const Dropout all = make_dropout(1.0f, 1, 2);
  EXPECT_TRUE(all.enabled());
  EXPECT_EQ(all.keep_scale, 0.0f);
  for (std::int64_t j = 0; j < 1000; ++j) {
    EXPECT_TRUE(dropout_keeps(none, 0, 0, j));
    EXPECT_FALSE(dropout_keeps(all, 0, 0, j));
  }
}

/// Kept elements among `rows` x `columns`.
std::int64_t count_kept(const Dropout& dropout, std::int64_t rows, std::int64_t columns) {
  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) kept += dropout_keeps(dropout, 1, i, j) ? 1 : 0;
  }
  return kept;
}

TEST(AlgorithmDropout, RateIsWithinFiveDeviations) {
  constexpr std::int64_t kRows = 512;
  constexpr std::int64_t kColumns = 1024;
  constexpr double kCount = kRows * kColumns;
  for (const float p : {0.01f, 0.1f, 0.5f, 0.9f}) {
    const double probability = static_cast<double>(p);
    const double deviation = std::sqrt(kCount * probability * (1 - probability));
    const auto kept = static_cast<double>(count_kept(make_dropout(p, 42, 0), kRows, kColumns));
    EXPECT_NEAR(kept, kCount * (1 - probability), 5 * deviation) << "p " << p;
    EXPECT_NEAR(make_dropout(p, 0, 0).keep_scale, 1 / (1 - probability), 1e-5) << "p " << p;
  }
}

/// Share of elements on which two masks of p = 0.5 agree.
template <class First, class Second>
double agreement(First first, Second second) {
  constexpr std::int64_t kSide = 256;
  std::int64_t same = 0;
  for (std::int64_t i = 0; i < kSide; ++i) {
    for (std::int64_t j = 0; j < kSide; ++j) same += first(i, j) == second(i, j) ? 1 : 0;
  }
  return static_cast<double>(same) / (kSide * kSide);
}

TEST(AlgorithmDropout, EveryCoordinateDrawsAnew) {
  const auto mask = [](std::uint64_t seed, std::uint64_t offset, std::int64_t batch_head) {
    return [dropout = make_dropout(0.5f, seed, offset), batch_head](
               std::int64_t i, std::int64_t j) { return dropout_keeps(dropout, batch_head, i, j); };
  };
  const auto base = mask(5, 6, 7);
  EXPECT_EQ(agreement(base, mask(5, 6, 7)), 1.0);
  // 65536 fair coins: five deviations are 0.01.
  constexpr double kFair = 0.01;
  EXPECT_NEAR(agreement(base, mask(8, 6, 7)), 0.5, kFair);
  EXPECT_NEAR(agreement(base, mask(5 + (1ull << 32), 6, 7)), 0.5, kFair);
  EXPECT_NEAR(agreement(base, mask(5, 9, 7)), 0.5, kFair);
  EXPECT_NEAR(agreement(base, mask(5, 6 + (1ull << 32), 7)), 0.5, kFair);
  EXPECT_NEAR(agreement(base, mask(5, 6, 8)), 0.5, kFair);
  const auto moved = [&](std::int64_t down, std::int64_t right) {
    return [=](std::int64_t i, std::int64_t j) { return base(i + down, j + right); };
  };
  EXPECT_NEAR(agreement(base, moved(1, 0)), 0.5, kFair);
  EXPECT_NEAR(agreement(base, moved(0, 1)), 0.5, kFair);
  EXPECT_NEAR(agreement(base, moved(0, 4)), 0.5, kFair);
}

}  // namespace
}  // namespace foveal::test
