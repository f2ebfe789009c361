// What cpu_blocked_fwd plans from shapes alone, and the line of work items that it makes of
// lengths.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include <foveal/device.hpp>

#include "cpu/fwd/config.hpp"
#include "cpu/fwd/work_index.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cpu {
namespace {

AttentionProblem dense_problem(std::int64_t batch, std::int64_t seqlen_q, std::int64_t seqlen_k) {
  AttentionProblem problem;
  problem.q = problem.out = TensorSpec::contiguous(DType::kFloat16, {batch, seqlen_q, 8, 64});
  problem.k = problem.v = TensorSpec::contiguous(DType::kFloat16, {batch, seqlen_k, 2, 64});
  return problem;
}

planner::KernelConfig configure(const AttentionProblem& problem, std::int64_t num_threads) {
  DeviceInfo device;
  device.num_threads = static_cast<std::int32_t>(num_threads);
  device.fp32_gflops = 100;
  device.read_gbs = 10;
  return kBlockedForward.configure(problem, make_geometry(problem), device);
}

TEST(CpuForwardPlan, SplitsTheKeysWhereThereAreTooFewTiles) {
  EXPECT_EQ(configure(dense_problem(1, 1, 8192), 1).num_splits, 1);
  EXPECT_EQ(configure(dense_problem(1, 1, 8192), 8).num_splits,
            32);                                                    // 1 item where 4 * 8 should be
  EXPECT_EQ(configure(dense_problem(1, 1, 600), 8).num_splits, 2);  // of at least 256 keys
  EXPECT_EQ(configure(dense_problem(64, 1, 8192), 8).num_splits, 1);
  EXPECT_EQ(configure(dense_problem(1, 2048, 2048), 8).num_splits, 1);
}

TEST(CpuForwardPlan, HeadsOfFewRowsThatLieSideBySideAreReadTogether) {
  AttentionProblem problem = dense_problem(1, 1, 8192);
  EXPECT_EQ(configure(problem, 2).heads_per_item, 2);
  EXPECT_EQ(configure(dense_problem(1, 3, 8192), 2).heads_per_item, 1);  // 12 rows a head
  problem.v =
      TensorSpec::strided(DType::kFloat16, {1, 8192, 2, 64}, {2 * 8192 * 64, 64, 8192 * 64, 1});
  EXPECT_EQ(configure(problem, 2).heads_per_item, 1);
}

TEST(CpuForwardPlan, BatchInvariantSplitsAreFixed) {
  for (const std::int64_t batch : {1, 64}) {
    for (const std::int64_t threads : {1, 2, 16}) {
      for (const std::int64_t seqlen_k : {100, 100000}) {
        AttentionProblem problem = dense_problem(batch, 1, seqlen_k);
        problem.batch_invariant = true;
        const planner::KernelConfig config = configure(problem, threads);
        EXPECT_EQ(config.num_splits, 1);
        EXPECT_EQ(config.split_keys, kInvariantSplitKeys);
        EXPECT_GE(config.tile.m, kInvariantSplitRows);
        EXPECT_EQ(config.tile.n, kForwardKeys);
      }
    }
  }
}

TEST(CpuForwardPlan, StartsNoMoreWorkersThanTheWorkIsWorth) {
  EXPECT_EQ(configure(dense_problem(1, 1, 16), 8).num_threads, 1);
  EXPECT_EQ(configure(dense_problem(1, 512, 512), 8).num_threads, 8);
  EXPECT_EQ(configure(dense_problem(0, 512, 512), 8).num_threads, 1);
}

TEST(CpuForwardPlan, WorkspaceDoesNotGrowWithTheKeys) {
  const std::int64_t at_4k = configure(dense_problem(1, 4096, 4096), 2).workspace_bytes();
  EXPECT_EQ(configure(dense_problem(1, 65536, 65536), 2).workspace_bytes(), at_4k);
  AttentionProblem decode = dense_problem(16, 1, 131072);
  decode.batch_invariant = true;
  const std::int64_t kv_bytes = 2 * decode.k.numel() * dtype_bytes(decode.k.dtype);
  EXPECT_LT(configure(decode, 2).workspace_bytes(), kv_bytes / 100);
}

TEST(CpuForwardPlan, NotesRowsThatAreGathered) {
  AttentionProblem problem = dense_problem(1, 4, 62);
  EXPECT_TRUE(configure(problem, 1).notes.empty());
  problem.v = TensorSpec::strided(DType::kFloat16, {1, 62, 2, 64}, {62 * 2 * 64, 1, 62 * 64, 62});
  const auto notes = configure(problem, 1).notes;
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0],
            "v: its last dimension has stride 62; its rows are gathered while tiles are packed");
}

