// What the host decides for cuda_append and cuda_merge: which devices, how rows are dealt to
// blocks, where elements are moved 16 bytes at a time. What the kernels compute is tests/kernels'.
#include <vector>

#include <gtest/gtest.h>

#include "cuda/portable/append/args.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cuda {
namespace {

using append::AppendArgs;

/// A batch of two: tokens of 8 KV heads of 128, of which rotary_dim turn, and queries of 16 heads.
struct AppendCase {
  AttentionProblem problem;
  AttentionTensors tensors;

  AppendCase(DType dtype, std::int64_t seqlen_new, std::int64_t rotary_dim) {
    problem.pass = Pass::kAppend;
    problem.k = problem.v = TensorSpec::contiguous(dtype, {2, 1024, 8, 128});
    problem.k_new = problem.v_new = TensorSpec::contiguous(dtype, {2, seqlen_new, 8, 128});
    problem.seqused_k = TensorSpec::contiguous(DType::kInt32, {2});
    if (rotary_dim == 0) return;
    problem.rotary_cos = problem.rotary_sin =
        TensorSpec::contiguous(DType::kFloat32, {1024, rotary_dim / 2});
    problem.q = problem.q_rotated = TensorSpec::contiguous(dtype, {2, seqlen_new, 16, 128});
  }

  [[nodiscard]] AppendArgs args() const {
    EXPECT_TRUE(validate(problem)) << validate(problem).message();
    const AttentionGeometry geometry = make_geometry(problem);
    const planner::KernelConfig config =
        kAppend.configure(problem, geometry, *device_from_name("sm_90"));
    return append::make_append_args({.problem = problem,
                                     .geometry = geometry,
                                     .config = config,
                                     .tensors = tensors,
                                     .workspace = nullptr,
                                     .stream = nullptr});
  }
};

TEST(CudaAppend, RunsOnGpusFromSm80On) {
  for (const planner::KernelEntry* entry : {&kAppend, &kMerge}) {
    EXPECT_TRUE(entry->usable(*device_from_name("sm_80")));
    EXPECT_TRUE(entry->usable(*device_from_name("sm_120")));
    EXPECT_EQ(entry->usable(*device_from_name("cpu")).code(), StatusCode::kUnsupported);
    DeviceInfo turing;
    turing.type = DeviceType::kCuda;
    turing.name = "T4";
    turing.sm = 75;
    EXPECT_EQ(entry->usable(turing).message(),
              std::string(entry->name) + " runs on GPUs from sm_80 on; T4 is sm_75");
  }
}

TEST(CudaAppend, BlocksCoverEveryRowOfEverySide) {
  for (const std::int64_t seqlen_new : {1, 3, 1000}) {
    const AppendArgs args = AppendCase(DType::kFloat16, seqlen_new, 128).args();
    for (const append::AppendSide* side : {&args.k, &args.v, &args.q}) {
      EXPECT_EQ(side->num_rows, 2 * seqlen_new);
      EXPECT_GE(side->num_blocks * side->rows_per_block, side->num_rows);
      EXPECT_LT((side->num_blocks - 1) * side->rows_per_block, side->num_rows);
    }
    EXPECT_EQ(args.num_blocks(), args.k.num_blocks + args.v.num_blocks + args.q.num_blocks);
  }
  EXPECT_EQ(AppendCase(DType::kFloat16, 4, 0).args().q.num_blocks, 0);
  EXPECT_EQ(AppendCase(DType::kFloat16, 0, 128).args().num_blocks(), 0);
}

TEST(CudaAppend, MovesVectorsWhereTheRotationFitsThem) {
  // A step of fp16 is 8 pairs, 16 elements; of fp32 4 pairs.
  for (const auto& [dtype, rotary_dim, vectorised] :
       std::vector<std::tuple<DType, std::int64_t, bool>>{{DType::kFloat16, 128, true},
                                                          {DType::kFloat16, 32, true},
                                                          {DType::kBFloat16, 24, false},
                                                          {DType::kFloat32, 24, true},
                                                          {DType::kFloat32, 20, false}}) {
    const AppendArgs args = AppendCase(dtype, 2, rotary_dim).args();
    EXPECT_EQ(args.k.steps.vectorised, vectorised) << rotary_dim;
    EXPECT_EQ(args.q.steps.vectorised, vectorised) << rotary_dim;
    EXPECT_TRUE(args.v.steps.vectorised) << "v does not turn";
    const std::int32_t width = vectorised ? static_cast<std::int32_t>(16 / dtype_bytes(dtype)) : 1;
    // Every pair and every other element once.
    EXPECT_EQ(args.k.steps.count(width) * width, rotary_dim / 2 + 128 - rotary_dim);
  }
}

TEST(CudaAppend, MovesElementsWhereRowsAreNotAligned) {
  alignas(16) static std::byte memory[64];
  AppendCase odd(DType::kFloat16, 2, 128);
  odd.tensors.k_new = memory + 2;
  EXPECT_FALSE(odd.args().k.steps.vectorised);
  EXPECT_TRUE(odd.args().q.steps.vectorised) << "q has its own pointer";
  odd.tensors.k_new = memory;
  EXPECT_TRUE(odd.args().k.steps.vectorised);
  odd.problem.k.strides[1] += 4;
  odd.problem.k.strides[0] += 4096;
  EXPECT_FALSE(odd.args().k.steps.vectorised);
  EXPECT_TRUE(odd.args().v.steps.vectorised);
}

TEST(CudaAppend, NothingGoesIntoACacheWithoutSlots) {
  AppendCase empty(DType::kFloat16, 2, 128);
  empty.problem.k = empty.problem.v = TensorSpec::contiguous(DType::kFloat16, {2, 0, 8, 128});
  const AppendArgs args = empty.args();
  EXPECT_EQ(args.k.num_blocks + args.v.num_blocks, 0);
  EXPECT_GT(args.q.num_blocks, 0);
}

}  // namespace
}  // namespace foveal::cuda
