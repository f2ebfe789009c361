// The helpers of attention.hpp.
#include <cstdlib>
#include <memory>

#include <foveal/attention.hpp>

#include "core/format.hpp"
#include "core/integer.hpp"
#include "plan/cuda_runtime.hpp"

namespace foveal {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

/// The workspace comes from the stream's pool and goes back in the stream's order.
Status run_on_gpu(const Plan& planned, const AttentionTensors& tensors, const Device& device,
                  void* stream) {
  const cuda::DeviceScope scope(device.index);
  FOVEAL_RETURN_IF_ERROR(scope.status());
  const std::size_t bytes = planned.workspace_bytes();
  FOVEAL_ASSIGN_OR_RETURN(workspace, cuda::allocate(bytes, stream));
  const Status ran = planned.run(tensors, workspace, bytes, stream);
  const Status released = cuda::release(workspace, stream);
  return ran.is_ok() ? released : ran;
}

Status run_once(const AttentionProblem& problem, const AttentionTensors& tensors,
                const Device& device, void* stream) {
  FOVEAL_ASSIGN_OR_RETURN(planned, plan(problem, device));
  const std::size_t bytes = planned.workspace_bytes();
  if (bytes == 0) return planned.run(tensors, nullptr, 0, stream);
  if (device.type == DeviceType::kCuda) return run_on_gpu(planned, tensors, device, stream);
  const std::unique_ptr<void, Free> workspace(
      std::aligned_alloc(kWorkspaceAlignment, round_up(bytes, kWorkspaceAlignment)));
  if (workspace == nullptr) {
    return Status::out_of_memory(concat("out of memory: the workspace needs ", bytes, " bytes"));
  }
  return planned.run(tensors, workspace.get(), bytes, stream);
}

Status run_pass(Pass pass, AttentionProblem& problem, const AttentionTensors& tensors,
                const Device& device, void* stream) {
  problem.pass = pass;
  return run_once(problem, tensors, device, stream);
}

}  // namespace

Status forward(AttentionProblem problem, const AttentionTensors& tensors, const Device& device,
               void* stream) {
  return run_pass(Pass::kForward, problem, tensors, device, stream);
}

Status backward(AttentionProblem problem, const AttentionTensors& tensors, const Device& device,
                void* stream) {
  return run_pass(Pass::kBackward, problem, tensors, device, stream);
}

Status append_kv(AttentionProblem problem, const AttentionTensors& tensors, const Device& device,
                 void* stream) {
  return run_pass(Pass::kAppend, problem, tensors, device, stream);
}

Status merge(AttentionProblem problem, const AttentionTensors& tensors, const Device& device,
             void* stream) {
  return run_pass(Pass::kMerge, problem, tensors, device, stream);
}

}  // namespace foveal
