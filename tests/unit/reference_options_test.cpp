// What a call may ask for: some rows, threads, outputs; and what it must not.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "unit/reference_case.hpp"

namespace foveal::test {
namespace {

OracleCase random_case(Random& random) {
  OracleCase test = dense_case(
      {.batch = 2, .seqlen_q = 4, .seqlen_k = 6, .nheads_q = 6, .nheads_k = 3, .headdim = 8},
      normal(random), normal(random), normal(random));
  test.problem.causal = true;
  return test;
}

TEST(ReferenceOptions, RowsThatWereNotAskedForAreNaN) {
  Random random(1);
  OracleCase test = random_case(random);
  test.add_ints("seqused_q", {4, 2});
  const OracleResult whole = test.run();
  OracleOptions options;
  options.rows = {1, 5, 7, 5};  // 7 is past seqused_q[1]
  const OracleResult some = test.run(options);
  for (std::size_t row = 0; row < 8; ++row) {
    const bool wanted = row == 1 || row == 5 || row == 7;
    for (std::size_t i = 0; i < 6 * 8; ++i) {
      const double value = some.out[row * 48 + i];
      ASSERT_TRUE(wanted ? value == whole.out[row * 48 + i] : std::isnan(value)) << "row " << row;
    }
    for (std::size_t h = 0; h < 6; ++h) {
      const std::size_t index = (row / 4 * 6 + h) * 4 + row % 4;
      ASSERT_TRUE(wanted ? some.lse[index] == whole.lse[index] : std::isnan(some.lse[index]));
    }
  }
}

TEST(ReferenceOptions, RowsOfPackedDocumentsCountThroughAll) {
  Random random(2);
  OracleCase test = packed_case({2, 0, 3}, {4, 1, 3}, {.nheads_q = 2},
                                {normal(random), normal(random), normal(random)});
  const OracleResult whole = test.run();
  OracleOptions options;
  options.rows = {3};
  const OracleResult some = test.run(options);
  for (std::size_t row = 0; row < 5; ++row) {
    for (std::size_t i = 0; i < 2 * 4; ++i) {
      const double value = some.out[row * 8 + i];
      ASSERT_TRUE(row == 3 ? value == whole.out[row * 8 + i] : std::isnan(value)) << "row " << row;
    }
    for (std::size_t h = 0; h < 2; ++h) {
      const double value = some.lse[h * 5 + row];
      ASSERT_TRUE(row == 3 ? value == whole.lse[h * 5 + row] : std::isnan(value)) << "row " << row;
    }
  }
}

TEST(ReferenceThreads, DoNotChangeABit) {
  Random random(3);
  OracleCase test = random_case(random);
  test.add("sinks", {6}, normal(random));
  test.add("bias", {1, 1, 4, 6}, normal(random));  // sums over the batch and all heads
  const OracleResult forward = test.run();
  OracleCase backward = random_case(random);
  backward.add("sinks", {6}, normal(random));
  backward.add("bias", {1, 1, 4, 6}, normal(random));
  make_backward(backward, normal(random));
  const OracleResult gradients = backward.run();
  for (const std::int32_t num_threads : {0, 2, 5, 64}) {
    OracleOptions options;
    options.num_threads = num_threads;
    EXPECT_EQ(test.run(options).out, forward.out);
    EXPECT_EQ(test.run(options).lse, forward.lse);
    const OracleResult again = backward.run(options);
    EXPECT_EQ(again.dq, gradients.dq);
    EXPECT_EQ(again.dk, gradients.dk);
    EXPECT_EQ(again.dv, gradients.dv);
    EXPECT_EQ(again.dbias, gradients.dbias);
    EXPECT_EQ(again.dsinks, gradients.dsinks);
  }
}

TEST(ReferenceOptions, OnlyWhatIsAskedForIsFilled) {
  Random random(4);
  OracleCase test = random_case(random);
  test.remove("lse");
  const OracleResult forward = test.run();
  EXPECT_FALSE(forward.out.empty());
  EXPECT_TRUE(forward.lse.empty());
  EXPECT_TRUE(forward.dq.empty());
  EXPECT_TRUE(forward.k_cache.empty());

  OracleCase backward = random_case(random);
  make_backward(backward, normal(random));
  const OracleResult all = backward.run();
  backward.remove("dq");
  backward.remove("dk");
  const OracleResult dv_alone = backward.run();
  EXPECT_TRUE(dv_alone.dq.empty());
  EXPECT_TRUE(dv_alone.dk.empty());
  EXPECT_TRUE(dv_alone.dsinks.empty());
  EXPECT_EQ(dv_alone.dv, all.dv);
}

TEST(ReferenceOptions, DropoutReadsItsSeedThroughPointersWhereGiven) {
  Random random(5);
  OracleCase test = random_case(random);
  test.problem.dropout_p = 0.5f;
  test.tensors.dropout_seed = 7;
  test.tensors.dropout_offset = 8;
  const OracleResult by_value = test.run();
  const std::uint64_t seed = 7;
  const std::uint64_t offset = 8;
  test.tensors.dropout_seed = test.tensors.dropout_offset = 0;
  EXPECT_NE(test.run().out, by_value.out);
  test.tensors.dropout_seed_ptr = &seed;
  test.tensors.dropout_offset_ptr = &offset;
  EXPECT_EQ(test.run().out, by_value.out);
  EXPECT_EQ(test.run().lse, by_value.lse);
}

TEST(ReferenceOptions, MisuseIsRefused) {
  Random random(6);
  OracleCase test = random_case(random);
  OracleOptions options;
  options.num_threads = -1;
  EXPECT_EQ(test.error(options), "num_threads -1: at least 0");
  options = {};
  options.use_given_out_and_lse = true;
  EXPECT_EQ(test.error(options),
            "use_given_out_and_lse with a forward pass: only a backward pass reads out and lse");
  options = {};
  options.rows = {8};
  EXPECT_EQ(test.error(options), "rows: 8 is not among the 8 rows of q");
  options.rows = {-1};
  EXPECT_EQ(test.error(options), "rows: -1 is not among the 8 rows of q");
  make_backward(test, normal(random));
  options.rows = {0};
  EXPECT_EQ(test.error(options), "rows with a backward pass: only a forward pass takes them");
}

TEST(ReferenceOptions, BadProblemsAndTensorsAreRefused) {
  Random random(7);
  OracleCase test = random_case(random);
  test.problem.softcap = -1.0f;
  EXPECT_NE(test.error().find("softcap -1"), std::string::npos) << test.error();
  test.problem.softcap = 0.0f;
  test.add_ints("seqused_k", {7, 6});
  EXPECT_NE(test.error().find("seqused_k[0] 7"), std::string::npos) << test.error();
  test.remove("seqused_k");
  test.tensors.v = nullptr;
  EXPECT_EQ(test.error(), "v has no data: its pointer is null");

  OracleCase backward = random_case(random);
  make_backward(backward, normal(random));
  OracleOptions options;
  options.use_given_out_and_lse = true;
  EXPECT_EQ(backward.error(options), "out has no data: its pointer is null");
}

/// The status of a problem whose operands are one element, expanded to `side` rows and heads.
StatusCode expanded_case_status(std::int64_t side) {
  float one = 1;
  OracleCase test;
  for (const char* name : {"q", "k", "v"}) {
    TensorSpec spec = make_spec(DType::kFloat32, {1, side, side, 1});
    spec.strides = {};
    test.attach(name, spec, &one);
  }
  test.want("out", {1, side, side, 1});
  return oracle(test.problem, test.tensors, one_thread()).status().code();
}

TEST(ReferenceOptions, ResultsThatNoMemoryHoldsAreAnError) {
  EXPECT_EQ(expanded_case_status(1 << 30), StatusCode::kOutOfMemory);  // no container that large
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)    // they end the program
  EXPECT_EQ(expanded_case_status(1 << 25), StatusCode::kOutOfMemory);  // past the address space
#endif
}

}  // namespace
}  // namespace foveal::test
