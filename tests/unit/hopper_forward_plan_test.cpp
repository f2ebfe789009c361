// What hopper_fwd plans from shapes and a GPU's description, and what it refuses.
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include <foveal/device.hpp>
#include <foveal/plan.hpp>

#include "cuda/hopper/forward_rules.hpp"
#include "cuda/hopper/fwd/config.hpp"
#include "plan/kernel_table.hpp"
#include "support/scoped_environment.hpp"

namespace foveal::cuda {
namespace {

AttentionProblem prefill(std::int64_t batch, std::int64_t seqlen, std::int64_t nheads_q,
                         std::int64_t nheads_k, std::int64_t headdim = 128) {
  AttentionProblem problem;
  problem.q = problem.out =
      TensorSpec::contiguous(DType::kFloat16, {batch, seqlen, nheads_q, headdim});
  problem.k = problem.v =
      TensorSpec::contiguous(DType::kFloat16, {batch, seqlen, nheads_k, headdim});
  problem.causal = true;
  return problem;
}

AttentionProblem paged(std::int64_t page_size) {
  AttentionProblem problem = prefill(2, 512, 8, 2);
  problem.k = problem.v = TensorSpec::contiguous(DType::kFloat16, {64, page_size, 2, 128});
  problem.block_table = TensorSpec::contiguous(DType::kInt32, {2, 32});
  problem.seqused_k = TensorSpec::contiguous(DType::kInt32, {2});
  return problem;
}

DeviceInfo h200() { return *device_from_name("sm_90"); }

planner::KernelConfig configure(const AttentionProblem& problem) {
  return kHopperForward.configure(problem, make_geometry(problem), h200());
}

std::string refusal(const AttentionProblem& problem) {
  return kHopperForward.supports(problem, make_geometry(problem), h200()).message();
}

TEST(HopperForwardPlan, TakesTheNarrowestTileThatHoldsTheHeads) {
  const auto tile_of = [](std::int64_t headdim) {
    return hopper::forward_tile(make_geometry(prefill(1, 64, 1, 1, headdim)));
  };
  for (const std::int64_t headdim : {8, 64, 72, 96, 104, 128, 136, 192, 200, 256}) {
    const hopper::ForwardTile tile = tile_of(headdim);
    EXPECT_GE(tile.d, headdim);
    EXPECT_LE(tile.shared_bytes(), h200().smem_per_block_bytes);
  }
  EXPECT_EQ(tile_of(64).d, 64);
  EXPECT_EQ(tile_of(96).d, 96);
  EXPECT_EQ(tile_of(136).d, 192);
  AttentionProblem mixed = prefill(1, 64, 1, 1, 192);
  mixed.v = TensorSpec::contiguous(DType::kFloat16, {1, 64, 1, 128});
  mixed.out = mixed.v;
  EXPECT_EQ(hopper::forward_tile(make_geometry(mixed)).d, 192);
}

TEST(HopperForwardPlan, BlocksShareTilesWhereThereAreMore) {
  const planner::KernelConfig few = configure(prefill(1, 1024, 8, 8));
  EXPECT_EQ(few.num_blocks, 64);
  EXPECT_EQ(few.workspace_bytes(), 0);
  const planner::KernelConfig many = configure(prefill(1, 16384, 16, 16));
  EXPECT_EQ(many.num_blocks, 132);
  ASSERT_EQ(many.workspace.size(), 1u);
  EXPECT_EQ(many.workspace.front().bytes, 8);
  EXPECT_EQ(many.num_splits, 1);
  EXPECT_EQ(configure(prefill(0, 1024, 8, 8)).num_blocks, 0);
}

TEST(HopperForwardPlan, HeadsShareTheCacheInEvenSections) {
  const auto section_of = [](const AttentionProblem& problem) {
    return hopper::forward_schedule(problem, make_geometry(problem), h200().num_sms).section;
  };
  EXPECT_EQ(section_of(prefill(1, 16384, 16, 16)), 4);  // 8 MiB of keys and values a head
  EXPECT_EQ(section_of(prefill(1, 16384, 16, 4)), 16);  // a quarter of that
  EXPECT_EQ(section_of(prefill(1, 1024, 16, 16)), 16);
  EXPECT_EQ(section_of(prefill(1, 1 << 20, 3, 3)), 1);
}

TEST(HopperForwardPlan, RowsAreSpreadWhereTheLongestTileDecides) {
  const auto is_spread = [](const AttentionProblem& problem) {
    return hopper::forward_schedule(problem, make_geometry(problem), h200().num_sms).spread;
  };
  EXPECT_TRUE(is_spread(prefill(1, 1024, 16, 16)));
  EXPECT_FALSE(is_spread(prefill(1, 2048, 16, 16))) << "256 tiles share 132 multiprocessors";
  EXPECT_FALSE(is_spread(prefill(1, 128, 16, 16))) << "one tile a head";
  AttentionProblem problem = prefill(1, 1024, 16, 16);
  problem.causal = false;
  EXPECT_FALSE(is_spread(problem)) << "all rows see as much";
  problem.causal = true;
  problem.window_size_left = 256;
  problem.window_size_right = 0;
  EXPECT_FALSE(is_spread(problem)) << "rows far apart share no keys";
}

TEST(HopperForwardPlan, PlansWhatRunsOnOddPointers) {
  const planner::KernelConfig config = configure(prefill(1, 128, 1, 1));
  ASSERT_EQ(config.stand_in.size(), 1u);
  EXPECT_EQ(config.stand_in.front().num_splits, 1);
  EXPECT_EQ(config.stand_in.front().workspace_bytes(), 0);
}

TEST(HopperForwardPlan, CopiesWholeBlocksOrPartsOfPages) {
  const auto box_of = [](const AttentionProblem& problem) {
    return hopper::keys_of_box(make_geometry(problem));
  };
  const std::int64_t n = hopper::forward_tile(make_geometry(prefill(1, 64, 1, 1))).n;
  EXPECT_EQ(box_of(prefill(1, 64, 1, 1)), n);
  for (const std::int64_t page_size : {8, 16, 24, 64, 128, 256}) {
    const std::int64_t box = box_of(paged(page_size));
    EXPECT_EQ(n % box, 0);
    EXPECT_EQ(page_size % box, 0);
    EXPECT_GE(box, 8);
    EXPECT_LE(n / box, 32) << "a lane of the loading warp has a box";
  }
}

TEST(HopperForwardPlan, PackedTilesAreBounded) {
  AttentionProblem problem = prefill(1, 1, 16, 4);
  problem.q = problem.out = TensorSpec::contiguous(DType::kFloat16, {1000, 16, 128});
  problem.k = problem.v = TensorSpec::contiguous(DType::kFloat16, {1000, 4, 128});
  problem.cu_seqlens_q = problem.cu_seqlens_k = TensorSpec::contiguous(DType::kInt32, {8});
  const hopper::ForwardSchedule schedule =
      hopper::forward_schedule(problem, make_geometry(problem), h200().num_sms);
  EXPECT_TRUE(schedule.packed);
  EXPECT_EQ(schedule.num_tiles, (1000 / 128 + 7) * 16);
}

TEST(HopperForwardPlan, PackedHeadsShareTheCacheWithTheirKeys) {
  const auto section_of = [](std::int64_t tokens, std::int64_t nheads_q, std::int64_t nheads_k) {
    AttentionProblem problem = prefill(1, 1, nheads_q, nheads_k);
    problem.q = problem.out = TensorSpec::contiguous(DType::kFloat16, {tokens, nheads_q, 128});
    problem.k = problem.v = TensorSpec::contiguous(DType::kFloat16, {tokens, nheads_k, 128});
    problem.cu_seqlens_q = problem.cu_seqlens_k = TensorSpec::contiguous(DType::kInt32, {5});
    return hopper::forward_schedule(problem, make_geometry(problem), h200().num_sms).section;
  };
  EXPECT_EQ(section_of(1000, 32, 32), 32) << "all of them";
  EXPECT_EQ(section_of(16384, 32, 32), 4);
  EXPECT_EQ(section_of(16384, 32, 8), 16) << "four KV heads and their groups";
  EXPECT_EQ(section_of(1 << 20, 32, 8), 4) << "a group, though its keys do not fit";
  EXPECT_EQ(section_of(0, 32, 8), 32);

  // What a cache has room for says little of what is used.
  AttentionProblem cached = paged(64);
  cached.q = cached.out = TensorSpec::contiguous(DType::kFloat16, {1000, 8, 128});
  cached.cu_seqlens_q = TensorSpec::contiguous(DType::kInt32, {cached.block_table.shape[0] + 1});
  cached.k = cached.v =
      TensorSpec::contiguous(DType::kFloat16, {1 << 16, 64, cached.k.shape[2], 128});
  const hopper::ForwardSchedule schedule =
      hopper::forward_schedule(cached, make_geometry(cached), h200().num_sms);
  EXPECT_TRUE(schedule.packed);
  EXPECT_EQ(schedule.section, 8);
}

TEST(HopperForwardPlan, RunsOnHopperAlone) {
  EXPECT_TRUE(kHopperForward.usable(h200()));
  EXPECT_EQ(kHopperForward.usable(*device_from_name("sm_100")).message(),
            "hopper_fwd runs on GPUs of sm_90 alone; B200 (sm_100) is sm_100");
  EXPECT_EQ(kHopperForward.usable(*device_from_name("sm_80")).message(),
            "hopper_fwd runs on GPUs of sm_90 alone; A100 (sm_80) is sm_80");
  DeviceInfo cpu;
  cpu.name = "a CPU";
  EXPECT_EQ(kHopperForward.usable(cpu).message(), "hopper_fwd runs on GPUs; the device is a CPU");
}

TEST(HopperForwardPlan, RefusesWithTheFieldAndTheLimit) {
  EXPECT_EQ(refusal(prefill(1, 512, 8, 8)), "");
  AttentionProblem problem = prefill(1, 512, 8, 8);
  problem.q.dtype = problem.k.dtype = problem.v.dtype = problem.out.dtype = DType::kFloat32;
  EXPECT_EQ(refusal(problem), "dtype fp32: hopper_fwd takes fp16 and bf16");

  EXPECT_EQ(refusal(prefill(1, 512, 8, 8, 264)), "headdim 264: hopper_fwd takes at most 256");

  problem = prefill(1, 512, 8, 8);
  problem.bias = TensorSpec::contiguous(DType::kFloat32, {1, 1, 1, 512});
  EXPECT_EQ(refusal(problem), "hopper_fwd takes no bias");

  problem = prefill(1, 512, 8, 8);
  problem.alibi_slopes = TensorSpec::contiguous(DType::kFloat32, {8});
  EXPECT_EQ(refusal(problem), "hopper_fwd takes no alibi_slopes");

  problem = prefill(1, 512, 8, 8);
  problem.dropout_p = 0.5f;
  EXPECT_EQ(refusal(problem), "hopper_fwd takes no dropout");

  EXPECT_EQ(refusal(paged(64)), "");
  EXPECT_EQ(refusal(paged(20)), "page_size 20: hopper_fwd takes multiples of 8");
  problem = paged(64);
  problem.leftpad_k = TensorSpec::contiguous(DType::kInt32, {2});
  EXPECT_EQ(refusal(problem), "hopper_fwd takes no leftpad_k with pages");

  problem = prefill(1, 512, 8, 8);
  problem.k = TensorSpec::strided(DType::kFloat16, {1, 512, 8, 128}, {0, 1028, 128, 1});
  EXPECT_EQ(refusal(problem),
            "k fp16 [1, 512, 8, 128] strides [0, 1028, 128, 1]: hopper_fwd takes adjacent elements "
            "and other strides that are positive multiples of 8");
  problem.k = TensorSpec::strided(DType::kFloat16, {1, 512, 8, 128}, {0, 128, 0, 1});
  EXPECT_NE(refusal(problem), "");
  problem.k = TensorSpec::strided(DType::kFloat16, {1, 512, 8, 128}, {7, 1024, 128, 1});
  EXPECT_EQ(refusal(problem), "") << "the stride of one sequence is never used";

  EXPECT_EQ(refusal(prefill(1, (std::int64_t{1} << 29) + 1, 1, 1)),
            "536870913 rows of q or k: hopper_fwd takes at most 536870912");
  EXPECT_EQ(refusal(prefill(1 << 20, 512, 1024, 8)),
            "hopper_fwd takes at most 1073741824 tiles of 128 rows");

  DeviceInfo small = h200();
  small.smem_per_block_bytes = 101376;
  problem = prefill(1, 512, 8, 8);
  const std::string message =
      kHopperForward.supports(problem, make_geometry(problem), small).message();
  EXPECT_NE(message.find("bytes of shared memory a block; there are 101376"), std::string::npos)
      << message;
}

/// The choice between the two forwards, whether or not one of them is chosen unasked.
Explanation choice(const AttentionProblem& problem) {
  const test::ScopedEnvironment both("FOVEAL_FORCE_KERNEL", "hopper_fwd,portable_fwd");
  const Result<Explanation> explanation = explain(problem, h200());
  EXPECT_TRUE(explanation);
  return explanation ? *explanation : Explanation{};
}

TEST(HopperForwardPlan, ThePlannerTakesItForPrefillAndSaysWhyNot) {
  EXPECT_EQ(choice(prefill(1, 8192, 16, 16)).kernel, "hopper_fwd");

  AttentionProblem problem = prefill(1, 8192, 16, 16);
  problem.dropout_p = 0.1f;
  const Explanation refused = choice(problem);
  EXPECT_EQ(refused.kernel, "portable_fwd");
  bool said = false;
  for (const KernelVerdict& verdict : refused.verdicts) {
    said |= verdict.name == "hopper_fwd" && verdict.reason == "hopper_fwd takes no dropout";
  }
  EXPECT_TRUE(said);
}

TEST(HopperForwardPlan, FewRowsAgainstManyKeysAreSplitByAnotherKernel) {
  AttentionProblem problem = prefill(1, 128, 8, 8);
  problem.k = problem.v = TensorSpec::contiguous(DType::kFloat16, {1, 65536, 8, 128});
  EXPECT_EQ(choice(problem).kernel, "portable_fwd");
}

TEST(HopperForwardPlan, BatchInvariantDoesNotLookAtTheBatch) {
  for (const std::int64_t batch : {1, 7, 512}) {
    AttentionProblem problem = prefill(batch, 2048, 8, 8);
    problem.batch_invariant = true;
    EXPECT_EQ(choice(problem).kernel, "hopper_fwd");
  }
}

}  // namespace
}  // namespace foveal::cuda
