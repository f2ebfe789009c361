// What cpu_blocked_bwd tells the planner, and the lists that its workers pull from.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cpu/bwd/config.hpp"
#include "cpu/bwd/work_tiles.hpp"
#include "plan/kernel_table.hpp"
#include "support/built_case.hpp"

namespace foveal::test {
namespace {

TEST(CpuBackwardPlan, RefusesOtherDevices) {
  DeviceInfo gpu;
  gpu.type = DeviceType::kCuda;
  gpu.name = "sm_90";
  const Status status = cpu::kBlockedBackward.usable(gpu);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(), "cpu_blocked_bwd runs on the CPU; the device is sm_90");
}

AttentionProblem dense_problem(std::int64_t seqlen) {
  AttentionProblem p;
  p.pass = Pass::kBackward;
  p.q = p.k = p.v = p.out = p.dout = p.dq = p.dk = p.dv =
      TensorSpec::contiguous(DType::kBFloat16, {1, seqlen, 2, 64});
  p.lse = TensorSpec::contiguous(DType::kFloat32, {1, 2, seqlen});
  return p;
}

planner::KernelConfig configure(const AttentionProblem& problem, std::int32_t num_threads = 2) {
  DeviceInfo device;
  device.num_threads = num_threads;
  return cpu::kBlockedBackward.configure(problem, make_geometry(problem), device);
}

TEST(CpuBackwardPlan, RefusesMoreRowsThanItsSizesHold) {
  AttentionProblem p = dense_problem(1 << 20);
  p.q = TensorSpec::strided(DType::kBFloat16, {1 << 10, 1 << 20, 1 << 11, 64}, {0, 0, 0, 1});
  const Status status = cpu::kBlockedBackward.supports(p, make_geometry(p), {});
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(),
            "q has 1073741824 rows of 2048 heads: cpu_blocked_bwd takes 1099511627776 rows over "
            "all heads");
}

TEST(CpuBackwardPlan, WorkspaceGrowsWithTheSequenceNotItsSquare) {
  const auto bytes = [](std::int64_t seqlen) {
    const planner::KernelConfig config = configure(dense_problem(seqlen));
    return config.workspace_bytes() -
           config.workspace[static_cast<std::size_t>(cpu::BackwardPart::kScratch)].bytes;
  };
  EXPECT_LE(bytes(1 << 17), 2 * bytes(1 << 16));
  // A float a row and head, and for each of two workers the sums of dq of a head of 64.
  EXPECT_LE(bytes(1 << 20), (1 << 20) * (2 * 4 + 2 * 64 * 4 + 1));
}

TEST(CpuBackwardPlan, SumsOfDqAreThoseOfTheHeadsUnderWay) {
  const auto bytes = [](AttentionProblem p, std::int32_t num_threads) {
    return configure(p, num_threads)
        .workspace[static_cast<std::size_t>(cpu::BackwardPart::kDqSums)]
        .bytes;
  };
  const AttentionProblem p = dense_problem(4096);
  EXPECT_GE(bytes(p, 1), 4096 * 64 * 4);
  EXPECT_LE(bytes(p, 1), (4096 + cpu::kBackwardTile.m) * 64 * 4 + 4096) << "rounded up to a tile";
  EXPECT_GE(bytes(p, 2), 2 * 4096 * 64 * 4);
  EXPECT_EQ(bytes(p, 16), bytes(p, 2)) << "there are two heads";
  AttentionProblem without = p;
  without.dq = {};
  EXPECT_EQ(bytes(without, 2), 0);
}

TEST(CpuBackwardPlan, SaysWhichOperandsAreGathered) {
  AttentionProblem p = dense_problem(62);
  EXPECT_TRUE(configure(p).notes.empty());
  p.v = p.dk = TensorSpec::strided(DType::kBFloat16, {1, 62, 2, 64}, {0, 1, 64 * 62, 62});
  EXPECT_EQ(configure(p).notes,
            (std::vector<std::string>{
                "v: its last dimension has stride 62; its rows are gathered while tiles are packed",
                "dk: its last dimension has stride 62; its rows are scattered when they are "
                "stored"}));
}

