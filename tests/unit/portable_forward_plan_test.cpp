// What portable_fwd plans from shapes alone: tile, packing of heads, splits, sections, refusals.
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include <foveal/device.hpp>

#include "cuda/portable/fwd/config.hpp"
#include "plan/gpu_families.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cuda::portable {
namespace {

constexpr std::int64_t kRtxBytes = 99 << 10;
constexpr std::int64_t kA100Bytes = 163 << 10;
constexpr std::int64_t kH200Bytes = 227 << 10;

DeviceInfo gpu(std::int64_t smem_per_block_bytes = kH200Bytes) {
  for (const planner::GpuFamily& family : planner::gpu_families()) {
    if (family.sm != 90) continue;
    DeviceInfo device = planner::describe_gpu(family);
    device.smem_per_block_bytes = smem_per_block_bytes;
    return device;
  }
  ADD_FAILURE() << "no family is sm_90";
  return {};
}

struct Shape {
  std::int64_t batch = 1;
  std::int64_t seqlen_q = 4096;
  std::int64_t seqlen_k = 4096;
  std::int64_t nheads_q = 16;
  std::int64_t nheads_k = 16;
  std::int64_t headdim = 128;
  DType dtype = DType::kFloat16;
};

AttentionProblem dense_problem(const Shape& shape) {
  AttentionProblem problem;
  problem.q = problem.out = TensorSpec::contiguous(
      shape.dtype, {shape.batch, shape.seqlen_q, shape.nheads_q, shape.headdim});
  problem.k = problem.v = TensorSpec::contiguous(
      shape.dtype, {shape.batch, shape.seqlen_k, shape.nheads_k, shape.headdim});
  return problem;
}

planner::KernelConfig configure(const AttentionProblem& problem, const DeviceInfo& device = gpu()) {
  return configure_forward(problem, make_geometry(problem), device);
}

ForwardSchedule schedule(const AttentionProblem& problem) {
  return forward_schedule(problem, make_geometry(problem), configure(problem));
}

TEST(PortableForwardPlan, EveryHeaddimHasATileInAnySharedMemory) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
    for (std::int64_t headdim = 1; headdim <= 512; ++headdim) {
      for (const std::int64_t bytes : {kRtxBytes, kA100Bytes, kH200Bytes}) {
        for (const float softcap : {0.0f, 30.0f}) {
          AttentionProblem problem = dense_problem({.headdim = headdim, .dtype = dtype});
          problem.softcap = softcap;
          const AttentionGeometry geometry = make_geometry(problem);
          const ForwardTile& tile = choose_forward_tile(problem, geometry, bytes);
          const auto element_bytes = static_cast<int>(dtype_bytes(dtype));
          ASSERT_GE(tile.d, headdim);
          ASSERT_LE(tile.layout(element_bytes).bytes, bytes) << "headdim " << headdim;
          ASSERT_FALSE(tile.plain && softcap > 0);
          const planner::KernelConfig config = configure(problem, gpu(bytes));
          ASSERT_EQ(planned_forward_tile(dtype, geometry, config), tile) << "headdim " << headdim;
        }
      }
    }
  }
}

TEST(PortableForwardPlan, WideHeadsTakeWhatSharedMemoryThereIs) {
  const auto tile_of = [](std::int64_t bytes) {
    const AttentionProblem problem = dense_problem({.headdim = 512});
    return choose_forward_tile(problem, make_geometry(problem), bytes);
  };
  EXPECT_EQ(tile_of(kRtxBytes), ForwardHdim512Small::tile);
  EXPECT_EQ(tile_of(kA100Bytes), ForwardHdim512Medium::tile);
  EXPECT_EQ(tile_of(kH200Bytes), ForwardHdim512::tile);
}

