// Softmax's arithmetic and the heads, by cases with closed forms.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "unit/reference_case.hpp"

namespace foveal::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Fill key_index(std::int64_t modulus) {
  return
      [modulus](const Element& element) { return static_cast<double>(element.index[1] % modulus); };
}

// Weights past the length are 0, but 0 * NaN is NaN: such keys must not be touched at all.
TEST(ReferenceSoftmax, UnusedSlotsMayHoldAnything) {
  const std::vector<std::int32_t> lengths{1, 3, 8, 0};
  for (const double poison : {kNaN, kInfinity, -kInfinity, 6e4}) {
    for (const bool in_k : {false, true}) {
      for (const bool in_v : {false, true}) {
        const auto unused = [&](const Element& element) {
          return element.index[1] >= lengths[static_cast<std::size_t>(element.index[0])];
        };
        OracleCase test = dense_case(
            {.batch = 4, .seqlen_k = 8}, constant(0),
            [&](const Element& element) { return in_k && unused(element) ? poison : 1.0; },
            [&](const Element& element) {
              return in_v && unused(element) ? poison : static_cast<double>(element.index[1]);
            });
        test.add_ints("seqused_k", lengths);
        const OracleResult result = test.run();
        expect_rows(result.out, {0, 1, 3.5, 0});
        expect_values(result.lse, {0, std::log(3), std::log(8), -kInfinity});
      }
    }
  }
}

TEST(ReferenceSoftmax, UnusedPagesMayHoldAnything) {
  // Pages of 4; sequence 2 takes pages 5 and 1, the others one page each or none.
  OracleCase test;
  test.add("q", {4, 1, 1, 4}, constant(0));
  test.add_ints("seqused_k", {1, 3, 8, 0});
  test.add_ints("block_table", {4, 2}, {3, -1, 2, -1, 5, 1, -1, -1});
  const auto cache = [](const Element& element) {
    const std::int64_t page = element.index[0];
    const std::int64_t slot = element.index[1];
    if (page == 3 && slot < 1) return 0.0;
    if (page == 2 && slot < 3) return static_cast<double>(slot);
    if (page == 5) return static_cast<double>(slot);
    if (page == 1) return static_cast<double>(slot + 4);
    return kNaN;
  };
  test.add("k", {6, 4, 1, 4}, cache);
  test.add("v", {6, 4, 1, 4}, cache);
  test.want("out", {4, 1, 1, 4});
  test.want("lse", {4, 1, 1});
  const OracleResult result = test.run();
  expect_rows(result.out, {0, 1, 3.5, 0});
  expect_values(result.lse, {0, std::log(3), std::log(8), -kInfinity});
}

TEST(ReferenceSoftmax, NaNInAHiddenKeyReachesNoGradient) {
  // Key 3 is right of the last row's window and key 0 left of the first row's.
  OracleCase test = dense_case(
      {.seqlen_q = 2, .seqlen_k = 4},
      [](const Element& element) { return static_cast<double>(element.flat % 3); },
      [](const Element& element) { return element.index[1] % 3 == 0 ? kNaN : 1.0; },
      [](const Element& element) { return element.index[1] % 3 == 0 ? kNaN : 2.0; });
  test.add("bias", {1, 1, 1, 4}, list({-kInfinity, 0, 0, 0}));
  test.add("sinks", {1}, constant(0.5));
  test.add_ints("seqused_k", {3});
  make_backward(test, constant(1));
  const OracleResult result = test.run();
  for (const std::vector<double>* gradient :
       {&result.dq, &result.dk, &result.dv, &result.dbias, &result.dsinks}) {
    ASSERT_FALSE(gradient->empty());
    for (const double value : *gradient) ASSERT_TRUE(std::isfinite(value));
  }
  for (std::size_t d = 0; d < 4; ++d) {
    EXPECT_EQ(result.dv[d], 0);
    EXPECT_EQ(result.dk[d], 0);
    EXPECT_EQ(result.dv[3 * 4 + d], 0);
  }
  EXPECT_EQ(result.dbias[0], 0);
  EXPECT_EQ(result.dbias[3], 0);
}

