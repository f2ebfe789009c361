// Keys in two parts: the merge of results, and each part's backward with the whole's out and lse.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "unit/reference_case.hpp"

namespace foveal::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kNegativeInfinity = -std::numeric_limits<double>::infinity();

constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kSeqlenQ = 3;
constexpr std::int64_t kHeadsQ = 4;
constexpr std::int64_t kHeadsK = 2;
constexpr std::int64_t kHeaddim = 5;

/// One side of a merge.
struct Part {
  std::vector<double> out, lse;
};

OracleCase merge_case(const Part& a, const Part& b, const Shape& out_shape,
                      const Shape& lse_shape) {
  OracleCase test;
  test.problem.pass = Pass::kMerge;
  test.add("out_a", out_shape, list(a.out));
  test.add("lse_a", lse_shape, list(a.lse));
  test.add("out_b", out_shape, list(b.out));
  test.add("lse_b", lse_shape, list(b.lse));
  test.want("out", out_shape);
  test.want("lse", lse_shape);
  return test;
}

/// One row of one head with one column.
Part merge_scalars(double out_a, double lse_a, double out_b, double lse_b) {
  const OracleResult result =
      merge_case({{out_a}, {lse_a}}, {{out_b}, {lse_b}}, {1, 1, 1, 1}, {1, 1, 1}).run();
  return {result.out, result.lse};
}

TEST(ReferenceMerge, NothingIsNeutralWhateverItHolds) {
  for (const double nothing : {0.0, kNaN}) {
    const Part right = merge_scalars(nothing, kNegativeInfinity, 2, 0.75);
    EXPECT_EQ(right.out, std::vector<double>{2});
    EXPECT_EQ(right.lse, std::vector<double>{0.75});
    const Part left = merge_scalars(2, 0.75, nothing, kNegativeInfinity);
    EXPECT_EQ(left.out, std::vector<double>{2});
    EXPECT_EQ(left.lse, std::vector<double>{0.75});
    const Part none = merge_scalars(nothing, kNegativeInfinity, nothing, kNegativeInfinity);
    EXPECT_EQ(none.out, std::vector<double>{0});
    EXPECT_EQ(none.lse, std::vector<double>{kNegativeInfinity});
  }
}

TEST(ReferenceMerge, MeansOfCountsMerge) {
  // Keys 0..5 and 6..7 with equal weights: means 2.5 and 6.5, together 3.5.
  const auto ln6 = static_cast<double>(std::log(6.0f));
  const auto ln2 = static_cast<double>(std::log(2.0f));
  const Part whole = merge_scalars(2.5, ln6, 6.5, ln2);
  EXPECT_NEAR(whole.out[0], 3.5, 1e-6);
  EXPECT_NEAR(whole.lse[0], std::log(8), 1e-6);
}

TEST(ReferenceMerge, FarApartPartsStayFinite) {
  const Part far = merge_scalars(1, -90000, 2, 90000);
  EXPECT_EQ(far.out, std::vector<double>{2});
  EXPECT_EQ(far.lse, std::vector<double>{90000});
}

TEST(ReferenceMerge, CommutesAndIsAssociative) {
  Random random(2);
  const auto draw = [&]() -> Part {
    return {{random.normal()}, {random.chance(0.2) ? kNegativeInfinity : 3 * random.normal()}};
  };
  const auto merged = [](const Part& a, const Part& b) {
    return merge_scalars(a.out[0], a.lse[0], b.out[0], b.lse[0]);
  };
  for (int repeat = 0; repeat < 200; ++repeat) {
    const Part a = draw();
    const Part b = draw();
    const Part c = draw();
    EXPECT_EQ(merged(a, b).out, merged(b, a).out);
    EXPECT_EQ(merged(a, b).lse, merged(b, a).lse);
    const Part left = merged(merged(a, b), c);
    const Part right = merged(a, merged(b, c));
    expect_values(left.out, right.out, 1e-5);  // inner results are rounded to fp32
    expect_values(left.lse, right.lse, 1e-5);
  }
}

/// Attention over the keys [begin, end) of 9 keys of two sequences, no mask; the sink, if any, is
/// in the part that begins at 0.
OracleCase part_case(std::int64_t begin, std::int64_t end, bool packed_q) {
  Random random(4);
  const Fill fill = normal(random);
  const auto draw = [&](std::int64_t count) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < count; ++i) values.push_back(fill({}));
    return values;
  };
  const std::vector<double> q = draw(kBatch * kSeqlenQ * kHeadsQ * kHeaddim);
  const std::vector<double> k = draw(kBatch * 9 * kHeadsK * kHeaddim);
  const std::vector<double> v = draw(kBatch * 9 * kHeadsK * kHeaddim);
  const auto keys = [begin](const std::vector<double>& values) -> Fill {
    return [&values, begin](const Element& e) {
      const std::int64_t flat =
          ((e.index[0] * 9 + begin + e.index[1]) * kHeadsK + e.index[2]) * kHeaddim + e.index[3];
      return values[static_cast<std::size_t>(flat)];
    };
  };
  OracleCase test;
  test.add("k", {kBatch, end - begin, kHeadsK, kHeaddim}, keys(k));
  test.add("v", {kBatch, end - begin, kHeadsK, kHeaddim}, keys(v));
  if (packed_q) {
    test.add_ints("cu_seqlens_q", {0, kSeqlenQ, 2 * kSeqlenQ});
    test.add("q", {kBatch * kSeqlenQ, kHeadsQ, kHeaddim}, list(q));
    test.want("out", {kBatch * kSeqlenQ, kHeadsQ, kHeaddim});
    test.want("lse", {kHeadsQ, kBatch * kSeqlenQ});
  } else {
    test.add("q", {kBatch, kSeqlenQ, kHeadsQ, kHeaddim}, list(q));
    test.want("out", {kBatch, kSeqlenQ, kHeadsQ, kHeaddim});
    test.want("lse", {kBatch, kHeadsQ, kSeqlenQ});
  }
  if (begin == 0) test.add("sinks", {kHeadsQ}, list({0.5, -1, 2, 0}));
  return test;
}