TEST(PortableForwardPlan, ScoreTermsTakeATileThatHasRegistersForThem) {
  AttentionProblem problem = dense_problem({});
  EXPECT_EQ(configure(problem).num_threads, ForwardHdim128Plain::tile.num_threads());
  problem.softmax_scale = -1.0f;
  EXPECT_EQ(configure(problem).num_threads, ForwardHdim128::tile.num_threads());
  problem.softmax_scale.reset();
  problem.dropout_p = 0.1f;
  EXPECT_EQ(configure(problem).num_threads, ForwardHdim128::tile.num_threads());
}

TEST(PortableForwardPlan, GroupedHeadsShareATileWhereThatSparesTiles) {
  EXPECT_TRUE(configure(dense_problem({.seqlen_q = 16, .nheads_k = 4})).pack_gqa);
  EXPECT_FALSE(configure(dense_problem({.seqlen_q = 4096, .nheads_k = 4})).pack_gqa);
  EXPECT_FALSE(configure(dense_problem({.seqlen_q = 16})).pack_gqa);
  const AttentionProblem problem = dense_problem({.batch = 3, .seqlen_q = 16, .nheads_k = 4});
  EXPECT_EQ(schedule(problem).group, 4);
  EXPECT_EQ(schedule(problem).num_tiles(3), 3 * 4);  // 64 of 128 rows
}

TEST(PortableForwardPlan, SplitsTheKeysOfFewTiles) {
  AttentionProblem problem =
      dense_problem({.seqlen_q = 64, .seqlen_k = 65536, .nheads_q = 4, .nheads_k = 4});
  const planner::KernelConfig config = configure(problem);
  EXPECT_EQ(config.num_splits, 2 * 132 / 4);
  ASSERT_EQ(config.workspace.size(), 2u);
  EXPECT_EQ(config.workspace[0].bytes, 4 * config.num_splits * 128 * 128 * 4);
  EXPECT_EQ(config.workspace[1].bytes, 4 * config.num_splits * 128 * 8);
  EXPECT_EQ(
      configure(dense_problem({.seqlen_q = 64, .seqlen_k = 512, .nheads_q = 4, .nheads_k = 4}))
          .num_splits,
      2);  // of at least four blocks
  EXPECT_EQ(configure(dense_problem({})).num_splits, 1);
  problem.batch_invariant = true;
  EXPECT_EQ(configure(problem).num_splits, 1);
  EXPECT_TRUE(configure(problem).workspace.empty());
}

TEST(PortableForwardPlan, SectionsOfHeadsAreEven) {
  EXPECT_EQ(schedule(dense_problem({.nheads_q = 8, .nheads_k = 8, .headdim = 256})).section, 8);
  // 32 MiB hold 4 of these heads: 10 make three sections.
  EXPECT_EQ(schedule(dense_problem(
                         {.seqlen_q = 16384, .seqlen_k = 16384, .nheads_q = 10, .nheads_k = 10}))
                .section,
            4);
  EXPECT_EQ(schedule(dense_problem({.seqlen_k = 1 << 20})).section, 1);
}

TEST(PortableForwardPlan, CountsTheTilesOfPackedSequences) {
  AttentionProblem problem;
  problem.q = problem.out = TensorSpec::contiguous(DType::kFloat16, {1000, 16, 128});
  problem.k = problem.v = TensorSpec::contiguous(DType::kFloat16, {1000, 16, 128});
  problem.cu_seqlens_q = problem.cu_seqlens_k = TensorSpec::contiguous(DType::kInt32, {6});
  const ForwardSchedule packed = schedule(problem);
  EXPECT_TRUE(packed.packed);
  EXPECT_EQ(packed.m_blocks, 1000 / 128 + 5);
  EXPECT_EQ(packed.num_tiles(5), (1000 / 128 + 5) * 16);
}

