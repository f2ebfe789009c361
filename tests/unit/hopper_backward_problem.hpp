// Backward problems and the GPU that plans of the Hopper kernels are asked for.
#pragma once

#include <cstdint>

#include <foveal/device.hpp>
#include <foveal/problem.hpp>

namespace foveal::test {

/// A batch of two, four query heads on two KV heads.
inline AttentionProblem dense_backward(std::int64_t seqlen, std::int64_t headdim, DType dtype) {
  AttentionProblem p;
  p.pass = Pass::kBackward;
  p.q = p.out = p.dout = p.dq = TensorSpec::contiguous(dtype, {2, seqlen, 4, headdim});
  p.k = p.v = p.dk = p.dv = TensorSpec::contiguous(dtype, {2, seqlen, 2, headdim});
  p.lse = TensorSpec::contiguous(DType::kFloat32, {2, 4, seqlen});
  return p;
}

/// `batch` sequences of `total` tokens together, in bf16.
inline AttentionProblem packed_backward(std::int64_t total, std::int64_t batch,
                                        std::int64_t headdim) {
  AttentionProblem p;
  p.pass = Pass::kBackward;
  p.q = p.out = p.dout = p.dq = TensorSpec::contiguous(DType::kBFloat16, {total, 4, headdim});
  p.k = p.v = p.dk = p.dv = TensorSpec::contiguous(DType::kBFloat16, {total, 2, headdim});
  p.lse = TensorSpec::contiguous(DType::kFloat32, {4, total});
  p.cu_seqlens_q = p.cu_seqlens_k = TensorSpec::contiguous(DType::kInt32, {batch + 1});
  p.max_seqlen_q = p.max_seqlen_k = total;
  return p;
}

/// An H200's numbers under another compute capability.
inline DeviceInfo gpu_of(std::int32_t sm) {
  DeviceInfo gpu;
  gpu.type = DeviceType::kCuda;
  gpu.name = "a GPU";
  gpu.sm = sm;
  gpu.num_sms = 132;
  gpu.smem_per_block_bytes = 227 << 10;
  gpu.fp16_gflops = gpu.bf16_gflops = 787e3;
  gpu.read_gbs = 4350;
  return gpu;
}

}  // namespace foveal::test