TEST(CpuBackwardPlan, PredictsMoreForMoreWorkAndLessForMoreThreads) {
  DeviceInfo device;
  device.num_threads = 4;
  device.fp32_gflops = 400;
  device.read_gbs = 50;
  const auto time_us = [&](const AttentionProblem& p) {
    const AttentionGeometry geometry = make_geometry(p);
    return cpu::kBlockedBackward.predict(
        p, geometry, cpu::kBlockedBackward.configure(p, geometry, device), device);
  };
  AttentionProblem p = dense_problem(1024);
  const double plain = time_us(p);
  EXPECT_NEAR(time_us(dense_problem(2048)) / plain, 4.0, 0.1);
  p.bias = p.dbias = TensorSpec::contiguous(DType::kFloat32, {1, 1, 1024, 1024});
  EXPECT_NEAR(time_us(p) / plain, 7.0 / 5.0, 0.01);  // two products more than five
  device.num_threads = 1;
  device.fp32_gflops = 100;
  device.read_gbs = 12.5;
  EXPECT_NEAR(time_us(dense_problem(1024)) / plain, 4.0, 0.1);
}

/// The items behind the queues, for lengths in host memory.
TEST(CpuBackwardWorkTiles, HeaviestSequenceFirstAndEveryRowInOne) {
  Case c;
  c.pass = Pass::kBackward;
  c.nheads_k = 3;
  c.group = 2;
  c.lens = {{150, 10}, {20, 170}, {0, 30}, {64, 64}};
  c.q_form = QForm::kUsed;
  c.k_form = KForm::kCache;
  c.leftpad = 70;
  c.causal = true;
  const BuiltCase built(c);
  const AttentionGeometry geometry = make_geometry(built.bench.problem);
  const planner::KernelConfig config = configure(built.bench.problem);
  GuardedBuffer workspace(static_cast<std::size_t>(config.workspace_bytes()));
  const planner::LaunchContext context{built.bench.problem, geometry,         config,
                                       built.bench.tensors, workspace.data(), nullptr};
  const cpu::BackwardArgs args(context, {});
  const auto part = static_cast<std::size_t>(cpu::BackwardPart::kIndex);
  const cpu::BackwardIndex index = cpu::build_backward_index(
      args, /*heads_together=*/2, context.workspace_part<cpu::BackwardSequence>(part));
  EXPECT_LE(static_cast<std::int64_t>(index.sequences.size_bytes()), config.workspace[part].bytes);
  for (std::size_t i = 1; i < index.sequences.size(); ++i) {
    EXPECT_GE(index.sequences[i - 1].cost, index.sequences[i].cost);
  }

  std::int64_t num_rows = 0;
  for (std::int64_t i = 0; i < index.num_row_items; ++i) {
    const cpu::BackwardItem item = index.row_item(i);
    num_rows += cpu::packed_rows(args, cpu::sequence_of(args, item.sequence->b), item.block).size();
  }
  EXPECT_EQ(num_rows, c.batch() * geometry.seqlen_q * c.group * c.nheads_k);
  std::int64_t num_positions = 0;
  std::int64_t num_keys = 0;
  std::map<std::int64_t, std::int64_t> next_block;
  for (std::int64_t i = 0; i < index.num_key_items; ++i) {
    const cpu::BackwardItem item = index.key_item(i);
    const cpu::Sequence sequence = cpu::sequence_of(args, item.sequence->b);
    num_positions += cpu::key_positions(args, sequence, item.block).size();
    num_keys += cpu::used_keys(args, sequence, item.block).size();
    const auto [next, first] =
        next_block.try_emplace(index.unit(item), item.sequence->first_key_block);
    EXPECT_EQ(item.block, next->second++) << "blocks of a head in ascending order";
    if (first && index.unit(item) >= 2) {
      EXPECT_EQ(
          next_block.at(index.unit(item) - 2),
          index.sequences[static_cast<std::size_t>((index.unit(item) - 2) / 3)].key_blocks +
              index.sequences[static_cast<std::size_t>((index.unit(item) - 2) / 3)].first_key_block)
          << "a head begins when the one before last has no block left to hand out";
    }
  }
  EXPECT_EQ(num_positions, c.batch() * geometry.seqlen_k * c.nheads_k);
  EXPECT_EQ(num_keys, (10 + 170 + 30 + 64) * c.nheads_k);
}

}  // namespace
}  // namespace foveal::test
