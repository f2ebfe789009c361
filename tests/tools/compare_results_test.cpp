// The comparison and its limits, by hand.
#include "tools/compare_results.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tools/error_limits.hpp"

namespace foveal::tools {
namespace {

using testing::ElementsAre;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

ResultTensor result(std::initializer_list<std::int64_t> shape, RowAxes rows) {
  return {.name = "out",
          .spec = TensorSpec::contiguous(DType::kFloat32, shape),
          .rows = rows,
          .heads_first = false,
          .buffer = {}};
}

ErrorStats compared(const std::vector<double>& data, const std::vector<double>& reference) {
  const auto count = static_cast<std::int64_t>(data.size());
  return compare(result({count}, RowAxes::kNone), data, reference, {});
}

TEST(CompareResults, NormsAndTheWorstElement) {
  const ErrorStats stats = compared({3, 4.5, 0, -1}, {3, 4, 0, -1.25});
  EXPECT_EQ(stats.compared, 4);
  EXPECT_EQ(stats.max_abs, 0.5);
  EXPECT_EQ(stats.max_reference, 4);
  EXPECT_DOUBLE_EQ(stats.relative, std::sqrt(0.25 + 0.0625) / std::sqrt(9 + 16 + 1.5625));
  EXPECT_THAT(stats.worst, ElementsAre(1));
  EXPECT_EQ(stats.not_finite, 0);
}

TEST(CompareResults, EqualValuesWithoutASizeAreEqual) {
  const ErrorStats stats = compared({kNan, kInfinity, -kInfinity}, {kNan, kInfinity, -kInfinity});
  EXPECT_EQ(stats.not_finite, 0);
  EXPECT_EQ(stats.relative, 0);
  EXPECT_TRUE(stats.worst.empty());
}

TEST(CompareResults, WhatOnlyOneHasIsCounted) {
  const ErrorStats stats =
      compared({1, kNan, 1, kInfinity, kNan}, {1, 1, -kInfinity, -kInfinity, kInfinity});
  EXPECT_EQ(stats.not_finite, 4);
  EXPECT_THAT(stats.worst, ElementsAre(1)) << "the first one";
}

TEST(CompareResults, ErrorOfAZeroReferenceIsInfinitelyLarge) {
  EXPECT_EQ(compared({0.5}, {0}).relative, kInfinity);
  EXPECT_EQ(compared({0}, {0}).relative, 0);
  EXPECT_EQ(compared({}, {}).compared, 0);
}

TEST(CompareResults, RowsAreTheLeadingDimensionsOfOut) {
  // Two sequences of two rows, one head, one column.
  const ErrorStats stats =
      compare(result({2, 2, 1, 1}, RowAxes::kLeading), std::vector<double>{1, 9, 2, 9},
              std::vector<double>{1, 0, 2, 0}, {true, false, true, false});
  EXPECT_EQ(stats.compared, 2);
  EXPECT_EQ(stats.max_abs, 0);
}

TEST(CompareResults, RowsAreTheLastDimensionOfLse) {
  // Two sequences, two heads, two rows: row 1 of sequence 0 and row 0 of sequence 1 are left out.
  const ErrorStats stats =
      compare(result({2, 2, 2}, RowAxes::kTrailing), std::vector<double>{1, 9, 1, 9, 9, 2, 9, 2},
              std::vector<double>{1, 0, 1, 0, 0, 2, 0, 2}, {true, false, false, true});
  EXPECT_EQ(stats.compared, 4);
  EXPECT_EQ(stats.max_abs, 0);
}

TEST(CompareResults, RowsInUseOfDenseAndPackedSequences) {
  const std::vector<std::int32_t> used{1, 2};
  const std::vector<std::int32_t> cu_seqlens{0, 3, 5};
  AttentionProblem problem;
  AttentionTensors tensors;
  problem.q = TensorSpec::contiguous(DType::kFloat32, {2, 2, 1, 1});
  EXPECT_EQ(rows_in_use(problem, tensors), (std::vector<bool>{true, true, true, true}));
  problem.seqused_q = TensorSpec::contiguous(DType::kInt32, {2});
  tensors.seqused_q = used.data();
  EXPECT_EQ(rows_in_use(problem, tensors), (std::vector<bool>{true, false, true, true}));
  problem.q = TensorSpec::contiguous(DType::kFloat32, {5, 1, 1});
  problem.cu_seqlens_q = TensorSpec::contiguous(DType::kInt32, {3});
  tensors.cu_seqlens_q = cu_seqlens.data();
  EXPECT_EQ(rows_in_use(problem, tensors), (std::vector<bool>{true, false, false, true, true}));
}

TEST(ErrorLimits, GrowWithTheResultAndItsType) {
  const ErrorScales scales{.score = 12};
  EXPECT_DOUBLE_EQ(error_limits("out", DType::kFloat32, scales, 2).max_abs, 2 * 20 * 0x1p-24);
  EXPECT_DOUBLE_EQ(error_limits("out", DType::kFloat16, scales, 2).max_abs, 2 * 1.85 * 0x1p-11);
  EXPECT_DOUBLE_EQ(error_limits("dq", DType::kBFloat16, scales, 2).max_abs, 2 * 8 * 0x1p-8);
  EXPECT_DOUBLE_EQ(error_limits("lse", DType::kBFloat16, scales, 3).max_abs, 40 * 0x1p-24);
  EXPECT_EQ(error_limits("out", DType::kFloat32, scales, 2).relative, 1e-5);
  EXPECT_EQ(error_limits("dk", DType::kFloat16, scales, 2).relative, 0.005);
  EXPECT_EQ(error_limits("dv", DType::kBFloat16, scales, 2).relative, 0.01);
}

/// docs/numerics.md: at most 0.05 on standard normal inputs, whose results stay below 6.
TEST(ErrorLimits, SixteenBitOutOfUnitScaleStaysBelowTheContractsLimit) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    EXPECT_LE(error_limits("out", dtype, {}, 6).max_abs, 0.05);
  }
}

TEST(ErrorLimits, BothNormsCount) {
  const ErrorLimits limits{.relative = 0.01, .max_abs = 0.5, .vanishing = 0};
  EXPECT_TRUE(within({.relative = 0.01, .max_abs = 0.5, .max_reference = 9}, limits));
  EXPECT_FALSE(within({.relative = 0.011, .max_abs = 0.5, .max_reference = 9}, limits));
  EXPECT_FALSE(within({.relative = 0.01, .max_abs = 0.6, .max_reference = 9}, limits));
  EXPECT_FALSE(within({.not_finite = 1}, limits));
}

TEST(ErrorLimits, NoiseInPlaceOfNoiseIsRight) {
  const ErrorLimits limits{.relative = 0.01, .max_abs = 1e-9, .vanishing = 1e-3};
  EXPECT_TRUE(within({.relative = kInfinity, .max_abs = 1e-3, .max_reference = 0}, limits));
  EXPECT_FALSE(within({.relative = kInfinity, .max_abs = 2e-3, .max_reference = 0}, limits));
  EXPECT_FALSE(within({.relative = 0.5, .max_abs = 1e-3, .max_reference = 2e-3}, limits));
}

}  // namespace
}  // namespace foveal::tools
