// A manifest's workload in memory, and its check against the oracle.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <foveal/attention.hpp>

#include "tools/element_values.hpp"
#include "tools/workload_check.hpp"
#include "tools/workload_input.hpp"

namespace foveal::tools {
namespace {

constexpr AccuracyLimits kLimits{.rel_frobenius = 0.01, .max_abs = 0.05};

Workload small(WorkloadLayout layout, WorkloadPass pass = WorkloadPass::kForward) {
  Workload w;
  w.id = "small";
  w.layout = layout;
  w.pass = pass;
  w.dtype = DType::kFloat16;
  w.batch = 2;
  w.nheads_q = 4;
  w.nheads_k = layout == WorkloadLayout::kPackedQkv ? 4 : 2;
  w.seqlen_q = layout == WorkloadLayout::kPaged ? 1 : 24;
  w.seqlen_k = layout == WorkloadLayout::kPaged ? 50 : 24;
  w.headdim = 16;
  w.causal = true;
  w.seed = 3;
  if (layout == WorkloadLayout::kPaged) {
    w.page_size = 16;
    w.seqused_k = {50, 17};
  }
  if (layout == WorkloadLayout::kThd) {
    w.doc_lens = {5, 0, 24};
    w.batch = 3;
  }
  return w;
}

Status run(const WorkloadInput& input) {
  FOVEAL_RETURN_IF_ERROR(forward(input.forward, input.tensors));
  return input.backward ? backward(*input.backward, input.tensors) : Status::ok();
}

class WorkloadLayouts : public testing::TestWithParam<WorkloadLayout> {};

TEST_P(WorkloadLayouts, RunAndAreRight) {
  for (const WorkloadPass pass : {WorkloadPass::kForward, WorkloadPass::kTrain}) {
    if (pass == WorkloadPass::kTrain && GetParam() == WorkloadLayout::kPaged) continue;
    Workload workload = small(GetParam(), pass);
    workload.sinks = true;
    const auto input = make_workload_input(workload);
    ASSERT_TRUE(input) << input.status().message();
    const Status status = run(*input);
    ASSERT_TRUE(status) << status.message();
    const auto check = check_workload(*input, kLimits, 1);
    ASSERT_TRUE(check) << check.status().message();
    EXPECT_TRUE(check->passed());
    EXPECT_EQ(check->coverage, "everything");
    EXPECT_EQ(check->errors.size(), pass == WorkloadPass::kForward ? 1u : 6u);
  }
}

INSTANTIATE_TEST_SUITE_P(All, WorkloadLayouts,
                         testing::Values(WorkloadLayout::kBshd, WorkloadLayout::kBhsd,
                                         WorkloadLayout::kThd, WorkloadLayout::kPackedQkv,
                                         WorkloadLayout::kPaged),
                         [](const auto& info) { return std::string(layout_name(info.param)); });

TEST(WorkloadCheck, SeesOneWrongElement) {
  const auto input = make_workload_input(small(WorkloadLayout::kBshd));
  ASSERT_TRUE(input);
  ASSERT_TRUE(run(*input));
  store_element(DType::kFloat16, static_cast<std::byte*>(input->tensors.out), 777, 9.0f);
  const auto check = check_workload(*input, kLimits, 1);
  ASSERT_TRUE(check);
  EXPECT_FALSE(check->passed());
  EXPECT_GT(check->errors[0].max_abs, 1);
}

TEST(WorkloadCheck, ResultsThatNobodyWroteAreNotFinite) {
  const auto input = make_workload_input(small(WorkloadLayout::kThd, WorkloadPass::kTrain));
  ASSERT_TRUE(input);
  const auto check = check_workload(*input, kLimits, 1);
  ASSERT_TRUE(check);
  for (const ResultError& error : check->errors) EXPECT_FALSE(error.finite) << error.result;
}

TEST(WorkloadCheckSlow, SamplesWhatWouldTakeTheOracleTooLong) {
  Workload workload = small(WorkloadLayout::kBhsd);
  workload.batch = 1;
  workload.nheads_q = workload.nheads_k = 8;
  workload.seqlen_q = workload.seqlen_k = 4096;
  workload.headdim = 128;
  auto input = make_workload_input(workload);
  ASSERT_TRUE(input);
  const auto check = check_workload(*input, kLimits, 2);
  ASSERT_TRUE(check);
  EXPECT_THAT(check->coverage, testing::StartsWith("kv heads 0 and 7"));
  EXPECT_LT(check->errors[0].compared, 2 * 4096 * 128 + 1);
  EXPECT_GT(check->errors[0].compared, 2 * 100 * 128);
}

TEST(WorkloadInput, TheSeedDecidesTheValues) {
  const auto first = make_workload_input(small(WorkloadLayout::kBshd));
  const auto again = make_workload_input(small(WorkloadLayout::kBshd));
  Workload other_seed = small(WorkloadLayout::kBshd);
  other_seed.seed = 4;
  const auto other = make_workload_input(other_seed);
  ASSERT_TRUE(first && again && other);
  const std::size_t bytes = first->buffers[0].size();
  EXPECT_EQ(std::memcmp(first->tensors.q, again->tensors.q, bytes), 0);
  EXPECT_NE(std::memcmp(first->tensors.q, other->tensors.q, bytes), 0);
}

TEST(WorkloadInput, PagesAreShuffledAndUnusedSlotsAreNan) {
  const auto input = make_workload_input(small(WorkloadLayout::kPaged));
  ASSERT_TRUE(input);
  const auto* table = static_cast<const std::int32_t*>(input->tensors.block_table);
  const std::vector<std::int32_t> pages(table, table + 8);
  EXPECT_EQ(std::set<std::int32_t>(pages.begin(), pages.end()).size(), 8u);
  EXPECT_FALSE(std::is_sorted(pages.begin(), pages.end()));
  const auto* k = static_cast<const std::byte*>(input->tensors.k);
  const std::int64_t page_elements = 16 * 2 * 16;
  std::int64_t nans = 0;
  for (std::int64_t i = 0; i < 8 * page_elements; ++i) {
    nans += std::isnan(element_value(FileDType::kF16, k, i));
  }
  EXPECT_EQ(nans, (2 * 64 - 50 - 17) * 2 * 16);
}

TEST(WorkloadInput, ACloneHasItsOwnMemoryAndTheSameValues) {
  const auto input = make_workload_input(small(WorkloadLayout::kPackedQkv, WorkloadPass::kTrain));
  ASSERT_TRUE(input);
  const auto copy = clone(*input);
  ASSERT_TRUE(copy);
  EXPECT_EQ(copy->tensor_bytes(), input->tensor_bytes());
  EXPECT_NE(copy->tensors.v, input->tensors.v);
  EXPECT_NE(copy->tensors.dq, input->tensors.dq);
  EXPECT_EQ(
      static_cast<const char*>(copy->tensors.v) - static_cast<const char*>(copy->tensors.q),
      static_cast<const char*>(input->tensors.v) - static_cast<const char*>(input->tensors.q));
  ASSERT_TRUE(run(*copy));
  const auto check = check_workload(*copy, kLimits, 1);
  ASSERT_TRUE(check);
  EXPECT_TRUE(check->passed());
}

}  // namespace
}  // namespace foveal::tools
