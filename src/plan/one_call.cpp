// The helpers of attention.hpp.
#include <cstdlib>
#include <memory>

#include <foveal/attention.hpp>

#include "core/format.hpp"
#include "core/integer.hpp"

namespace foveal {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

Status run_once(const AttentionProblem& problem, const AttentionTensors& tensors,
                const Device& device, void* stream) {
  FOVEAL_ASSIGN_OR_RETURN(planned, plan(problem, device));
  const std::size_t bytes = planned.workspace_bytes();
  if (bytes == 0) return planned.run(tensors, nullptr, 0, stream);
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