TEST(ReferenceSoftmax, NaNInAVisibleKeyReachesTheRowsThatSeeItAlone) {
  OracleCase test = dense_case(
      {.seqlen_q = 3, .seqlen_k = 3}, constant(1),
      [](const Element& element) { return element.index[1] == 1 ? kNaN : 1.0; }, constant(2));
  test.problem.causal = true;
  const OracleResult result = test.run();
  EXPECT_EQ(result.out[0], 2);
  EXPECT_TRUE(std::isnan(result.out[4]));
  EXPECT_TRUE(std::isnan(result.lse[1]));
  EXPECT_TRUE(std::isnan(result.out[8]));
}

TEST(ReferenceSoftmax, RowsFarBelowZero) {
  OracleCase test = dense_case(
      {.seqlen_q = 88, .seqlen_k = 448, .nheads_q = 14, .nheads_k = 2, .headdim = 128}, constant(4),
      constant(-4.5), [](const Element& element) { return static_cast<double>(element.index[1]); });
  test.problem.causal = true;
  const OracleResult result = test.run();
  const double score = -18 * std::sqrt(128.0);
  EXPECT_NEAR(score, -203.64675, 1e-5);
  for (std::int64_t i = 0; i < 88; ++i) {
    for (std::int64_t h = 0; h < 14; ++h) {
      const auto row = static_cast<std::size_t>(i * 14 + h);
      ASSERT_NEAR(result.out[row * 128], (360 + static_cast<double>(i)) / 2, 1e-9);
      ASSERT_NEAR(result.out[row * 128 + 127], (360 + static_cast<double>(i)) / 2, 1e-9);
      ASSERT_NEAR(result.lse[static_cast<std::size_t>(h * 88 + i)],
                  score + std::log(361 + static_cast<double>(i)), 1e-9);
    }
  }
}

TEST(ReferenceSoftmax, ScoresBelowAnyFiniteSentinel) {
  const auto run = [](double key, double key7) {
    OracleCase test = dense_case(
        {.seqlen_k = 300, .headdim = 128}, constant(64),
        [=](const Element& element) { return element.index[1] == 7 ? key7 : key; }, key_index(100));
    return test.run();
  };
  const double score = 64 * 128 * std::sqrt(128.0);
  EXPECT_NEAR(score, 92681.9, 0.01);
  const OracleResult low = run(-128, -128);
  expect_rows(low.out, {49.5}, 1e-8);
  EXPECT_NEAR(low.lse[0], -score + std::log(300), 1e-8);
  EXPECT_NEAR(low.lse[0], -92676.196, 1e-2);
  const OracleResult high = run(128, 128);
  expect_rows(high.out, {49.5}, 1e-8);
  EXPECT_NEAR(high.lse[0], 92687.604, 1e-2);
  expect_rows(run(-128, -127).out, {7}, 1e-8);
}

TEST(ReferenceSoftmax, DecodeOfManyLengthsInOneBatch) {
  OracleCase test = dense_case({.batch = 4, .seqlen_k = 4096, .headdim = 2}, constant(0),
                               constant(3), key_index(1024));
  test.add_ints("seqused_k", {0, 1, 5, 4096});
  const OracleResult result = test.run();
  expect_rows(result.out, {0, 0, 2, 511.5}, 1e-9);
  expect_values(result.lse, {-kInfinity, 0, std::log(5), std::log(4096)});
}

TEST(ReferenceSoftmax, TheLogarithmIsNatural) {
  OracleCase test = dense_case({.seqlen_k = 8}, constant(0), constant(1), key_index(8));
  EXPECT_NEAR(test.run().lse[0], 2.0794415416798357, 1e-12);
}

TEST(ReferenceSoftmax, ScaleIsGivenOrOneOverTheRootOfHeaddim) {
  OracleCase test = dense_case({.headdim = 16}, constant(1), constant(3), constant(0));
  EXPECT_NEAR(test.run().lse[0], 16 * 3 / 4.0, 1e-12);
  test.problem.softmax_scale = 0.5f;
  EXPECT_NEAR(test.run().lse[0], 16 * 3 / 2.0, 1e-12);
  test.problem.softmax_scale = 0.0f;
  EXPECT_EQ(test.run().lse[0], 0);
}

