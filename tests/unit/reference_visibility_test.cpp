// Masks and lengths by probes whose answers are known in closed form. Counting probe: q = 0 and
// v[j] = j give out = the mean of the visible j and lse = ln(number of them). Gradient probe: q = 0
// and dout = 1 give dv[j] = the sum over the rows that see j of 1 / (keys that the row sees).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "unit/reference_case.hpp"

namespace foveal::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Fill key_index() {
  return [](const Element& element) { return static_cast<double>(element.index[1]); };
}
/// Finite keys that the zero query turns into scores of 0.
Fill any_key() {
  return [](const Element& element) { return static_cast<double>(element.flat % 5) - 2; };
}

OracleCase counting_probe(const Sizes& sizes) {
  return dense_case(sizes, constant(0), any_key(), key_index());
}

struct MaskedRows {
  std::int64_t begin;
  std::int64_t end;
};

/// 40 rows of which some see nothing through a bool mask; 64 keys, 8 query heads on 1.
OracleCase masked_rows_case(MaskedRows masked, bool with_sinks) {
  OracleCase test = counting_probe({.seqlen_q = 40, .seqlen_k = 64, .nheads_q = 8, .headdim = 16});
  test.add(
      "bias", {1, 1, 40, 1},
      [masked](const Element& element) {
        return element.index[2] >= masked.begin && element.index[2] < masked.end ? 0.0 : 1.0;
      },
      DType::kBool);
  if (with_sinks) test.add("sinks", {8}, constant(0));
  return test;
}

TEST(ReferenceVisibility, RowsWithoutKeysByABoolMask) {
  for (const MaskedRows masked : {MaskedRows{0, 14}, MaskedRows{20, 34}, MaskedRows{0, 40}}) {
    for (const bool with_sinks : {false, true}) {
      OracleCase test = masked_rows_case(masked, with_sinks);
      const OracleResult result = test.run();
      std::vector<double> out;
      std::vector<double> lse;
      for (std::int64_t i = 0; i < 40; ++i) {
        const bool hidden = i >= masked.begin && i < masked.end;
        out.push_back(hidden ? 0 : with_sinks ? 2016.0 / 65 : 31.5);
        lse.push_back(hidden ? (with_sinks ? 0 : -kInfinity) : std::log(with_sinks ? 65 : 64));
      }
      expect_rows(result.out, out);
      for (std::size_t h = 0; h < 8; ++h) {
        expect_values({result.lse.begin() + static_cast<std::ptrdiff_t>(h * 40),
                       result.lse.begin() + static_cast<std::ptrdiff_t>(h * 40 + 40)},
                      lse);
      }
    }
  }
}

