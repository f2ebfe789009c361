// One-call helpers: plan (from the cache), allocate what the plan needs, run.
//
//   #include <foveal/attention.hpp>
//   foveal::AttentionProblem p;
//   p.q = p.out = foveal::TensorSpec::contiguous(foveal::DType::kFloat32, {1, 128, 8, 64});
//   p.k = p.v = foveal::TensorSpec::contiguous(foveal::DType::kFloat32, {1, 128, 2, 64});
//   p.causal = true;
//   foveal::AttentionTensors t{.q = q.data(), .k = k.data(), .v = v.data(), .out = out.data()};
//   if (foveal::Status s = foveal::forward(p, t); !s) std::puts(s.message().c_str());
#pragma once

#include <foveal/device.hpp>
#include <foveal/plan.hpp>
#include <foveal/problem.hpp>
#include <foveal/status.hpp>
#include <foveal/tensor.hpp>

namespace foveal {

/// Plans and runs `problem` (its `pass` is set by the helper's name). The workspace is allocated
/// for the call on the CPU; on CUDA it comes from the stream's memory pool, so a graph captures it.
[[nodiscard]] FOVEAL_API Status forward(AttentionProblem problem, const AttentionTensors& tensors,
                                        const Device& device = Device::cpu(),
                                        void* stream = nullptr);
[[nodiscard]] FOVEAL_API Status backward(AttentionProblem problem, const AttentionTensors& tensors,
                                         const Device& device = Device::cpu(),
                                         void* stream = nullptr);
/// New tokens into a cache, with optional rotary embedding of k_new and q.
[[nodiscard]] FOVEAL_API Status append_kv(AttentionProblem problem, const AttentionTensors& tensors,
                                          const Device& device = Device::cpu(),
                                          void* stream = nullptr);
/// Two results over disjoint keys become the result over their union. `out` may be `out_a`.
[[nodiscard]] FOVEAL_API Status merge(AttentionProblem problem, const AttentionTensors& tensors,
                                      const Device& device = Device::cpu(), void* stream = nullptr);

}  // namespace foveal