/// All in column 0; other columns 0.
Fill column0(std::vector<double> rows, int row_axis) {
  return [rows = std::move(rows), row_axis](const Element& element) {
    return element.flat % 64 != 0 ? 0.0
                                  : rows.at(static_cast<std::size_t>(
                                        element.index[static_cast<std::size_t>(row_axis)]));
  };
}

TEST(ReferenceSoftmax, SoftcapInForwardAndBackward) {
  OracleCase test =
      packed_case({1, 1}, {1, 2}, {.headdim = 64},
                  {column0({1, 1}, 0), column0({7, 3, -1}, 0), column0({5, 1, 0}, 0)});
  test.problem.softmax_scale = 1.0f;
  test.problem.softcap = 2.0f;
  const OracleResult forward = test.run();
  EXPECT_NEAR(forward.out[0], 5, 1e-12);
  EXPECT_NEAR(forward.out[64], 0.9390337, 5e-8);
  expect_values(forward.lse, {2 * std::tanh(3.5), 1.8732004}, 5e-8);

  make_backward(test, column0({1, 1}, 0));
  const OracleResult result = test.run();
  EXPECT_NEAR(result.dq[0], 0, 1e-12);
  EXPECT_NEAR(result.dq[64], 0.0760597, 5e-8);
  EXPECT_NEAR(result.dk[0], 0, 1e-12);
  EXPECT_NEAR(result.dk[64], 0.0103453, 5e-8);
  EXPECT_NEAR(result.dk[128], -0.0450236, 5e-8);
  EXPECT_NEAR(result.dv[0], 1, 1e-12);
  EXPECT_NEAR(result.dv[64], 0.9390337, 5e-8);
  EXPECT_NEAR(result.dv[128], 0.0609663, 5e-8);
}

TEST(ReferenceSoftmax, TheMaskComesAfterTheSoftcap) {
  OracleCase test = dense_case({.seqlen_k = 3, .headdim = 64}, column0({1}, 1),
                               column0({3, -1, 100}, 1), column0({1, 0, 50}, 1));
  test.problem.softmax_scale = 1.0f;
  test.problem.softcap = 2.0f;
  test.add_ints("seqused_k", {2});
  make_backward(test, column0({1}, 1));
  const OracleResult result = test.run();
  EXPECT_NEAR(result.dq[0], 0.0760597, 5e-8);
  EXPECT_NEAR(result.dv[0], 0.9390337, 5e-8);
  EXPECT_EQ(result.dv[128], 0);
  EXPECT_EQ(result.dk[128], 0);
}

OracleCase sink_case(double sink, std::int64_t seqlen_q) {
  OracleCase test =
      dense_case({.seqlen_q = seqlen_q, .seqlen_k = 2, .headdim = 64}, constant(0), constant(1),
                 [](const Element& element) { return element.index[1] == 0 ? 1.0 : 3.0; });
  test.add("sinks", {1}, constant(sink));
  return test;
}

TEST(ReferenceSoftmax, SinksTakeMassAndAddNoValue) {
  const double ln2 = std::log(2.0);
  const auto expect_sink = [](double sink, double out, double lse) {
    OracleCase test = sink_case(sink, 1);
    const OracleResult result = test.run();
    expect_rows(result.out, {out}, 1e-7);
    EXPECT_NEAR(result.lse[0], lse, 1e-7) << "sink " << sink;
    const OracleResult many = sink_case(sink, 34).run();
    EXPECT_EQ(many.out[17 * 64], result.out[0]) << "a row among others";
  };
  expect_sink(ln2, 1, std::log(4));
  expect_sink(100, 0, 100);
  expect_sink(-100, 2, ln2);
  expect_sink(-kInfinity, 2, ln2);

  OracleCase test = sink_case(ln2, 1);
  make_backward(test, constant(1));
  expect_values(test.run().dsinks, {-32}, 1e-5);

  OracleCase empty = sink_case(0.5, 1);
  empty.add_ints("seqused_k", {0});
  expect_rows(empty.run().out, {0});
  expect_values(empty.run().lse, {0.5});
}