TEST(ReferenceVisibility, RowsWithoutKeysAddNoGradient) {
  for (const bool with_sinks : {false, true}) {
    OracleCase test = masked_rows_case({0, 14}, with_sinks);
    make_backward(test, constant(1));
    const OracleResult result = test.run();
    const double keys = with_sinks ? 65 : 64;
    expect_rows(result.dv, std::vector<double>(64, 8 * 26 / keys));
    expect_rows(result.dk, std::vector<double>(64, 0.0));
    // dq of a row is sum_j p_j (delta_j) k_j; only the hidden rows are known to be 0.
    for (std::size_t i = 0; i < 14 * 8 * 16; ++i) ASSERT_EQ(result.dq[i], 0) << i;
    for (const double value : result.dq) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST(ReferenceVisibility, CausalWithFewerQueriesThanKeys) {
  OracleCase test = counting_probe({.seqlen_q = 3, .seqlen_k = 8});
  test.problem.causal = true;
  const OracleResult result = test.run();
  expect_rows(result.out, {2.5, 3, 3.5});
  expect_values(result.lse, {std::log(6), std::log(7), std::log(8)});

  OracleCase longer = counting_probe({.seqlen_q = 3, .seqlen_k = 128});
  longer.problem.causal = true;
  expect_rows(longer.run().out, {62.5, 63, 63.5});
  expect_values(longer.run().lse, {std::log(126), std::log(127), std::log(128)});

  OracleCase decode = counting_probe({.seqlen_q = 1, .seqlen_k = 8});
  const OracleResult unmasked = decode.run();
  decode.problem.causal = true;
  EXPECT_EQ(decode.run().out, unmasked.out);
}

TEST(ReferenceVisibility, CausalWithMoreQueriesThanKeys) {
  for (const std::int64_t seqlen_q : {8, 300}) {
    OracleCase test = counting_probe({.seqlen_q = seqlen_q, .seqlen_k = 3});
    test.problem.causal = true;
    std::vector<double> out(static_cast<std::size_t>(seqlen_q - 3), 0.0);
    std::vector<double> lse(static_cast<std::size_t>(seqlen_q - 3), -kInfinity);
    out.insert(out.end(), {0, 0.5, 1});
    lse.insert(lse.end(), {std::log(1), std::log(2), std::log(3)});
    const OracleResult result = test.run();
    expect_rows(result.out, out);
    expect_values(result.lse, lse);

    make_backward(test, constant(1));
    const OracleResult gradients = test.run();
    expect_rows(gradients.dv, {1 + 1 / 2.0 + 1 / 3.0, 1 / 2.0 + 1 / 3.0, 1 / 3.0});
    for (std::int64_t i = 0; i < (seqlen_q - 3) * 4; ++i) {
      ASSERT_EQ(gradients.dq[static_cast<std::size_t>(i)], 0) << i;
    }
  }
}

/// v[j] = j inside its own document, in every column.
Fill index_in_documents(const std::vector<std::int32_t>& lengths_k) {
  std::vector<double> positions;
  for (const std::int32_t length : lengths_k) {
    for (std::int32_t j = 0; j < length; ++j) positions.push_back(j);
  }
  return [positions](const Element& element) {
    return positions.at(static_cast<std::size_t>(element.index[0]));
  };
}

OracleCase straddling_documents() {
  OracleCase test =
      packed_case({3, 4}, {5, 4}, {}, {constant(0), any_key(), index_in_documents({5, 4})});
  test.problem.causal = true;
  return test;
}

TEST(ReferenceVisibility, ADocumentThatBeganInAnEarlierPack) {
  OracleCase test = straddling_documents();
  const OracleResult result = test.run();
  expect_rows(result.out, {1, 1.5, 2, 0, 0.5, 1, 1.5});
  expect_values(result.lse, {std::log(3), std::log(4), std::log(5), std::log(1), std::log(2),
                             std::log(3), std::log(4)});

  OracleCase windowed = straddling_documents();
  windowed.problem.window_size_left = 1;
  windowed.problem.window_size_right = 0;
  expect_rows(windowed.run().out, {1.5, 2.5, 3.5, 0, 0.5, 1.5, 2.5});
}

TEST(ReferenceVisibility, NothingOfADocumentReachesAnother) {
  OracleCase test = straddling_documents();
  const OracleResult before = test.run();
  for (std::int64_t flat = 0; flat < 5 * 4; ++flat) test.value("v", flat) = 1e4f;
  const OracleResult after = test.run();
  for (std::size_t i = 3 * 4; i < 7 * 4; ++i) EXPECT_EQ(before.out[i], after.out[i]) << i;
}

TEST(ReferenceVisibility, ZeroLengthDocuments) {
  OracleCase test = packed_case({0, 1, 0, 1}, {2, 3, 0, 5}, {.nheads_q = 6, .nheads_k = 2},
                                {constant(0), any_key(), constant(0)});
  const std::vector<double> position{0, 1, 0, 1, 2, 0, 1, 2, 3, 4};
  test.add("v", {10, 2, 4}, [&](const Element& element) {
    return 100.0 * static_cast<double>(element.index[1]) +
           position[static_cast<std::size_t>(element.index[0])];
  });
  test.problem.causal = true;
  test.problem.max_seqlen_q = 1;
  const OracleResult result = test.run();
  expect_rows(result.out, {1, 1, 1, 101, 101, 101, 2, 2, 2, 102, 102, 102});
  for (std::size_t h = 0; h < 6; ++h) {
    EXPECT_NEAR(result.lse[2 * h], std::log(3), 1e-12);
    EXPECT_NEAR(result.lse[2 * h + 1], std::log(5), 1e-12);
  }
}

TEST(ReferenceVisibility, BatchesWithoutQueriesOrWithoutKeys) {
  const std::array<Fill, 3> fills{constant(0), any_key(), constant(1)};
  const OracleResult empty = packed_case({0, 0, 0, 0}, {2, 3, 0, 5}, {}, fills).run();
  EXPECT_TRUE(empty.out.empty());
  EXPECT_TRUE(empty.lse.empty());
  const OracleResult blind = packed_case({0, 1, 0, 1}, {0, 0, 0, 0}, {}, fills).run();
  expect_rows(blind.out, {0, 0});
  expect_values(blind.lse, {-kInfinity, -kInfinity});
  const OracleResult no_batch = dense_case({.batch = 0}, fills[0], fills[1], fills[2]).run();
  EXPECT_TRUE(no_batch.out.empty());
}

TEST(ReferenceVisibility, BackwardOfDocumentsWithoutQueries) {
  OracleCase test =
      packed_case({0, 3, 2, 0}, {4, 3, 5, 2}, {.nheads_q = 4}, {constant(0), any_key(), any_key()});
  make_backward(test, constant(1));
  const OracleResult result = test.run();
  expect_rows(result.dv, {0, 0, 0, 0, 4, 4, 4, 1.6, 1.6, 1.6, 1.6, 1.6, 0, 0});
  expect_rows(result.dk, std::vector<double>(14, 0.0));
}

TEST(ReferenceVisibility, AnExpandedOutputGradient) {
  OracleCase test = counting_probe({.seqlen_q = 5, .seqlen_k = 5});
  test.problem.causal = true;
  make_backward(test, constant(0));
  float one = 1;
  TensorSpec expanded = test.spec("dout");
  expanded.strides = {};
  test.attach("dout", expanded, &one);
  const OracleResult result = test.run();
  expect_rows(result.dv, {137.0 / 60, 77.0 / 60, 47.0 / 60, 0.45, 0.2});
  expect_rows(result.dk, {0, 0, 0, 0, 0});
}

struct WindowCase {
  std::int64_t seqlen_q, seqlen_k;
  std::int64_t left, right;
  bool causal;
  std::vector<double> out;
};

TEST(ReferenceVisibility, WindowEdges) {
  const std::vector<double> causal_means{0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5};
  const std::vector<WindowCase> cases{
      {8, 8, 3, 0, true, {0, 0.5, 1, 1.5, 2.5, 3.5, 4.5, 5.5}},
      {8, 8, 0, 0, true, {0, 1, 2, 3, 4, 5, 6, 7}},
      {8, 8, 7, 0, true, causal_means},
      {8, 8, 100, 0, true, causal_means},
      {8, 8, -1, 0, true, causal_means},
      {8, 8, -1, 0, false, causal_means},
      {8, 8, -1, -1, true, causal_means},
      {8, 8, -1, 5, true, causal_means},
      {8, 8, 2, -1, false, {3.5, 3.5, 3.5, 4, 4.5, 5, 5.5, 6}},
      {8, 8, 1, 1, false, {0.5, 1, 2, 3, 4, 5, 6, 6.5}},
      {2, 5, 1, 0, false, {2.5, 3.5}},
      {1, 10, 2, 0, true, {8}},
      {3,
       3,
       std::numeric_limits<std::int64_t>::max(),
       std::numeric_limits<std::int64_t>::max(),
       false,
       {1, 1, 1}},
  };
  for (const WindowCase& window : cases) {
    OracleCase test = counting_probe({.seqlen_q = window.seqlen_q, .seqlen_k = window.seqlen_k});
    test.problem.window_size_left = window.left;
    test.problem.window_size_right = window.right;
    test.problem.causal = window.causal;
    SCOPED_TRACE(to_string(test.problem));
    expect_rows(test.run().out, window.out);
  }
}

TEST(ReferenceVisibility, SequsedCountsAndRowsPastItAreEmpty) {
  OracleCase test = counting_probe({.batch = 2, .seqlen_q = 4, .seqlen_k = 8});
  test.add_ints("seqused_q", {3, 0});
  test.add_ints("seqused_k", {5, 8});
  test.problem.causal = true;
  const OracleResult result = test.run();
  expect_rows(result.out, {1, 1.5, 2, 0, 0, 0, 0, 0});
  expect_values(result.lse, {std::log(3), std::log(4), std::log(5), -kInfinity, -kInfinity,
                             -kInfinity, -kInfinity, -kInfinity});
}

// Key 0 is the first one behind the padding: it is where windows, ALiBi and bias columns count
// from.
TEST(ReferenceVisibility, LeftPaddingShiftsTheKeys) {
  OracleCase test = counting_probe({.seqlen_q = 2, .seqlen_k = 8});
  test.add_ints("leftpad_k", {3});
  test.add_ints("seqused_k", {7});
  test.problem.causal = true;
  const OracleResult result = test.run();
  expect_rows(result.out, {4, 4.5});  // keys 3..5 and 3..6
  expect_values(result.lse, {std::log(3), std::log(4)});

  // ln 7 on the first column gives the first key behind the padding the weight 7.
  test.add("bias", {1, 1, 1, 8},
           [](const Element& element) { return element.index[3] == 0 ? std::log(7.0) : 0.0; });
  expect_rows(test.run().out, {(3 * 7 + 4 + 5) / 9.0, (3 * 7 + 4 + 5 + 6) / 10.0}, 1e-6);
}

TEST(ReferenceVisibility, PaddingThatCoversAllKeysLeavesNone) {
  OracleCase test = counting_probe({.seqlen_q = 1, .seqlen_k = 4});
  test.add_ints("leftpad_k", {4});
  expect_rows(test.run().out, {0});
  expect_values(test.run().lse, {-kInfinity});
}

}  // namespace
}  // namespace foveal::test