Shape shape_of(const TensorSpec& spec) {
  return {spec.shape.begin(), spec.shape.begin() + spec.rank};
}

TEST(ReferenceMerge, PartsOfTheKeysGiveTheWhole) {
  for (const bool packed_q : {false, true}) {
    for (const std::int64_t cut : {1, 4, 9}) {
      OracleCase whole = part_case(0, 9, packed_q);
      const OracleResult expected = whole.run();
      const OracleResult a = part_case(0, cut, packed_q).run();
      const OracleResult b = part_case(cut, 9, packed_q).run();
      const OracleResult merged =
          merge_case({a.out, a.lse}, {b.out, b.lse}, shape_of(whole.spec("out")),
                     shape_of(whole.spec("lse")))
              .run();
      expect_values(merged.out, expected.out, 1e-6);
      expect_values(merged.lse, expected.lse, 1e-6);
    }
  }
}

/// The backward of one part with the whole's out and lse.
OracleResult part_backward(std::int64_t begin, std::int64_t end, const OracleResult& whole,
                           const Fill& dout, const Fill& dlse) {
  OracleCase test = part_case(begin, end, /*packed_q=*/false);
  const Shape out_shape = shape_of(test.spec("out"));
  const Shape lse_shape = shape_of(test.spec("lse"));
  make_backward(test, dout);
  test.add("dlse", lse_shape, dlse);
  test.add("out", out_shape, list(whole.out));
  test.add("lse", lse_shape, list(whole.lse));
  OracleOptions options = one_thread();
  options.use_given_out_and_lse = true;
  return test.run(options);
}

/// Rows of the keys [begin, end) of a gradient over 9 keys a sequence.
std::vector<double> rows_of_part(const std::vector<double>& gradient, std::int64_t begin,
                                 std::int64_t end) {
  std::vector<double> rows;
  constexpr std::int64_t kRow = kHeadsK * kHeaddim;
  for (std::int64_t b = 0; b < kBatch; ++b) {
    rows.insert(rows.end(), gradient.begin() + (b * 9 + begin) * kRow,
                gradient.begin() + (b * 9 + end) * kRow);
  }
  return rows;
}

TEST(ReferenceMerge, PartsOfTheBackwardAddUpToTheWhole) {
  Random random(6);
  std::vector<double> dout_values;
  std::vector<double> dlse_values;
  const Fill fill = normal(random);
  for (int i = 0; i < kBatch * kSeqlenQ * kHeadsQ * kHeaddim; ++i) dout_values.push_back(fill({}));
  for (int i = 0; i < kBatch * kSeqlenQ * kHeadsQ; ++i) dlse_values.push_back(fill({}));
  const Fill dout = list(dout_values);
  const Fill dlse = list(dlse_values);

  const OracleResult forward = part_case(0, 9, /*packed_q=*/false).run();
  OracleCase whole = part_case(0, 9, /*packed_q=*/false);
  make_backward(whole, dout);
  whole.add("dlse", {kBatch, kHeadsQ, kSeqlenQ}, dlse);
  const OracleResult expected = whole.run();

  // The whole's out and lse reach the parts in fp32.
  constexpr double kTolerance = 2e-5;
  for (const std::int64_t cut : {1, 4, 8}) {
    const OracleResult a = part_backward(0, cut, forward, dout, dlse);
    const OracleResult b = part_backward(cut, 9, forward, dout, dlse);
    ASSERT_EQ(a.dq.size(), expected.dq.size());
    for (std::size_t i = 0; i < expected.dq.size(); ++i) {
      ASSERT_NEAR(a.dq[i] + b.dq[i], expected.dq[i], kTolerance) << "dq " << i;
    }
    expect_values(a.dk, rows_of_part(expected.dk, 0, cut), kTolerance);
    expect_values(b.dk, rows_of_part(expected.dk, cut, 9), kTolerance);
    expect_values(a.dv, rows_of_part(expected.dv, 0, cut), kTolerance);
    expect_values(b.dv, rows_of_part(expected.dv, cut, 9), kTolerance);
    expect_values(a.dsinks, expected.dsinks, kTolerance);
  }
  // Without the whole's lse a part is another attention: the option is what makes them add up.
  OracleCase alone = part_case(0, 4, /*packed_q=*/false);
  make_backward(alone, dout);
  EXPECT_GT(std::fabs(alone.run().dv[0] - expected.dv[0]), 1e-3);
}

}  // namespace
}  // namespace foveal::test
