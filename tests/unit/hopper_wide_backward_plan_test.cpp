// What hopper_wide_bwd tells the planner: what it refuses and why, its workspace, that every tile
// has one place in the order, and that what streams past has its place and is freed once.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/hopper/wide_bwd/config.hpp"
#include "cuda/hopper/wide_bwd/halves.hpp"
#include "plan/kernel_table.hpp"
#include "unit/hopper_backward_problem.hpp"

namespace foveal::test {
namespace {

namespace wide = cuda::hopper::wide_bwd;
using wide::Side;

AttentionProblem dense_problem(std::int64_t seqlen, std::int64_t headdim = 512,
                               DType dtype = DType::kBFloat16) {
  return dense_backward(seqlen, headdim, dtype);
}

AttentionProblem packed_problem(std::int64_t total, std::int64_t batch) {
  return packed_backward(total, batch, 512);
}

std::string refusal(const AttentionProblem& p, const DeviceInfo& gpu = gpu_of(90)) {
  const Status status = wide::supports(p, make_geometry(p), gpu);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  return status.message();
}

planner::KernelConfig configure(const AttentionProblem& p) {
  return wide::configure(p, make_geometry(p), gpu_of(90));
}

TEST(HopperWideBackwardPlan, RunsOnHopperAlone) {
  const DeviceInfo cpu;
  EXPECT_EQ(cuda::kHopperWideBackward.usable(cpu).code(), StatusCode::kUnsupported);
  EXPECT_EQ(cuda::kHopperWideBackward.usable(gpu_of(80)).message(),
            "hopper_wide_bwd runs on GPUs of sm_90 alone; a GPU is sm_80");
  EXPECT_EQ(cuda::kHopperWideBackward.usable(gpu_of(120)).code(), StatusCode::kUnsupported);
  EXPECT_TRUE(cuda::kHopperWideBackward.usable(gpu_of(90)));
}

TEST(HopperWideBackwardPlan, TakesHeadsFrom257To512) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (std::int64_t headdim = 264; headdim <= 512; headdim += 8) {
      const AttentionProblem p = dense_problem(100, headdim, dtype);
      ASSERT_TRUE(wide::supports(p, make_geometry(p), gpu_of(90))) << headdim;
      ASSERT_GE(wide::wide_tile(make_geometry(p)).d, headdim);
    }
  }
  EXPECT_EQ(wide::wide_tile(make_geometry(dense_problem(64, 384))).d, 384);
  EXPECT_EQ(refusal(dense_problem(100, 520)), "headdim 520: hopper_wide_bwd takes 257 to 512");
  EXPECT_EQ(refusal(dense_problem(100, 256)), "headdim 256: hopper_wide_bwd takes 257 to 512");
}

TEST(HopperWideBackwardPlan, TakesDeterministicAndAnyOfTheGradients) {
  AttentionProblem p = dense_problem(64);
  p.deterministic = true;
  EXPECT_TRUE(wide::supports(p, make_geometry(p), gpu_of(90)));
  p.dq = {};
  EXPECT_TRUE(wide::supports(p, make_geometry(p), gpu_of(90)));
}

TEST(HopperWideBackwardPlan, TakesSoftcap) {
  for (const std::int64_t headdim : {264, 384, 512}) {
    AttentionProblem p = dense_problem(64, headdim);
    p.softcap = 30;
    EXPECT_TRUE(wide::supports(p, make_geometry(p), gpu_of(90))) << headdim;
  }
}

TEST(HopperWideBackwardPlan, RefusesOtherTypes) {
  EXPECT_EQ(refusal(dense_problem(64, 512, DType::kFloat32)),
            "q is fp32: hopper_wide_bwd takes fp16 and bf16");
  AttentionProblem p = dense_problem(64);
  p.out.dtype = p.dout.dtype = DType::kFloat32;
  EXPECT_EQ(refusal(p), "dout is fp32: hopper_wide_bwd takes q's bf16");
}

