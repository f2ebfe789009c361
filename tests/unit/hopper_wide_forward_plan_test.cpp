// What hopper_wide_fwd plans from shapes and a GPU's description, and what it refuses.
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include <foveal/device.hpp>
#include <foveal/plan.hpp>

#include "cuda/hopper/wide_fwd/config.hpp"
#include "plan/kernel_table.hpp"
#include "support/scoped_environment.hpp"

namespace foveal::cuda {
namespace {

namespace wide = hopper::wide_fwd;

AttentionProblem prefill(std::int64_t seqlen, std::int64_t headdim = 512) {
  AttentionProblem problem;
  problem.q = problem.out = TensorSpec::contiguous(DType::kBFloat16, {1, seqlen, 16, headdim});
  problem.k = problem.v = TensorSpec::contiguous(DType::kBFloat16, {1, seqlen, 8, headdim});
  problem.causal = true;
  return problem;
}

AttentionProblem paged(std::int64_t page_size) {
  AttentionProblem problem = prefill(512);
  problem.k = problem.v = TensorSpec::contiguous(DType::kBFloat16, {64, page_size, 8, 512});
  problem.block_table = TensorSpec::contiguous(DType::kInt32, {1, 32});
  problem.seqused_k = TensorSpec::contiguous(DType::kInt32, {1});
  return problem;
}

DeviceInfo h200() { return *device_from_name("sm_90"); }

planner::KernelConfig configure(const AttentionProblem& problem) {
  return kHopperWideForward.configure(problem, make_geometry(problem), h200());
}

std::string refusal(const AttentionProblem& problem) {
  return kHopperWideForward.supports(problem, make_geometry(problem), h200()).message();
}

TEST(HopperWideForwardPlan, TakesTheNarrowestTileThatHoldsTheHeads) {
  const auto tile_of = [](std::int64_t headdim) {
    return wide::wide_tile(make_geometry(prefill(64, headdim)));
  };
  for (const std::int64_t headdim : {264, 320, 328, 384, 392, 448, 456, 512}) {
    const wide::WideTile tile = tile_of(headdim);
    EXPECT_GE(tile.d, headdim);
    EXPECT_LT(tile.d - headdim, 64) << "no panel of columns is empty";
    EXPECT_LE(tile.shared_bytes(), h200().smem_per_block_bytes);
  }
  AttentionProblem mixed = prefill(64, 128);
  mixed.v = TensorSpec::contiguous(DType::kBFloat16, {1, 64, 8, 320});
  mixed.out = TensorSpec::contiguous(DType::kBFloat16, {1, 64, 16, 320});
  EXPECT_EQ(wide::wide_tile(make_geometry(mixed)).d, 320);
  EXPECT_EQ(refusal(mixed), "");
}

TEST(HopperWideForwardPlan, ClustersShareTilesWhereThereAreMore) {
  const planner::KernelConfig few = configure(prefill(256));  // 2 x 16 tiles of 128 rows
  EXPECT_EQ(few.cluster_size, 2);
  EXPECT_EQ(few.num_blocks, 64);
  EXPECT_EQ(few.workspace_bytes(), 0);
  const planner::KernelConfig many = configure(prefill(8192));
  EXPECT_EQ(many.num_blocks, 132);
  ASSERT_EQ(many.workspace.size(), 1u);
  EXPECT_EQ(many.workspace.front().bytes, 8);
  EXPECT_EQ(many.num_splits, 1);
  EXPECT_EQ(configure(prefill(0)).num_blocks, 0);
}

TEST(HopperWideForwardPlan, CopiesHalfABlockOrPartsOfPages) {
  const auto box_of = [](const AttentionProblem& problem) {
    return wide::keys_of_box(make_geometry(problem));
  };
  EXPECT_EQ(box_of(prefill(64)), 64);
  EXPECT_EQ(box_of(paged(8)), 8);
  EXPECT_EQ(box_of(paged(48)), 16);
  EXPECT_EQ(box_of(paged(256)), 64);
}

TEST(HopperWideForwardPlan, RefusesWithTheFieldAndTheLimit) {
  EXPECT_EQ(refusal(prefill(512)), "");
  EXPECT_EQ(refusal(paged(64)), "");
  EXPECT_EQ(refusal(prefill(512, 256)), "headdim 256: hopper_wide_fwd takes at least 257");
  EXPECT_EQ(refusal(prefill(512, 520)), "headdim 520: hopper_wide_fwd takes at most 512");
  EXPECT_EQ(refusal(paged(20)), "page_size 20: hopper_wide_fwd takes multiples of 8");
  AttentionProblem problem = prefill(512);
  problem.dropout_p = 0.5f;
  EXPECT_EQ(refusal(problem), "hopper_wide_fwd takes no dropout");
  EXPECT_TRUE(kHopperWideForward.usable(h200()));
  EXPECT_EQ(kHopperWideForward.usable(*device_from_name("sm_100")).message(),
            "hopper_wide_fwd runs on GPUs of sm_90 alone; B200 (sm_100) is sm_100");
}

/// The choice between the two forwards, whether or not one of them is chosen unasked.
std::string choice(const AttentionProblem& problem) {
  const test::ScopedEnvironment both("FOVEAL_FORCE_KERNEL", "hopper_wide_fwd,portable_fwd");
  const Result<Explanation> explanation = explain(problem, h200());
  EXPECT_TRUE(explanation);
  return explanation ? explanation->kernel : "";
}

TEST(HopperWideForwardPlan, ThePlannerTakesItForPrefill) {
  EXPECT_EQ(choice(prefill(8192)), "hopper_wide_fwd");
  EXPECT_EQ(choice(prefill(8192, 320)), "hopper_wide_fwd");
  AttentionProblem problem = prefill(8192);
  problem.alibi_slopes = TensorSpec::contiguous(DType::kFloat32, {16});
  EXPECT_EQ(choice(problem), "portable_fwd");
}

TEST(HopperWideForwardPlan, BatchInvariantDoesNotLookAtTheBatch) {
  for (const std::int64_t seqlen : {256, 2048, 65536}) {
    AttentionProblem problem = prefill(seqlen);
    problem.batch_invariant = true;
    EXPECT_EQ(choice(problem), "hopper_wide_fwd");
  }
}

}  // namespace
}  // namespace foveal::cuda
