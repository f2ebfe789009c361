// foveal_oracle: where results go and what is refused.
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include <foveal/foveal_experimental.h>

#include "unit/capi_problem.hpp"

namespace foveal::test {
namespace {

struct OracleCase {
  CProblem p;
  CTensor<double> out{{1, CProblem::kRows, CProblem::kHeadsQ, CProblem::kDim}, kFp64};
  CTensor<double> lse{{1, CProblem::kHeadsQ, CProblem::kRows}, kFp64};
  foveal_oracle_results results{};

  OracleCase() {
    results.struct_size = sizeof results;
    results.out = &out.view;
    results.lse = &lse.view;
    p.attention.causal = 1;
  }
  foveal_status run(const foveal_oracle_options* options = nullptr) {
    return foveal_oracle(&p.attention, options, &results);
  }
};

TEST(CapiOracle, ForwardWithoutTouchingTheOperands) {
  OracleCase c;
  const std::vector<float> before(c.p.out.values.size(), -1.0f);
  c.p.out.values = before;
  c.p.out.view.data = c.p.out.values.data();
  c.p.lse.view.data = nullptr;  // outputs need no memory
  ASSERT_EQ(c.run(), FOVEAL_OK) << foveal_last_error();
  EXPECT_EQ(c.p.out.values, before);
  for (std::int64_t i = 0; i < CProblem::kRows; ++i) {
    const auto count = static_cast<double>(c.p.seen(i));
    EXPECT_NEAR(c.lse.values[static_cast<std::size_t>(i)], std::log(count), 1e-14);
    EXPECT_NEAR(c.out.values[static_cast<std::size_t>(i * CProblem::kHeadsQ * CProblem::kDim)],
                (count - 1) / 2, 1e-14);
  }
}

TEST(CapiOracle, StridedResultAndByteOffset) {
  OracleCase plain, strided;
  ASSERT_EQ(plain.run(), FOVEAL_OK);
  std::int64_t strides[3] = {1000, 2, 2 * CProblem::kHeadsQ};  // rows outermost, gaps between
  std::vector<double> storage(1 + 2 * CProblem::kHeadsQ * CProblem::kRows, -7.0);
  strided.lse.view.data = storage.data();
  strided.lse.view.byte_offset = sizeof(double);
  strided.lse.view.strides = strides;
  strided.results.out = nullptr;  // not wanted
  ASSERT_EQ(strided.run(), FOVEAL_OK) << foveal_last_error();
  for (std::int64_t h = 0; h < CProblem::kHeadsQ; ++h) {
    for (std::int64_t i = 0; i < CProblem::kRows; ++i) {
      EXPECT_EQ(storage[static_cast<std::size_t>(1 + h * strides[1] + i * strides[2])],
                plain.lse.values[static_cast<std::size_t>(h * CProblem::kRows + i)]);
    }
  }
  EXPECT_EQ(storage[0], -7.0);
  EXPECT_EQ(storage[2], -7.0);
}

TEST(CapiOracle, ChosenRows) {
  OracleCase c;
  const std::int64_t rows[1] = {1};
  foveal_oracle_options options{};
  options.struct_size = sizeof options;
  options.rows = rows;
  options.num_rows = 1;
  options.num_threads = 1;
  ASSERT_EQ(c.run(&options), FOVEAL_OK) << foveal_last_error();
  EXPECT_TRUE(std::isnan(c.lse.values[0]));
  EXPECT_NEAR(c.lse.values[1], std::log(7.0), 1e-14);
  EXPECT_TRUE(std::isnan(c.lse.values[2]));

  options.num_rows = -1;
  expect_failure(c.run(&options), FOVEAL_INVALID_ARGUMENT, {"num_rows is -1"});
  options.num_rows = 1;
  options.rows = nullptr;
  expect_failure(c.run(&options), FOVEAL_INVALID_ARGUMENT, {"rows is null"});
  options.struct_size = 0;
  expect_failure(c.run(&options), FOVEAL_INVALID_ARGUMENT, {"foveal_oracle_options.struct_size"});
}

TEST(CapiOracle, Backward) {
  OracleCase c;
  CProblem& p = c.p;
  CTensor<float> dout({1, CProblem::kRows, CProblem::kHeadsQ, CProblem::kDim}, kFp32);
  CTensor<float> dv({1, CProblem::kKeys, CProblem::kHeadsK, CProblem::kDim}, kFp32);
  CTensor<double> dv_result({1, CProblem::kKeys, CProblem::kHeadsK, CProblem::kDim}, kFp64);
  dout.values.assign(dout.values.size(), 1.0f);
  p.attention.pass = FOVEAL_BACKWARD;
  p.attention.dout = &dout.view;
  p.attention.dv = &dv.view;
  c.results.out = c.results.lse = nullptr;
  c.results.dv = &dv_result.view;
  ASSERT_EQ(c.run(), FOVEAL_OK) << foveal_last_error();
  // Each of 2 query heads gives key 0 the weight 1 / (keys that the row sees).
  EXPECT_NEAR(dv_result.values[0], 2 * (1.0 / 6 + 1.0 / 7 + 1.0 / 8), 1e-14);
  EXPECT_NEAR(dv_result.values.back(), 2 * (1.0 / 8), 1e-14);

  // A backward pass does not compute out, though it has the operand.
  c.results.out = &c.out.view;
  expect_failure(c.run(), FOVEAL_INVALID_ARGUMENT, {"out is asked for", "backward"});
}

TEST(CapiOracle, Refusals) {
  OracleCase c;
  expect_failure(foveal_oracle(&c.p.attention, nullptr, nullptr), FOVEAL_INVALID_ARGUMENT,
                 {"foveal_oracle_results is null"});
  expect_failure(foveal_oracle(nullptr, nullptr, &c.results), FOVEAL_INVALID_ARGUMENT,
                 {"foveal_attention is null"});

  OracleCase dtype;
  dtype.out.view.dtype = kFp32;
  expect_failure(dtype.run(), FOVEAL_INVALID_ARGUMENT, {"result out is float32", "float64"});

  OracleCase shape;
  std::int64_t other[3] = {1, CProblem::kRows, CProblem::kHeadsQ};
  shape.lse.view.shape = other;
  expect_failure(shape.run(), FOVEAL_INVALID_ARGUMENT, {"result lse", "[1, 4, 3]"});

  OracleCase absent;
  absent.results.dq = &absent.out.view;
  expect_failure(absent.run(), FOVEAL_INVALID_ARGUMENT, {"dq is asked for", "has no dq"});

  OracleCase null_data;
  null_data.out.view.data = nullptr;
  expect_failure(null_data.run(), FOVEAL_INVALID_ARGUMENT, {"result out has no data"});

  OracleCase elsewhere;
  elsewhere.out.view.device = {kDLCUDA, 0};
  expect_failure(elsewhere.run(), FOVEAL_INVALID_ARGUMENT, {"result out is on cuda:0"});

  OracleCase inputs;
  for (DLTensor* view : {&inputs.p.q.view, &inputs.p.k.view, &inputs.p.v.view, &inputs.p.out.view,
                         &inputs.p.lse.view}) {
    view->device = {kDLCUDA, 0};
  }
  expect_failure(inputs.run(), FOVEAL_UNSUPPORTED, {"oracle reads CPU memory"});
}

}  // namespace
}  // namespace foveal::test