TEST(CpuForwardPlan, PredictsMoreTimeForMoreWork) {
  const DeviceInfo device = *device_info(Device::cpu(2));
  const auto predicted_us = [&](const AttentionProblem& problem) {
    const AttentionGeometry geometry = make_geometry(problem);
    return kBlockedForward.predict(problem, geometry,
                                   kBlockedForward.configure(problem, geometry, device), device);
  };
  EXPECT_GT(predicted_us(dense_problem(1, 1, 1)), 0);
  EXPECT_GT(predicted_us(dense_problem(1, 1024, 1024)),
            3 * predicted_us(dense_problem(1, 512, 512)));
  EXPECT_GT(predicted_us(dense_problem(1, 1, 8192)), 3 * predicted_us(dense_problem(1, 1, 1024)));
}

TEST(CpuForwardPlan, RefusesGpus) {
  DeviceInfo gpu;
  gpu.type = DeviceType::kCuda;
  gpu.name = "NVIDIA H200";
  const Status status = kBlockedForward.usable(gpu);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(), "cpu_blocked_fwd runs on the CPU; the device is NVIDIA H200");
  EXPECT_TRUE(kBlockedForward.usable(DeviceInfo{}));
}

// Shapes that the case grid doesn't have -------------------------------------

/// Sequences given by their lengths, packed on both sides.
struct PackedLengths {
  std::vector<std::int32_t> cu_seqlens_q = {0};
  std::vector<std::int32_t> cu_seqlens_k = {0};

  PackedLengths(std::initializer_list<std::pair<int, int>> lengths) {
    for (const auto& [seqlen_q, seqlen_k] : lengths) {
      cu_seqlens_q.push_back(cu_seqlens_q.back() + seqlen_q);
      cu_seqlens_k.push_back(cu_seqlens_k.back() + seqlen_k);
    }
  }
  [[nodiscard]] std::int64_t batch() const {
    return static_cast<std::int64_t>(cu_seqlens_q.size()) - 1;
  }
  [[nodiscard]] algorithm::SeqlenSource source(const std::int32_t* seqused_q = nullptr) const {
    return {.cu_seqlens_q = cu_seqlens_q.data(),
            .cu_seqlens_k = cu_seqlens_k.data(),
            .seqused_q = seqused_q,
            .rows_q = cu_seqlens_q.back(),
            .rows_k = cu_seqlens_k.back()};
  }
  [[nodiscard]] AttentionGeometry geometry(std::int64_t nheads_k, std::int64_t group) const {
    AttentionGeometry sizes;
    sizes.batch = batch();
    sizes.nheads_k = nheads_k;
    sizes.nheads_q = nheads_k * group;
    sizes.qhead_per_khead = group;
    sizes.headdim = sizes.headdim_v = 16;
    sizes.packed_q = sizes.packed_k = true;
    sizes.seqlen_q = sizes.total_q = cu_seqlens_q.back();
    sizes.seqlen_k = sizes.total_k = cu_seqlens_k.back();
    return sizes;
  }
};

planner::KernelConfig index_config(std::int64_t num_splits, std::int64_t split_keys) {
  planner::KernelConfig config;
  config.tile = {.m = 64, .n = kForwardKeys};
  config.num_splits = num_splits;
  config.split_keys = split_keys;
  return config;
}

