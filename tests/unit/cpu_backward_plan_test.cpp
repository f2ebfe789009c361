// What cpu_blocked_bwd tells the planner, and the lists that its workers pull from.
#include <cstddef>
#include <cstdint>
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
  // A float a row and head, and two lists of tiles of 64 rows.
  EXPECT_LE(bytes(1 << 20), (1 << 20) * 10);
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
  EXPECT_NEAR(time_us(p) / plain, 9.0 / 7.0, 0.01);  // two products more than seven
  device.num_threads = 1;
  device.fp32_gflops = 100;
  device.read_gbs = 12.5;
  EXPECT_NEAR(time_us(dense_problem(1024)) / plain, 4.0, 0.1);
}

/// The lists behind the queues, for lengths in host memory.
TEST(CpuBackwardWorkTiles, LongestFirstAndEveryRowInOne) {
  Case c;
  c.pass = Pass::kBackward;
  c.nheads_k = c.group = 2;
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
  const cpu::BackwardArgs args(context);
  const auto row_part = static_cast<std::size_t>(cpu::BackwardPart::kRowTiles);
  const auto key_part = static_cast<std::size_t>(cpu::BackwardPart::kKeyTiles);
  const auto rows = cpu::list_row_tiles(args, context.workspace_part<cpu::WorkTile>(row_part));
  const auto keys = cpu::list_key_tiles(args, context.workspace_part<cpu::WorkTile>(key_part));
  EXPECT_LE(static_cast<std::int64_t>(rows.size_bytes()), config.workspace[row_part].bytes);
  EXPECT_LE(static_cast<std::int64_t>(keys.size_bytes()), config.workspace[key_part].bytes);

  std::int64_t num_rows = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(i == 0 || rows[i - 1].pairs >= rows[i].pairs);
    num_rows += cpu::packed_rows(args, cpu::sequence_of(args, rows[i].b), rows[i].block).size();
  }
  EXPECT_EQ(num_rows, c.batch() * geometry.seqlen_q * c.group);
  std::int64_t num_positions = 0;
  std::int64_t num_keys = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_TRUE(i == 0 || keys[i - 1].pairs >= keys[i].pairs);
    const cpu::Sequence sequence = cpu::sequence_of(args, keys[i].b);
    num_positions += cpu::key_positions(args, sequence, keys[i].block).size();
    num_keys += cpu::used_keys(args, sequence, keys[i].block).size();
  }
  EXPECT_EQ(num_positions, c.batch() * geometry.seqlen_k);
  EXPECT_EQ(num_keys, 10 + 170 + 30 + 64);
}

}  // namespace
}  // namespace foveal::test