TEST(HopperWideBackwardPlan, RefusesWhatItDoesNotCompute) {
  const auto with = [](const auto& change) {
    AttentionProblem p = dense_problem(64);
    change(p);
    return refusal(p);
  };
  EXPECT_EQ(with([](AttentionProblem& p) {
              p.bias = TensorSpec::contiguous(DType::kBFloat16, {1, 1, 64, 64});
            }),
            "hopper_wide_bwd takes no bias");
  EXPECT_EQ(with([](AttentionProblem& p) {
              p.alibi_slopes = TensorSpec::contiguous(DType::kFloat32, {4});
            }),
            "hopper_wide_bwd takes no alibi_slopes");
  EXPECT_EQ(with([](AttentionProblem& p) { p.dropout_p = 0.1f; }),
            "hopper_wide_bwd takes no dropout");
}

TEST(HopperWideBackwardPlan, RefusesStridesThatTheCopyEngineCannotTake) {
  AttentionProblem p = dense_problem(64);
  p.k.strides[1] += 4;
  EXPECT_EQ(refusal(p).substr(0, 2), "k ");
  p = dense_problem(64);
  p.dout.strides[3] = 2;
  EXPECT_EQ(refusal(p).substr(0, 5), "dout ");
}

TEST(HopperWideBackwardPlan, RefusesLessSharedMemoryThanATileNeeds) {
  DeviceInfo gpu = gpu_of(90);
  gpu.smem_per_block_bytes = 99 << 10;
  EXPECT_NE(
      refusal(dense_problem(64), gpu).find("bytes of shared memory a block; there are 101376"),
      std::string::npos);
}

TEST(HopperWideBackwardPlan, RefusesMoreRowsOrTilesThanItCounts) {
  AttentionProblem p = dense_problem(64);
  p.q = TensorSpec::strided(DType::kBFloat16, {1 << 10, 1 << 20, 4, 512}, {8, 8, 8, 1});
  EXPECT_EQ(refusal(p), "1073741824 rows of q or k: hopper_wide_bwd takes at most 536870912");
  p.q = TensorSpec::strided(DType::kBFloat16, {1 << 10, 1 << 18, 1 << 12, 512}, {8, 8, 8, 1});
  EXPECT_EQ(refusal(p), "hopper_wide_bwd takes at most 536870912 tiles over all heads");
}

// Nothing grows with the square of the length, and no gradient is summed in memory.
TEST(HopperWideBackwardPlan, WorkspaceIsTwoNumbersARow) {
  const planner::KernelConfig config = configure(dense_problem(4096));
  EXPECT_EQ(config.workspace.at(0).bytes, 2 * 4096 * 4 * 8);
  EXPECT_EQ(config.workspace.at(1).bytes, 0);
  EXPECT_EQ(config.workspace.at(2).bytes, 0);
}

// A launch whose pointers turn out to be unaligned is portable_bwd's, in the same workspace.
TEST(HopperWideBackwardPlan, WorkspaceHasRoomForPortableBackward) {
  const auto device = device_from_name("sm_90");
  ASSERT_TRUE(device);
  std::vector<AttentionProblem> problems = {packed_problem(1000, 7), packed_problem(3, 40)};
  for (const std::int64_t headdim : {264, 320, 384, 512}) {
    for (const std::int64_t seqlen : {1, 63, 64, 1000}) {
      problems.push_back(dense_problem(seqlen, headdim));
    }
  }
  for (const AttentionProblem& p : problems) {
    const planner::KernelConfig portable =
        cuda::kPortableBackward.configure(p, make_geometry(p), *device);
    const planner::KernelConfig config = configure(p);
    EXPECT_GE(config.workspace_bytes(), portable.workspace_bytes());
    ASSERT_EQ(config.stand_in.size(), 1u);
    EXPECT_EQ(config.stand_in.front().workspace_bytes(), portable.workspace_bytes());
  }
}

