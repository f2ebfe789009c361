// Softmax block by block, and the merge of parts, against the sum taken directly in double.
#include "algorithm/online_softmax.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "algorithm/split_merge.hpp"
#include "support/random.hpp"

namespace foveal::test {
namespace {

using algorithm::kNegativeInfinity;
using algorithm::merge_weights;
using algorithm::MergeWeights;
using algorithm::SoftmaxState;

constexpr double kDoubleInfinity = std::numeric_limits<double>::infinity();

struct Row {
  std::vector<float> scores;
  std::vector<float> values;
  std::optional<float> sink;
};

struct Attended {
  double out = 0;
  double lse = -kDoubleInfinity;
};

Attended attend_directly(const Row& row) {
  double largest = row.sink ? static_cast<double>(*row.sink) : -kDoubleInfinity;
  for (const float score : row.scores) largest = std::fmax(largest, score);
  if (largest == -kDoubleInfinity) return {};
  double sum = row.sink ? std::exp(static_cast<double>(*row.sink) - largest) : 0.0;
  double weighted = 0;
  for (std::size_t j = 0; j < row.scores.size(); ++j) {
    const double weight = std::exp(static_cast<double>(row.scores[j]) - largest);
    sum += weight;
    weighted += weight * static_cast<double>(row.values[j]);
  }
  return {weighted / sum, largest + std::log(sum)};
}

/// The loop of a blocked kernel, over blocks of `block` scores.
Attended attend_blocks(const Row& row, std::size_t block) {
  SoftmaxState state;
  float accumulator = 0;
  for (std::size_t begin = 0; begin < row.scores.size(); begin += block) {
    const std::size_t end = std::min(begin + block, row.scores.size());
    float new_max = state.row_max;
    for (std::size_t j = begin; j < end; ++j) new_max = std::fmax(new_max, row.scores[j]);
    const float factor = algorithm::rescale_factor(state.row_max, new_max);
    state.row_sum *= factor;
    accumulator *= factor;
    for (std::size_t j = begin; j < end; ++j) {
      const float weight = std::exp(row.scores[j] - algorithm::softmax_offset(new_max));
      state.row_sum += weight;
      accumulator += weight * row.values[j];
    }
    state.row_max = new_max;
  }
  if (row.sink) accumulator *= algorithm::fold_sink(state, *row.sink);
  return {static_cast<double>(accumulator * algorithm::inverse_row_sum(state.row_sum)),
          static_cast<double>(algorithm::row_lse(state))};
}

/// Of out, whose values are within [-1, 1].
constexpr double kOutTolerance = 3e-6;

void expect_close(const Attended& actual, const Attended& expected, const std::string& what,
                  double out_tolerance = kOutTolerance) {
  if (std::isinf(expected.lse)) {
    EXPECT_EQ(actual.lse, expected.lse) << what;
  } else {
    EXPECT_NEAR(actual.lse, expected.lse, 1e-6 * (1 + std::fabs(expected.lse))) << what;
  }
  EXPECT_NEAR(actual.out, expected.out, out_tolerance) << what;
}

void expect_blocks_agree(const Row& row, const std::string& what) {
  const Attended expected = attend_directly(row);
  for (const std::size_t block : {1, 2, 3, 7, 64}) {
    expect_close(attend_blocks(row, block), expected,
                 what + ", blocks of " + std::to_string(block));
  }
}

/// Scores of mean `offset`; each is -inf with probability `hidden`.
Row random_row(Random& random, std::size_t size, double offset, double hidden) {
  Row row;
  for (std::size_t j = 0; j < size; ++j) {
    row.scores.push_back(random.chance(hidden) ? kNegativeInfinity
                                               : static_cast<float>(offset + 5 * random.normal()));
    row.values.push_back(static_cast<float>(2 * random.uniform() - 1));
  }
  return row;
}

TEST(AlgorithmOnlineSoftmax, BlocksGiveTheDirectSum) {
  Random random(7);
  for (const double offset : {0.0, -1000.0, 1000.0, -90000.0}) {
    for (const double hidden : {0.0, 0.5, 1.0}) {
      for (const std::size_t size : {0, 1, 2, 13, 100}) {
        expect_blocks_agree(random_row(random, size, offset, hidden),
                            "size " + std::to_string(size) + " offset " + std::to_string(offset) +
                                " hidden " + std::to_string(hidden));
      }
    }
  }
}

// Leading blocks without a visible key must leave no trace, however low the later scores are.
TEST(AlgorithmOnlineSoftmax, HiddenBlocksBeforeLowScores) {
  Row row;
  row.scores.assign(10, kNegativeInfinity);
  row.values.assign(10, 1.0f);
  for (int j = 0; j < 3; ++j) {
    row.scores.push_back(-203.6f);
    row.values.push_back(0.25f * static_cast<float>(j));
  }
  expect_blocks_agree(row, "low scores");
  EXPECT_NEAR(attend_blocks(row, 5).out, 0.25, 1e-6);
}

TEST(AlgorithmOnlineSoftmax, SinksOfAnySize) {
  Random random(8);
  for (const float sink : {0.0f, 0.693147f, 100.0f, -100.0f, kNegativeInfinity}) {
    for (const double hidden : {0.0, 0.5, 1.0}) {
      for (const std::size_t size : {0, 1, 20}) {
        Row row = random_row(random, size, 0, hidden);
        row.sink = sink;
        expect_blocks_agree(row, "sink " + std::to_string(sink) + " size " + std::to_string(size) +
                                     " hidden " + std::to_string(hidden));
      }
    }
  }
}

TEST(AlgorithmOnlineSoftmax, ASinkAloneIsTheLse) {
  SoftmaxState state;
  (void)algorithm::fold_sink(state, 0.5f);
  EXPECT_EQ(algorithm::row_lse(state), 0.5f);
  SoftmaxState none;
  EXPECT_EQ(algorithm::fold_sink(none, kNegativeInfinity), 1.0f);
  EXPECT_EQ(algorithm::row_lse(none), kNegativeInfinity);
  EXPECT_EQ(algorithm::inverse_row_sum(none.row_sum), 0.0f);
}

TEST(AlgorithmOnlineSoftmax, NaNScoresReachTheResult) {
  Row row{.scores = {0.0f, std::numeric_limits<float>::quiet_NaN(), 1.0f},
          .values = {1.0f, 1.0f, 1.0f},
          .sink = std::nullopt};
  EXPECT_TRUE(std::isnan(attend_blocks(row, 2).out));
  EXPECT_TRUE(std::isnan(attend_blocks(row, 2).lse));
}

/// out and lse of the union, from the parts.
Attended merged(const Attended& a, const Attended& b) {
  const MergeWeights weights = merge_weights(static_cast<float>(a.lse), static_cast<float>(b.lse));
  return {
      static_cast<double>(weights.weight_a) * a.out + static_cast<double>(weights.weight_b) * b.out,
      static_cast<double>(weights.lse)};
}

TEST(AlgorithmSplitMerge, PartsGiveTheWhole) {
  Random random(9);
  for (const double offset : {0.0, -1000.0, 1000.0}) {
    // The parts' lse are rounded to float before they become weights.
    const double tolerance = kOutTolerance + std::fabs(offset) * 0x1p-23;
    for (const std::size_t cut : {0, 1, 17, 40}) {
      const Row whole = random_row(random, 40, offset, 0.3);
      Row left = whole;
      left.scores.resize(cut);
      left.values.resize(cut);
      Row right;
      right.scores.assign(whole.scores.begin() + static_cast<std::ptrdiff_t>(cut),
                          whole.scores.end());
      right.values.assign(whole.values.begin() + static_cast<std::ptrdiff_t>(cut),
                          whole.values.end());
      expect_close(merged(attend_directly(left), attend_directly(right)), attend_directly(whole),
                   "cut at " + std::to_string(cut) + " offset " + std::to_string(offset),
                   tolerance);
    }
  }
}

TEST(AlgorithmSplitMerge, NothingIsNeutralAndNothingWithNothingIsNothing) {
  const MergeWeights none = merge_weights(kNegativeInfinity, kNegativeInfinity);
  EXPECT_EQ(none.weight_a, 0.0f);
  EXPECT_EQ(none.weight_b, 0.0f);
  EXPECT_EQ(none.lse, kNegativeInfinity);
  const MergeWeights right = merge_weights(kNegativeInfinity, 0.7f);
  EXPECT_EQ(right.weight_a, 0.0f);
  EXPECT_EQ(right.weight_b, 1.0f);
  EXPECT_EQ(right.lse, 0.7f);
  const MergeWeights left = merge_weights(0.7f, kNegativeInfinity);
  EXPECT_EQ(left.weight_a, 1.0f);
  EXPECT_EQ(left.weight_b, 0.0f);
  EXPECT_EQ(left.lse, 0.7f);
}

TEST(AlgorithmSplitMerge, CommutesExactlyAndAssociatesUpToRounding) {
  Random random(10);
  for (int repeat = 0; repeat < 1000; ++repeat) {
    const auto draw = [&]() -> Attended {
      if (random.chance(0.2)) return {};
      return {2 * random.uniform() - 1, 30 * random.normal()};
    };
    const Attended a = draw();
    const Attended b = draw();
    const Attended c = draw();
    EXPECT_EQ(merged(a, b).lse, merged(b, a).lse);
    EXPECT_EQ(merged(a, b).out, merged(b, a).out);
    expect_close(merged(merged(a, b), c), merged(a, merged(b, c)), "associativity");
  }
}

TEST(AlgorithmSplitMerge, FarApartPartsDoNotOverflow) {
  const MergeWeights weights = merge_weights(-90000.0f, 90000.0f);
  EXPECT_EQ(weights.weight_a, 0.0f);
  EXPECT_EQ(weights.weight_b, 1.0f);
  EXPECT_EQ(weights.lse, 90000.0f);
}

}  // namespace
}  // namespace foveal::test
