// What every CUDA kernel tells the planner alike.
#include "cuda/device_rules.hpp"

#include <cstddef>

#include <gtest/gtest.h>

namespace foveal::cuda {
namespace {

TEST(CudaDeviceRules, NameTheKernelAndTheDevice) {
  EXPECT_TRUE(require_gpu("cuda_x", *device_from_name("sm_80"), 80));
  EXPECT_TRUE(require_gpu("cuda_x", *device_from_name("sm_120"), 80));
  const Status old = require_gpu("cuda_x", *device_from_name("sm_86"), 90);
  EXPECT_EQ(old.code(), StatusCode::kUnsupported);
  EXPECT_EQ(old.message(), "cuda_x runs on GPUs from sm_90 on; RTX 3090 (sm_86) is sm_86");
  DeviceInfo cpu;
  cpu.name = "AMD EPYC";
  const Status other = require_gpu("cuda_x", cpu, 80);
  EXPECT_EQ(other.code(), StatusCode::kUnsupported);
  EXPECT_EQ(other.message(), "cuda_x runs on GPUs; the device is AMD EPYC");
}

TEST(CudaDeviceRules, RooflineTakesTheLongerOfProductsAndTraffic) {
  DeviceInfo gpu;
  gpu.type = DeviceType::kCuda;
  gpu.fp16_gflops = 1e6;  // 1e9 flops a microsecond
  gpu.fp32_gflops = 1e5;
  gpu.read_gbs = 1000;  // 1e6 bytes a microsecond
  const double start = roofline_us({}, DType::kFloat16, gpu, {});
  EXPECT_GT(start, 0);
  const AttentionWork computing{.flops = 8e9, .read_bytes = 2e6, .written_bytes = 1e6};
  EXPECT_DOUBLE_EQ(roofline_us(computing, DType::kFloat16, gpu, {}) - start, 8);
  EXPECT_DOUBLE_EQ(roofline_us(computing, DType::kFloat16, gpu, {.compute = 0.5}) - start, 16);
  EXPECT_DOUBLE_EQ(roofline_us(computing, DType::kFloat32, gpu, {}) - start, 80);
  const AttentionWork moving{.flops = 1e9, .read_bytes = 2e6, .written_bytes = 1e6};
  EXPECT_DOUBLE_EQ(roofline_us(moving, DType::kFloat16, gpu, {}) - start, 3);
  EXPECT_DOUBLE_EQ(roofline_us(moving, DType::kFloat16, gpu, {.memory = 0.75}) - start, 4);
}

TEST(CudaDeviceRules, AlignedRowsBeginAtSixteenBytes) {
  alignas(16) std::byte memory[32];
  const auto aligned = [&](std::int64_t row_stride, std::int64_t dim_stride,
                           std::size_t offset = 0) {
    const TensorSpec spec =
        TensorSpec::strided(DType::kFloat16, {1, 3, 2, 8}, {5, row_stride, 16, dim_stride});
    return has_aligned_rows(spec, memory + offset);
  };
  EXPECT_TRUE(aligned(32, 1)) << "the stride of a dimension of 1 is not looked at";
  EXPECT_TRUE(aligned(-32, 1));
  EXPECT_TRUE(aligned(0, 1));
  EXPECT_FALSE(aligned(36, 1));
  EXPECT_FALSE(aligned(32, 2));
  EXPECT_FALSE(aligned(32, 1, 2));
}

}  // namespace
}  // namespace foveal::cuda