TEST(PortableForwardPlan, NotesRowsThatAreCopiedByElement) {
  EXPECT_TRUE(configure(dense_problem({})).notes.empty());
  const planner::KernelConfig config = configure(dense_problem({.headdim = 100}));
  ASSERT_EQ(config.notes.size(), 3u);
  EXPECT_EQ(config.notes[0], "q: its rows are not adjacent units of 16 bytes (" +
                                 dense_problem({.headdim = 100}).q.to_string() +
                                 "); they are copied element by element");
}

TEST(PortableForwardPlan, PredictsMoreForMore) {
  const auto predict = [](const Shape& shape) {
    const AttentionProblem problem = dense_problem(shape);
    return predict_forward(problem, make_geometry(problem), configure(problem), gpu());
  };
  EXPECT_LT(predict({.seqlen_k = 2048}), predict({.seqlen_k = 4096}));
  EXPECT_LT(predict({.headdim = 128}), predict({.headdim = 129}));  // a wider tile
  EXPECT_LT(predict({.seqlen_q = 4096}), predict({.seqlen_q = 4097}));
  // 5706 us on an H200 (bench/results/h200/portable_fwd.txt).
  EXPECT_NEAR(predict({.seqlen_q = 16384, .seqlen_k = 16384, .dtype = DType::kBFloat16}), 5706,
              0.25 * 5706);
}

std::string refusal(const planner::KernelEntry& entry, const Shape& shape) {
  const AttentionProblem problem = dense_problem(shape);
  return entry.supports(problem, make_geometry(problem), gpu()).message();
}

TEST(PortableForwardPlan, RefusesByName) {
  EXPECT_EQ(refusal(kPortableForward, {}), "");
  EXPECT_EQ(refusal(kPortableForwardFp32, {.dtype = DType::kFloat32}), "");
  EXPECT_EQ(refusal(kPortableForward, {.dtype = DType::kFloat32}),
            "portable_fwd takes fp16 and bf16; q is fp32");
  EXPECT_EQ(refusal(kPortableForwardFp32, {}), "portable_fwd_fp32 takes fp32; q is fp16");
  EXPECT_EQ(refusal(kPortableForward, {.seqlen_k = 3'000'000'000}),
            "portable_fwd takes at most 2147483647 keys; seqlen_k is 3000000000");
  EXPECT_EQ(refusal(kPortableForward, {.seqlen_q = 1'000'000'000, .nheads_k = 4}),
            "portable_fwd takes at most 2147483647 query rows of a KV head; seqlen_q times the "
            "heads that share one is 4000000000");
  EXPECT_EQ(refusal(kPortableForward, {.batch = 200'000'000, .seqlen_q = 128}),
            "portable_fwd takes at most 2147483647 tiles in a launch; here are 3200000000");
}

TEST(PortableForwardPlan, RefusesTooLittleSharedMemory) {
  const auto refused = [](const planner::KernelEntry& entry, DType dtype) {
    const AttentionProblem problem = dense_problem({.headdim = 512, .dtype = dtype});
    return entry.supports(problem, make_geometry(problem), gpu(48 << 10)).message();
  };
  const std::string expected = "a block may have 49152 bytes of shared memory: headdim 512 needs ";
  EXPECT_EQ(refused(kPortableForward, DType::kFloat16).substr(0, expected.size()), expected);
  EXPECT_EQ(refused(kPortableForwardFp32, DType::kFloat32).substr(0, expected.size()), expected);
}

TEST(PortableForwardPlan, RunsOnGpusFromSm80On) {
  DeviceInfo device = gpu();
  EXPECT_TRUE(kPortableForward.usable(device).is_ok());
  device.sm = 75;
  EXPECT_EQ(kPortableForward.usable(device).message(),
            "portable_fwd runs on GPUs from sm_80 on; " + device.name + " is sm_75");
  EXPECT_EQ(kPortableForwardFp32.usable(device).message(),
            "portable_fwd_fp32 runs on GPUs from sm_80 on; " + device.name + " is sm_75");
}

}  // namespace
}  // namespace foveal::cuda::portable
