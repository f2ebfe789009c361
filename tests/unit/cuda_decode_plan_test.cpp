// What cuda_decode plans from shapes and a GPU's description, and what it refuses.
#include <algorithm>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include <foveal/device.hpp>
#include <foveal/plan.hpp>

#include "cuda/portable/decode/config.hpp"
#include "cuda/portable/decode/direct_args.hpp"
#include "cuda/portable/decode/ring_fit.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cuda {
namespace {

AttentionProblem decode_problem(std::int64_t batch, std::int64_t nheads_q, std::int64_t nheads_k,
                                std::int64_t seqlen_k, std::int64_t headdim = 128) {
  AttentionProblem problem;
  problem.q = problem.out = TensorSpec::contiguous(DType::kFloat16, {batch, 1, nheads_q, headdim});
  problem.k = problem.v =
      TensorSpec::contiguous(DType::kFloat16, {batch, seqlen_k, nheads_k, headdim});
  return problem;
}

DeviceInfo h200() { return *device_from_name("sm_90"); }

planner::KernelConfig configure(const AttentionProblem& problem, const DeviceInfo& device) {
  return kDecode.configure(problem, make_geometry(problem), device);
}

std::string refusal(const AttentionProblem& problem) {
  return kDecode.supports(problem, make_geometry(problem), h200()).message();
}

TEST(CudaDecodePlan, FewHeadsAreSplitOverClusters) {
  EXPECT_EQ(configure(decode_problem(1, 16, 16, 8192), h200()).cluster_size, 4);
  EXPECT_EQ(configure(decode_problem(1, 32, 8, 8192), h200()).cluster_size, 8);
  EXPECT_EQ(configure(decode_problem(1, 16, 16, 200), h200()).cluster_size, 1);  // too few keys
  const planner::KernelConfig config = configure(decode_problem(1, 16, 16, 8192), h200());
  EXPECT_EQ(config.num_splits, config.cluster_size);
  EXPECT_EQ(config.num_blocks, 0);
  EXPECT_EQ(config.workspace_bytes(), 0);
  ASSERT_FALSE(config.notes.empty());
  EXPECT_EQ(config.notes.front(),
            "keys are split 4 ways: 16 tiles of heads alone would use 16 of 132 multiprocessors");
}

TEST(CudaDecodePlan, WithoutClustersTheWorkIsShared) {
  const DeviceInfo a100 = *device_from_name("sm_80");
  const planner::KernelConfig config = configure(decode_problem(1, 16, 16, 8192), a100);
  EXPECT_EQ(config.cluster_size, 1);
  EXPECT_EQ(config.num_blocks % a100.num_sms, 0);
  EXPECT_GT(config.num_blocks, 0);
}

TEST(CudaDecodePlan, ManyHeadsOfOneLengthAreNotSplit) {
  const planner::KernelConfig config = configure(decode_problem(64, 32, 8, 4096), h200());
  EXPECT_EQ(config.num_splits, 1);
  EXPECT_EQ(config.num_blocks, 0);
}

TEST(CudaDecodePlan, LengthsOnTheDeviceAreBalanced) {
  AttentionProblem problem = decode_problem(64, 32, 8, 131072);
  problem.seqused_k = TensorSpec::contiguous(DType::kInt32, {64});
  const planner::KernelConfig config = configure(problem, h200());
  EXPECT_EQ(config.num_blocks, 2 * 132);
  EXPECT_EQ(config.split_keys, 0);
  EXPECT_GT(config.workspace_bytes(), 0);
  // Two results a block, whatever the cache's capacity.
  problem.k = problem.v = TensorSpec::contiguous(DType::kFloat16, {64, 32768, 8, 128});
  EXPECT_EQ(configure(problem, h200()).workspace_bytes(), config.workspace_bytes());
}

planner::KernelConfig configure_lengths(std::int64_t batch, std::int64_t nheads_k,
                                        std::int64_t seqlen_k, const char* device = "sm_90") {
  AttentionProblem problem = decode_problem(batch, 4 * nheads_k, nheads_k, seqlen_k);
  problem.seqused_k = TensorSpec::contiguous(DType::kInt32, {batch});
  return configure(problem, *device_from_name(device));
}

TEST(CudaDecodePlan, LengthsOnTheDeviceOfShortCachesAreSplitInEqualParts) {
  struct Expected {
    std::int64_t batch, seqlen_k, cluster_size, warps, stages;
  };
  for (const Expected& e :
       {Expected{2, 8192, 8, 4, 2}, Expected{4, 2048, 4, 4, 2}, Expected{8, 2048, 2, 4, 2},
        Expected{16, 8192, 2, 8, 3}, Expected{17, 4096, 1, 8, 3}, Expected{64, 4096, 1, 8, 3},
        // Too few keys for parts, and for a block on every multiprocessor.
        Expected{4, 300, 2, 8, 2}, Expected{16, 200, 1, 8, 3}, Expected{64, 64, 1, 8, 3},
        Expected{2, 64, 1, 8, 3}}) {
    const planner::KernelConfig config = configure_lengths(e.batch, 8, e.seqlen_k);
    EXPECT_EQ(config.num_blocks, 0) << e.batch;
    EXPECT_EQ(config.split_keys, 0) << e.batch;
    EXPECT_EQ(config.cluster_size, e.cluster_size) << e.batch;
    EXPECT_EQ(config.num_splits, e.cluster_size) << e.batch;
    EXPECT_EQ(config.num_threads, 32 * e.warps) << e.batch;
    EXPECT_EQ(config.num_stages, e.stages) << e.batch;
  }
}

TEST(CudaDecodePlan, SmallPagesHaveTwoStages) {
  for (const std::int64_t page : {16, 32, 64, 256}) {
    AttentionProblem problem = decode_problem(16, 32, 8, 8192);
    problem.k = problem.v =
        TensorSpec::contiguous(DType::kFloat16, {16 * 8192 / page, page, 8, 128});
    problem.block_table = TensorSpec::contiguous(DType::kInt32, {16, 8192 / page});
    problem.seqused_k = TensorSpec::contiguous(DType::kInt32, {16});
    EXPECT_EQ(configure(problem, h200()).num_stages, page < 64 ? 2 : 3) << page;
  }
}

/// Blocks of wide heads are too large for two on a multiprocessor: their clusters are fewer.
TEST(CudaDecodePlan, ClustersOfWideHeadsHaveAMultiprocessorABlock) {
  AttentionProblem problem = decode_problem(4, 16, 8, 2048, 256);
  problem.seqused_k = TensorSpec::contiguous(DType::kInt32, {4});
  const planner::KernelConfig config = configure(problem, h200());
  EXPECT_EQ(config.cluster_size, 2);
  EXPECT_GE(config.num_threads, 32 * 4);
}

/// One long sequence among short ones would hold up its cluster.
TEST(CudaDecodePlan, LengthsOnTheDeviceOfLongCachesAreShared) {
  for (const std::int64_t batch : {2, 4, 16, 64}) {
    EXPECT_GT(configure_lengths(batch, 8, 65536).num_blocks, 0) << batch;
  }
  EXPECT_GT(configure_lengths(16, 8, 16384).num_blocks, 0);
  EXPECT_GT(configure_lengths(64, 8, 16384).num_blocks, 0);
  // Without clusters only where a block a head draws nearly all that memory gives.
  EXPECT_GT(configure_lengths(2, 8, 2048, "sm_80").num_blocks, 0);
  EXPECT_EQ(configure_lengths(16, 8, 2048, "sm_80").num_blocks, 0);
}

TEST(CudaDecodePlan, LengthsOnTheDeviceThatTheGeneralKernelReadsAreShared) {
  AttentionProblem problem = decode_problem(4, 32, 8, 8192);
  problem.softcap = 3;
  EXPECT_EQ(configure(problem, h200()).num_blocks, 0);
  // Sequences are expected to have three quarters of the cache: where that is little, clusters.
  problem.seqused_k = TensorSpec::contiguous(DType::kInt32, {4});
  EXPECT_GT(configure(problem, h200()).num_blocks, 0);
  EXPECT_EQ(configure(problem, h200()).split_keys, 0);
  problem.k = problem.v = TensorSpec::contiguous(DType::kFloat16, {4, 1024, 8, 128});
  EXPECT_EQ(configure(problem, h200()).num_blocks, 0);
}

AttentionProblem invariant_problem(std::int64_t batch, std::int64_t nheads_k,
                                   std::int64_t seqlen_k) {
  AttentionProblem problem = decode_problem(batch, 4 * nheads_k, nheads_k, seqlen_k);
  problem.batch_invariant = true;
  return problem;
}

TEST(CudaDecodePlan, BatchInvariantPartsAreOfTheSequenceAlone) {
  for (const char* device : {"sm_90", "sm_120"}) {
    const planner::KernelConfig alone =
        configure(invariant_problem(1, 8, 1), *device_from_name(device));
    for (const std::int64_t batch : {1, 3, 64, 4096}) {
      for (const std::int64_t seqlen_k : {64, 2048, 2049, 8192, 131072}) {
        const planner::KernelConfig config =
            configure(invariant_problem(batch, 8, seqlen_k), *device_from_name(device));
        EXPECT_EQ(config.split_keys, decode::kInvariantPartKeys);
        EXPECT_EQ(config.num_blocks, 0);
        EXPECT_EQ(config.workspace_bytes(), 0);
        EXPECT_EQ(config.cluster_size, config.num_splits);
        // The longest sequence finds all of its parts.
        const std::int64_t longest = (seqlen_k + config.split_keys - 1) / config.split_keys;
        EXPECT_EQ(config.num_splits, std::min<std::int64_t>(longest, decode::kMaxInvariantParts));
        // Keys are dealt to the warps: their number must not follow the batch either.
        EXPECT_EQ(config.num_threads, alone.num_threads);
      }
    }
  }
}

TEST(CudaDecodePlan, BatchInvariantSplitsOfFewHeadsAreOfTheSequenceAlone) {
  for (const std::int64_t batch : {1, 3, 64, 4096}) {
    for (const char* device : {"sm_80", "sm_90", "sm_120"}) {
      const planner::KernelConfig config =
          configure(invariant_problem(batch, 2, 8192), *device_from_name(device));
      EXPECT_EQ(config.split_keys, decode::kInvariantSplitKeys);
      EXPECT_GT(config.num_blocks, 0);
      EXPECT_EQ(config.num_threads,
                configure(invariant_problem(1, 2, 8192), *device_from_name(device)).num_threads);
    }
  }
  const planner::KernelConfig config =
      configure(invariant_problem(1, 2, std::int64_t{1} << 24), h200());
  EXPECT_GT(config.split_keys, decode::kInvariantSplitKeys);
  EXPECT_LE((std::int64_t{1} << 24) / config.split_keys, decode::kMaxMergedParts);
}

TEST(CudaDecodePlan, PartsOfAnInvariantSplitFollowFromItsLengthAlone) {
  constexpr std::int32_t kPart = 128;
  for (std::int32_t blocks = 0; blocks < 5000; ++blocks) {
    const std::int32_t size = decode::part_blocks(blocks, kPart, 1, Divisor(1));
    EXPECT_EQ(size, decode::part_blocks(blocks, kPart, 8, Divisor(8)));
    EXPECT_GE(size, kPart);
    EXPECT_GE(size * decode::kMaxInvariantParts, blocks);
  }
  for (std::int32_t splits = 1; splits <= 8; ++splits) {
    for (std::int32_t blocks = 0; blocks < 200; ++blocks) {
      const std::int32_t size =
          decode::part_blocks(blocks, 0, splits, Divisor(static_cast<std::uint32_t>(splits)));
      EXPECT_EQ(size, (blocks + splits - 1) / splits);
    }
  }
}

TEST(CudaDecodePlan, RowsOfAGroupAndOfSeveralTokensShareTiles) {
  AttentionProblem problem = decode_problem(1, 32, 8, 4096);
  EXPECT_EQ(configure(problem, h200()).tile.m, 8);  // 4 rows of a KV head
  problem.q = problem.out = TensorSpec::contiguous(DType::kFloat16, {1, 16, 32, 128});
  EXPECT_EQ(configure(problem, h200()).tile.m, 32);  // 64 rows
  EXPECT_EQ(decode::row_tiles_per_sequence(make_geometry(problem), 32), 2);
}

TEST(CudaDecodePlan, EveryShapeFitsInTheSharedMemoryOfSmallGpus) {
  for (const char* name : {"sm_80", "sm_90", "sm_120"}) {
    const DeviceInfo device = *device_from_name(name);
    for (const std::int64_t headdim : {1, 64, 96, 128, 200, 256, 320, 512}) {
      for (const std::int64_t tokens : {1, 16}) {
        for (const std::int64_t batch : {1, 64, 4096}) {
          for (const bool invariant : {false, true}) {
            AttentionProblem problem = decode_problem(batch, 16, 2, 4096, headdim);
            problem.q = problem.out =
                TensorSpec::contiguous(DType::kFloat16, {batch, tokens, 16, headdim});
            problem.batch_invariant = invariant;
            const AttentionGeometry geometry = make_geometry(problem);
            const planner::KernelConfig config = configure(problem, device);
            const decode::SharedLayout layout = decode::shared_layout(
                decode::headdim_tile(geometry), static_cast<int>(config.tile.m),
                static_cast<int>(config.num_threads / 32), static_cast<int>(config.num_stages),
                config.num_splits > 1 ? static_cast<int>(config.num_splits) : 0,
                config.num_blocks > 0 ? static_cast<int>(batch) : 0);
            const std::int64_t rows = geometry.seqlen_q * geometry.qhead_per_khead;
            if (rows <= decode::kTileRows && headdim <= decode::kMaxDirectHeaddim) {
              EXPECT_LE(
                  decode::direct_layout(decode::headdim_tile(geometry), static_cast<int>(rows),
                                        static_cast<int>(config.num_threads / 32),
                                        static_cast<int>(config.num_stages),
                                        static_cast<int>(config.num_splits))
                      .total,
                  device.smem_per_block_bytes)
                  << name << " headdim " << headdim << " tokens " << tokens << " batch " << batch;
            }
            EXPECT_LE(layout.total, device.smem_per_block_bytes)
                << name << " headdim " << headdim << " tokens " << tokens << " batch " << batch;
            EXPECT_GE(config.num_stages, 2);
          }
        }
      }
    }
  }
}

/// Clusters, whose plan has room for both kernels too.
TEST(CudaDecodePlan, ClustersOfLengthsOnTheDeviceFitInTheSharedMemoryOfSmallGpus) {
  int num_clusters = 0;
  for (const char* name : {"sm_90", "sm_120"}) {
    const DeviceInfo device = *device_from_name(name);
    for (const int headdim : {64, 128, 256}) {
      for (const std::int64_t batch : {2, 3, 5, 16, 64}) {
        for (const std::int64_t nheads_k : {2, 8}) {
          for (const std::int64_t seqlen_k : {64, 300, 2048, 8192, 32768}) {
            for (const bool invariant : {false, true}) {
              AttentionProblem problem =
                  decode_problem(batch, 4 * nheads_k, nheads_k, seqlen_k, headdim);
              problem.seqused_k = TensorSpec::contiguous(DType::kInt32, {batch});
              problem.batch_invariant = invariant;
              const planner::KernelConfig config = configure(problem, device);
              if (config.num_blocks > 0) continue;
              num_clusters += config.cluster_size > 1 ? 1 : 0;
              const int warps = static_cast<int>(config.num_threads / 32);
              const int stages = static_cast<int>(config.num_stages);
              const int splits = static_cast<int>(config.num_splits);
              const auto general = decode::shared_layout(headdim, static_cast<int>(config.tile.m),
                                                         warps, stages, splits > 1 ? splits : 0, 0);
              const auto direct = decode::direct_layout(headdim, 4, warps, stages, splits);
              EXPECT_LE(std::max(general.total, direct.total), device.smem_per_block_bytes)
                  << name << " headdim " << headdim << " batch " << batch << " heads " << nheads_k
                  << " keys " << seqlen_k << (invariant ? " invariant" : "");
            }
          }
        }
      }
    }
  }
  EXPECT_GT(num_clusters, 100);
}

/// Lengths far apart, which blocks share evenly: the plan has room for both kernels.
TEST(CudaDecodePlan, SharedWorkFitsInTheSharedMemoryOfSmallGpus) {
  for (const char* name : {"sm_80", "sm_90", "sm_120"}) {
    const DeviceInfo device = *device_from_name(name);
    for (const std::int64_t headdim : {64, 128, 256}) {
      for (const std::int64_t batch : {40, 52, 4096}) {
        for (const std::int64_t group : {1, 8}) {
          AttentionProblem problem = decode_problem(batch, 2 * group, 2, 131072, headdim);
          problem.seqused_k = TensorSpec::contiguous(DType::kInt32, {batch});
          const planner::KernelConfig config = configure(problem, device);
          ASSERT_GT(config.num_blocks, 0);
          const decode::SharedDirectLayout layout = decode::shared_direct_layout(
              static_cast<int>(headdim), static_cast<int>(group),
              static_cast<int>(config.num_threads / 32), static_cast<int>(config.num_stages),
              static_cast<int>(config.num_blocks), static_cast<int>(batch));
          EXPECT_LE(layout.total, device.smem_per_block_bytes)
              << name << " headdim " << headdim << " batch " << batch << " group " << group;
          // Two blocks share a multiprocessor where there are more blocks than multiprocessors.
          const std::int64_t per_sm = config.num_blocks / device.num_sms;
          EXPECT_LE(per_sm * (layout.total + 1024), device.smem_per_block_bytes + 1024);
          // The last merge has a slot for each block.
          EXPECT_GE(layout.prefix - layout.places,
                    static_cast<int>(sizeof(decode::PartPlaces)) + config.num_blocks * 4);
          EXPECT_GE(config.num_stages, 2);
        }
      }
    }
  }
}

TEST(CudaDecodePlan, RefusesWithTheFieldAndTheLimit) {
  AttentionProblem problem = decode_problem(1, 8, 8, 64);
  problem.q = problem.out = TensorSpec::contiguous(DType::kFloat16, {1, 17, 8, 128});
  EXPECT_EQ(refusal(problem), "seqlen_q 17: cuda_decode takes at most 16 query tokens a sequence");

  problem = decode_problem(1, 8, 8, 64);
  problem.q.dtype = problem.k.dtype = problem.v.dtype = problem.out.dtype = DType::kFloat32;
  EXPECT_EQ(refusal(problem), "dtype fp32: cuda_decode takes fp16 and bf16");

  problem = decode_problem(1, 8, 8, 64);
  problem.bias = TensorSpec::contiguous(DType::kFloat32, {1, 1, 1, 64});
  EXPECT_EQ(refusal(problem), "cuda_decode takes no bias");

  problem = decode_problem(1, 8, 8, 64);
  problem.dropout_p = 0.5f;
  EXPECT_EQ(refusal(problem), "cuda_decode takes no dropout");

  EXPECT_EQ(refusal(decode_problem(1, 1, 1, (std::int64_t{1} << 29) + 1)),
            "seqlen_k 536870913: cuda_decode takes at most 536870912");

  problem = decode_problem(4097, 8, 8, 64);
  EXPECT_EQ(refusal(problem), "");
  problem.batch_invariant = true;
  EXPECT_EQ(refusal(problem), "batch 4097 with batch_invariant: cuda_decode takes at most 4096");

  problem = decode_problem(1, 8, 8, 64);
  problem.q = problem.out = TensorSpec::contiguous(DType::kFloat16, {4, 8, 128});
  problem.cu_seqlens_q = TensorSpec::contiguous(DType::kInt32, {2});
  EXPECT_EQ(refusal(problem), "");
  problem.batch_invariant = true;
  EXPECT_EQ(refusal(problem),
            "packed q with batch_invariant: the longest query of the batch would decide whether "
            "cuda_decode takes it");

  EXPECT_EQ(refusal(decode_problem(65536, 8, 8, 64)),
            "batch 65536, nheads_k 8, seqlen_q 1: cuda_decode takes a batch, and nheads_k times "
            "seqlen_q, of at most 65535");

  problem = decode_problem(1, 8, 8, 64);
  problem.q = problem.out = TensorSpec::contiguous(DType::kFloat16, {1 << 28, 8, 128});
  problem.cu_seqlens_q = TensorSpec::contiguous(DType::kInt32, {65});
  problem.k = problem.v = TensorSpec::contiguous(DType::kFloat16, {std::int64_t{1} << 31, 8, 128});
  problem.cu_seqlens_k = TensorSpec::contiguous(DType::kInt32, {65});
  problem.max_seqlen_q = 1;
  problem.max_seqlen_k = 64;
  EXPECT_EQ(refusal(problem), "total_k 2147483648: cuda_decode takes at most 1073741824");
  problem.q = problem.out = TensorSpec::contiguous(DType::kFloat16, {1 << 28, 64, 128});
  EXPECT_EQ(refusal(problem),
            "total_q 268435456 of 8 heads a group: cuda_decode takes at most 1073741824 rows of a "
            "KV head");
}

TEST(CudaDecodePlan, ThePlannerTakesItForDecodeAndSaysWhatCausalMeans) {
  AttentionProblem problem = decode_problem(1, 16, 16, 8192);
  problem.causal = true;
  const Result<Explanation> explanation = explain(problem, h200());
  ASSERT_TRUE(explanation);
  EXPECT_EQ(explanation->kernel, "cuda_decode");
  EXPECT_EQ(explanation->notes.back(),
            "causal with one query token: it sees every key, as without");
  EXPECT_NE(explanation->configuration.find("clusters of 4"), std::string::npos)
      << explanation->configuration;
}

TEST(Divisor, DividesAsTheProcessorDoes) {
  for (std::uint32_t divisor = 1; divisor < 300; ++divisor) {
    const Divisor by(divisor);
    for (const std::int64_t number :
         {0, 1, 2, 7, 255, 256, 1000, 65535, 1 << 20, 2147483646, 2147483647}) {
      const auto value = static_cast<std::int32_t>(number);
      EXPECT_EQ(by.quotient(value), value / static_cast<std::int32_t>(divisor));
      EXPECT_EQ(by.remainder(value), value % static_cast<std::int32_t>(divisor));
    }
  }
  EXPECT_EQ(Divisor(2147483647).quotient(2147483647), 1);
  EXPECT_EQ(Divisor(2147483647).quotient(2147483646), 0);
  EXPECT_EQ(Divisor(1u << 30).quotient(2147483647), 1);
}

}  // namespace
}  // namespace foveal::cuda
