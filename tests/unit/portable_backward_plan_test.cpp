// What portable_bwd and portable_bwd_fp32 tell the planner: which passes run, on which tiles, with
// how much memory.
#include <cstddef>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "cuda/portable/bwd/config.hpp"
#include "plan/gpu_families.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::test {
namespace {

namespace bwd = cuda::bwd;

AttentionProblem dense_problem(std::int64_t seqlen, std::int64_t headdim = 128,
                               DType dtype = DType::kBFloat16) {
  AttentionProblem p;
  p.pass = Pass::kBackward;
  p.q = p.out = p.dout = p.dq = TensorSpec::contiguous(dtype, {1, seqlen, 4, headdim});
  p.k = p.v = p.dk = p.dv = TensorSpec::contiguous(dtype, {1, seqlen, 2, headdim});
  p.lse = TensorSpec::contiguous(DType::kFloat32, {1, 4, seqlen});
  return p;
}

DeviceInfo described_gpu(std::int64_t shared_bytes = bwd::kLargeSharedBytes) {
  DeviceInfo gpu;
  gpu.type = DeviceType::kCuda;
  gpu.name = "a GPU";
  gpu.sm = 90;
  gpu.num_sms = 132;
  gpu.smem_per_block_bytes = shared_bytes;
  gpu.fp32_gflops = 130e3;
  gpu.fp16_gflops = gpu.bf16_gflops = 787e3;
  gpu.read_gbs = 4350;
  return gpu;
}

planner::KernelConfig configure(const AttentionProblem& p, const DeviceInfo& gpu) {
  return bwd::configure(p, make_geometry(p), gpu);
}

std::int64_t part_bytes(const planner::KernelConfig& config, bwd::Part part) {
  return config.workspace[static_cast<std::size_t>(part)].bytes;
}

bwd::Choice chosen(const AttentionProblem& p, const DeviceInfo& gpu) {
  return bwd::chosen(p, make_geometry(p), configure(p, gpu));
}

TEST(PortableBackwardPlan, RefusesOtherDevicesAndTypes) {
  const DeviceInfo cpu;
  EXPECT_EQ(cuda::kPortableBackward.usable(cpu).code(), StatusCode::kUnsupported);
  const auto refusal = [](const planner::KernelEntry& entry, DType dtype) {
    const AttentionProblem p = dense_problem(64, 64, dtype);
    return entry.supports(p, make_geometry(p), described_gpu()).message();
  };
  EXPECT_EQ(refusal(cuda::kPortableBackward, DType::kFloat32),
            "q is fp32: portable_bwd takes fp16 and bf16");
  EXPECT_EQ(refusal(cuda::kPortableBackwardFp32, DType::kFloat16),
            "q is fp16: portable_bwd_fp32 takes fp32");
}

TEST(PortableBackwardPlan, RefusesTooLittleSharedMemory) {
  const AttentionProblem p = dense_problem(64, 512);
  const Status status = bwd::supports(p, make_geometry(p), described_gpu(48 << 10));
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(
      status.message().find("a block may have 49152 bytes of shared memory: headdim 512 needs"),
      std::string::npos)
      << status.message();
}

TEST(PortableBackwardPlan, RefusesMoreRowsOrTilesThanALaunchHas) {
  AttentionProblem p = dense_problem(64);
  p.q = TensorSpec::strided(DType::kBFloat16, {1 << 10, 1 << 20, 1 << 11, 64}, {0, 0, 0, 1});
  EXPECT_EQ(bwd::supports(p, make_geometry(p), described_gpu()).message(),
            "q has 1073741824 rows of 2048 heads: the portable backward takes 1099511627776 rows "
            "over all heads");
  p.q = TensorSpec::strided(DType::kBFloat16, {1 << 10, 1 << 18, 1 << 10, 64}, {0, 0, 0, 1});
  EXPECT_EQ(bwd::supports(p, make_geometry(p), described_gpu()).message(),
            "it has 4294967296 tiles over all heads: at most 2147483647");
}

TEST(PortableBackwardPlan, EveryHeaddimHasKernelsOnEveryGpu) {
  for (const std::int64_t shared_bytes : {bwd::kSmallSharedBytes, bwd::kLargeSharedBytes}) {
    for (const DType dtype : {DType::kFloat16, DType::kFloat32}) {
      for (std::int64_t headdim = 1; headdim <= 512; ++headdim) {
        const AttentionProblem p = dense_problem(64, headdim, dtype);
        const DeviceInfo gpu = described_gpu(shared_bytes);
        ASSERT_TRUE(bwd::supports(p, make_geometry(p), gpu)) << headdim;
        ASSERT_GE(chosen(p, gpu).headdim, headdim);
      }
    }
  }
}

TEST(PortableBackwardPlan, WhatIsChosenIsReadBackFromTheConfiguration) {
  for (const std::int64_t shared_bytes : {bwd::kSmallSharedBytes, bwd::kLargeSharedBytes}) {
    for (const int headdim : bwd::kHeaddims) {
      for (const float softcap : {0.0f, 30.0f}) {
        AttentionProblem p = dense_problem(256, headdim);
        p.softcap = softcap;
        const DeviceInfo gpu = described_gpu(shared_bytes);
        const bwd::Choice choice = bwd::choose(p, make_geometry(p), gpu);
        const bwd::Choice read = chosen(p, gpu);
        const bwd::HeaddimTiles tiles = bwd::tiles_of(headdim, 2);
        // Where both tiles are the same, either name will do.
        if (tiles.keys_large != tiles.keys_small) {
          EXPECT_EQ(read.large, choice.large) << headdim;
        }
        EXPECT_EQ(read.sums_dq, choice.sums_dq);
        EXPECT_EQ(read.rows_pass, choice.rows_pass);
        if (softcap > 0) {
          EXPECT_FALSE(read.large);
        }
      }
    }
  }
}

TEST(PortableBackwardPlan, DqIsSummedInFp32OrHasAPassOfItsOwn) {
  const AttentionProblem p = dense_problem(4096);
  const DeviceInfo gpu = described_gpu();
  EXPECT_EQ(part_bytes(configure(p, gpu), bwd::Part::kDqSums), 4096 * 4 * 128 * 4);
  EXPECT_TRUE(chosen(p, gpu).sums_dq);

  AttentionProblem ordered = p;
  ordered.deterministic = true;
  EXPECT_EQ(part_bytes(configure(ordered, gpu), bwd::Part::kDqSums), 0);
  EXPECT_TRUE(chosen(ordered, gpu).rows_pass);
  EXPECT_FALSE(configure(ordered, gpu).notes.empty());

  AttentionProblem alone = p;
  alone.dk = alone.dv = {};
  EXPECT_EQ(part_bytes(configure(alone, gpu), bwd::Part::kDqSums), 0);
  EXPECT_FALSE(chosen(alone, gpu).keys_pass);

  AttentionProblem keys = p;
  keys.dq = {};
  EXPECT_EQ(part_bytes(configure(keys, gpu), bwd::Part::kDqSums), 0);
  EXPECT_FALSE(chosen(keys, gpu).rows_pass);
}

TEST(PortableBackwardPlan, WorkspaceGrowsWithTheSequenceNotItsSquare) {
  AttentionProblem p = dense_problem(1 << 16);
  p.deterministic = true;
  const DeviceInfo gpu = described_gpu();
  EXPECT_EQ(configure(p, gpu).workspace_bytes(), (1 << 16) * 4 * 8);
}

TEST(PortableBackwardPlan, AnFp32DoutIsNotRounded) {
  AttentionProblem p = dense_problem(64);
  p.out.dtype = p.dout.dtype = DType::kFloat32;
  EXPECT_EQ(chosen(p, described_gpu()).dtype, DType::kFloat32);
  EXPECT_EQ(configure(p, described_gpu()).notes.at(1),
            "dout is fp32: all products run in fp32, as three of TF32");
}

TEST(PortableBackwardPlan, PackedTilesAreBoundedByTheTotal) {
  EXPECT_EQ(bwd::max_tiles(/*batch=*/3, /*rows=*/1000, /*total=*/1000, /*packed=*/true, 64), 18);
  EXPECT_EQ(bwd::max_tiles(3, 1000, 2, true, 64), 2) << "each tile has a row";
  EXPECT_EQ(bwd::max_tiles(3, 1000, 3000, false, 64), 48);
}

}  // namespace
}  // namespace foveal::test