TEST(ReferenceSoftmax, ASinkOfARowWithoutKeysHasTheGradientOfItsLse) {
  OracleCase test = sink_case(0.5, 3);
  test.add_ints("seqused_k", {0});
  make_backward(test, constant(1));
  test.add("dlse", {1, 1, 3}, list({0.25, 1, 2}));
  const OracleResult result = test.run();
  expect_values(result.dsinks, {3.25});  // lse = sink on each row
  for (const double value : result.dq) EXPECT_EQ(value, 0);
  for (const double value : result.dv) EXPECT_EQ(value, 0);

  OracleCase none = sink_case(-kInfinity, 3);
  none.add_ints("seqused_k", {0});
  make_backward(none, constant(1));
  expect_values(none.run().dsinks, {0});
}

TEST(ReferenceSoftmax, MinusInfinityInTheBiasHidesAKey) {
  OracleCase test =
      dense_case({.seqlen_q = 2, .seqlen_k = 3}, constant(0), constant(1), key_index(3));
  test.add("bias", {1, 1, 2, 3}, list({0, -kInfinity, 0, -kInfinity, -kInfinity, -kInfinity}));
  const OracleResult result = test.run();
  expect_rows(result.out, {1, 0});
  expect_values(result.lse, {std::log(2), -kInfinity});
  make_backward(test, constant(1));
  const OracleResult gradients = test.run();
  expect_rows(gradients.dv, {0.5, 0, 0.5});
  expect_values(gradients.dbias, {-2, 0, 2, 0, 0, 0});  // p * 4 * (v_j - 1), v in 4 columns
}

TEST(ReferenceSoftmax, AlibiFallsOffFromTheBottomRightDiagonal) {
  OracleCase test = dense_case({.seqlen_q = 2, .seqlen_k = 4, .nheads_q = 2}, constant(0),
                               constant(1), constant(1));
  test.add("alibi_slopes", {2}, list({0.5, 0}));
  const OracleResult result = test.run();
  // Row 0 is at key 2, row 1 at key 3.
  const auto e = [](double x) { return std::exp(-0.5 * x); };
  expect_values(result.lse, {std::log(e(2) + e(1) + e(0) + e(1)),
                             std::log(e(3) + e(2) + e(1) + e(0)), std::log(4), std::log(4)});
}

TEST(ReferenceSoftmax, AlibiSlopesMayDifferInEachSequence) {
  OracleCase test =
      dense_case({.batch = 2, .seqlen_k = 2, .nheads_q = 2}, constant(0), constant(1), constant(1));
  test.add("alibi_slopes", {2, 2}, list({1, 2, 3, 4}));
  expect_values(test.run().lse, {std::log1p(std::exp(-1)), std::log1p(std::exp(-2)),
                                 std::log1p(std::exp(-3)), std::log1p(std::exp(-4))});
}

TEST(ReferenceSoftmax, QueryHeadsReadTheirGroupsKeyHead) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> heads{{12, 2}, {24, 2}, {9, 3}, {14, 2},
                                                                 {20, 4}, {5, 1},  {16, 1}};
  for (const auto& [nheads_q, nheads_k] : heads) {
    const std::int64_t group = nheads_q / nheads_k;
    OracleCase test = dense_case(
        {.seqlen_k = 100, .nheads_q = nheads_q, .nheads_k = nheads_k}, constant(0), constant(1),
        [](const Element& element) { return static_cast<double>(element.index[2] + 1); });
    std::vector<double> out;
    for (std::int64_t h = 0; h < nheads_q; ++h) {
      out.push_back(static_cast<double>(h / group + 1));
    }
    expect_rows(test.run().out, out);
    make_backward(test, constant(1));
    expect_rows(test.run().dv, std::vector<double>(static_cast<std::size_t>(100 * nheads_k),
                                                   static_cast<double>(group) / 100));
  }
}

TEST(ReferenceSoftmax, HeadsThatDoNotDivideAreRefused) {
  OracleCase test =
      dense_case({.nheads_q = 3, .nheads_k = 2}, constant(0), constant(0), constant(0));
  EXPECT_EQ(test.error(), "nheads_q 3: it must be a multiple of nheads_k 2");
}

}  // namespace
}  // namespace foveal::test