TEST(CpuForwardWork, EveryTileHeadAndSplitOnceWithASlotOfItsOwn) {
  const PackedLengths lengths{{1, 2000}, {0, 50}, {130, 140}, {3, 0}, {20, 5000}, {0, 0}};
  for (const auto& [num_splits, split_keys, heads] :
       {std::tuple{1, 0, 1}, {5, 0, 1}, {1, 1024, 1}, {5, 0, 2}, {1, 1024, 3}}) {
    const AttentionGeometry geometry = lengths.geometry(2, 3);
    planner::KernelConfig config = index_config(num_splits, split_keys);
    config.heads_per_item = heads;
    std::vector<std::byte> storage(work_index_bytes(geometry.batch));
    const WorkIndex index = build_work_index(geometry, config, lengths.source(), storage.data());
    EXPECT_LE(index.num_slots, partial_slots(config, geometry));
    std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>> seen;
    std::set<std::int64_t> slots;
    for (std::int64_t i = 0; i < index.queue->num_items(); ++i) {
      WorkItem item = index.item(i, geometry.nheads_k);
      const SequenceWork& sequence = *item.sequence;
      EXPECT_LT(item.split, sequence.num_splits);
      EXPECT_EQ(item.num_heads, std::min<std::int64_t>(heads, geometry.nheads_k - item.head_k));
      for (std::int64_t head = 0; head < item.num_heads; ++head, ++item.head_k) {
        EXPECT_TRUE(seen.emplace(sequence.b, item.m_block, item.head_k, item.split).second) << i;
        if (sequence.num_splits == 1) continue;
        const std::int64_t slot = item.first_slot(geometry.nheads_k) + item.split;
        EXPECT_LT(slot, index.num_slots);
        EXPECT_TRUE(slots.insert(slot).second) << slot;
      }
    }
    std::size_t expected = 0;
    for (const SequenceWork& sequence : index.sequences) {
      const std::int64_t rows =
          3 * (lengths.cu_seqlens_q[sequence.b + 1] - lengths.cu_seqlens_q[sequence.b]);
      expected += static_cast<std::size_t>(2 * ceil_div(rows, config.tile.m) * sequence.num_splits);
    }
    EXPECT_EQ(seen.size(), expected);
    EXPECT_EQ(static_cast<std::int64_t>(slots.size()), index.num_slots);
  }
}

TEST(CpuForwardWork, RowsPastTheLengthHaveItemsWithoutSplits) {
  const PackedLengths lengths{{200, 3000}};
  const std::int32_t used[] = {10};
  const AttentionGeometry geometry = lengths.geometry(1, 1);
  std::vector<std::byte> storage(work_index_bytes(1));
  const WorkIndex index =
      build_work_index(geometry, index_config(1, 1024), lengths.source(used), storage.data());
  EXPECT_EQ(index.sequences[0].m_blocks, 1);
  EXPECT_EQ(index.sequences[0].padding_blocks, 3);
  EXPECT_EQ(index.sequences[0].num_splits, 3);
  EXPECT_EQ(index.queue->num_items(), 3 + 3);
  EXPECT_EQ(index.item(3, 1).m_block, 1);
  EXPECT_EQ(index.item(5, 1).m_block, 3);
}

TEST(CpuForwardWork, LongestItemsComeFirst) {
  const PackedLengths lengths{{64, 64}, {640, 640}, {128, 320}};
  AttentionGeometry geometry = lengths.geometry(1, 1);
  geometry.window = algorithm::make_window(-1, -1, /*causal=*/true);
  std::vector<std::byte> storage(work_index_bytes(3));
  const WorkIndex index =
      build_work_index(geometry, index_config(1, 0), lengths.source(), storage.data());
  std::vector<std::pair<std::int64_t, std::int64_t>> order;
  for (std::int64_t i = 0; i < index.queue->num_items(); ++i) {
    const WorkItem item = index.item(i, 1);
    order.emplace_back(item.sequence->b, item.m_block);
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> expected;
  for (std::int64_t m_block = 9; m_block >= 0; --m_block) expected.emplace_back(1, m_block);
  expected.insert(expected.end(), {{2, 1}, {2, 0}, {0, 0}});
  EXPECT_EQ(order, expected);
}

}  // namespace
}  // namespace foveal::cpu