TEST(HopperWideBackwardPlan, EveryTileComesOnceTheFirstOfAHeadFirst) {
  for (const std::int32_t section : {1, 3, 5, 8}) {
    const wide::TileOrder order{.blocks = 6, .pairs = 8, .section = section};
    std::vector<std::int32_t> next(8, 0);
    for (std::uint32_t index = 0; index < 48; ++index) {
      const wide::DenseTile tile = wide::dense_tile(order, index);
      ASSERT_EQ(tile.block, next.at(static_cast<std::size_t>(tile.pair))++);
    }
    for (const std::int32_t count : next) EXPECT_EQ(count, 6);
  }
}

TEST(HopperWideBackwardPlan, ASectionOfRowsIsWholeGroupsOfQueryHeads) {
  for (const std::int64_t seqlen : {64, 4096, 16384, 1 << 20}) {
    const AttentionProblem p = dense_problem(seqlen);
    const auto section = [&](Side side) {
      return wide::tile_order(make_geometry(p), side).section;
    };
    EXPECT_EQ(section(Side::kRows) % 2, 0) << seqlen;
    EXPECT_GE(section(Side::kKeys), 1) << seqlen;
  }
}

std::vector<wide::HalfRules> all_rules() {
  std::vector<wide::HalfRules> rules;
  for (const wide::WideTile& tile : {wide::WideHdim384::tile, wide::WideHdim512::tile}) {
    rules.push_back({tile.keys, Side::kKeys});
    rules.push_back({tile.rows, Side::kRows});
  }
  return rules;
}

// A block's two operands, halves of columns: scores need both halves of one of them, and each sum
// its own half of the columns.
TEST(HopperWideBackwardHalves, ABlockHasWhatItsProductsRead) {
  for (const int role : {0, 1}) {
    for (const int half : {wide::early_half(role), wide::kOwnHalf}) {
      EXPECT_EQ(wide::is_first(role, half), role == 0);
    }
    EXPECT_NE(wide::columns_of(role, wide::early_half(role)),
              wide::columns_of(role, wide::kOwnHalf));
    for (const int sum : {0, 1}) {
      const int half = wide::half_of_sum(role, sum);
      EXPECT_EQ(wide::is_first(role, half), sum == 0);
      EXPECT_EQ(wide::columns_of(role, half), role);
    }
  }
}

TEST(HopperWideBackwardHalves, PlacesOfDifferentHalvesNeverMeet) {
  for (const wide::HalfRules& rules : all_rules()) {
    std::vector<int> half_of(static_cast<std::size_t>(rules.plan.stages()), -1);
    for (int half = 0; half < wide::kHalves; ++half) {
      std::vector<int> rounds(half_of.size(), 0);
      for (int step = 0; step < 8; ++step) {
        const wide::HalfPlace place = rules.place(half, step);
        const auto stage = static_cast<std::size_t>(place.stage);
        int& owner = half_of.at(stage);
        ASSERT_TRUE(owner == -1 || owner == half);
        owner = half;
        ASSERT_EQ(place.parity, static_cast<std::uint32_t>(rounds.at(stage)++ % 2));
      }
    }
    for (const int half : half_of) EXPECT_NE(half, -1) << "a place that nobody uses";
  }
}

TEST(HopperWideBackwardHalves, ReadersFreeAHalfByAnArrivalALane) {
  for (const wide::HalfRules& rules : all_rules()) {
    for (const int role : {0, 1}) {
      int arrivals[wide::kHalves] = {};
      for (const int half : {wide::early_half(role), wide::kOwnHalf}) {
        arrivals[half] += rules.score_arrivals(role, half);
      }
      for (int sum = 0; sum < wide::WideTile::num_sums(rules.side); ++sum) {
        const int half = wide::half_of_sum(role, sum);
        arrivals[half] += rules.sum_arrivals(half);
      }
      for (int half = 0; half < wide::kHalves; ++half) {
        EXPECT_EQ(arrivals[half], rules.has(role, half) ? wide::kLanes : 0);
      }
    }
  }
}

}  // namespace
}  // namespace foveal::test
