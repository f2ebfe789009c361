#include <foveal/plan.hpp>

#include <cstdint>
#include <new>

#include "core/format.hpp"
#include "core/log.hpp"
#include "plan/cuda_runtime.hpp"
#include "plan/device_values.hpp"
#include "plan/kernel_table.hpp"
#include "plan/plan_cache.hpp"
#include "plan/planner.hpp"
#include "problem/validate.hpp"

namespace foveal {
namespace {

using planner::PlanState;
using planner::PlanStep;

/// Every kernel's reason in one sentence, those of the problem's own pass first.
Status no_kernel(const PlanState& state) {
  std::string reasons;
  for (const KernelVerdict& verdict : state.explanation.verdicts) {
    const planner::KernelEntry* entry = planner::find_kernel(verdict.name);
    if (entry == nullptr || entry->pass != state.problem.pass) continue;
    reasons += concat(reasons.empty() ? "" : "; ", verdict.name, ": ", verdict.reason);
  }
  return Status::unsupported(concat("no kernel can run ", to_string(state.problem), " on ",
                                    state.device.name, ": ",
                                    reasons.empty() ? "none of this pass exists" : reasons));
}

void log_choice(const PlanState& state) {
  if (!log_enabled()) return;
  const Explanation& explanation = state.explanation;
  log_message(LogLevel::kInfo, concat("planned ", explanation.problem, ": ", explanation.kernel,
                                      " (", explanation.configuration, ")"));
  for (const std::string& note : explanation.notes) log_message(LogLevel::kInfo, note);
}

Status check_workspace(const PlanState& state, const void* workspace, std::size_t bytes) {
  if (state.workspace_bytes == 0) return Status::ok();
  if (workspace == nullptr || bytes < static_cast<std::size_t>(state.workspace_bytes)) {
    return Status::out_of_memory(concat("workspace has ", workspace == nullptr ? 0 : bytes,
                                        " bytes: the plan needs ", state.workspace_bytes));
  }
  if (reinterpret_cast<std::uintptr_t>(workspace) % kWorkspaceAlignment != 0) {
    return Status::invalid_argument(
        concat("workspace is not aligned to ", kWorkspaceAlignment, " bytes"));
  }
  return Status::ok();
}

/// The tensors of a step: the append leaves the rotated q in the workspace, the forward reads it.
AttentionTensors step_tensors(const PlanState& state, const PlanStep& step,
                              const AttentionTensors& tensors, std::byte* workspace) {
  AttentionTensors own = tensors;
  if (state.q_rotated_offset < 0) return own;
  void* rotated = workspace + state.q_rotated_offset;
  if (step.problem.pass == Pass::kAppend) {
    own.q_rotated = rotated;
  } else {
    own.q = rotated;
  }
  return own;
}

/// Without query heads a forward has no row; its kernels count on at least one head in a group.
bool has_rows(const PlanStep& step) {
  return step.problem.pass != Pass::kForward || step.geometry.nheads_q > 0;
}

Status launch_steps(const PlanState& state, const AttentionTensors& tensors, std::byte* workspace,
                    void* stream) {
  for (const PlanStep& step : state.steps) {
    if (!has_rows(step)) continue;
    const AttentionTensors own = step_tensors(state, step, tensors, workspace);
    FOVEAL_RETURN_IF_ERROR(step.entry->launch({.problem = step.problem,
                                               .geometry = step.geometry,
                                               .config = step.config,
                                               .tensors = own,
                                               .workspace = workspace + step.workspace_offset,
                                               .stream = stream}));
  }
  return Status::ok();
}

}  // namespace

Plan::Plan(std::shared_ptr<const PlanState> state) : state_(std::move(state)) {}

std::string_view Plan::kernel() const { return state_->explanation.kernel; }

std::size_t Plan::workspace_bytes() const {
  return static_cast<std::size_t>(state_->workspace_bytes);
}

double Plan::predicted_time_us() const { return state_->explanation.predicted_time_us; }

const AttentionProblem& Plan::problem() const { return state_->problem; }

const Explanation& Plan::explanation() const { return state_->explanation; }

Status Plan::run(const AttentionTensors& tensors, void* workspace, std::size_t workspace_bytes,
                 void* stream) const {
  FOVEAL_RETURN_IF_ERROR(check_workspace(*state_, workspace, workspace_bytes));
  auto* bytes = static_cast<std::byte*>(workspace);
  if (state_->device.type == DeviceType::kCpu) {
    FOVEAL_RETURN_IF_ERROR(validate(state_->problem, tensors));
    return launch_steps(*state_, tensors, bytes, stream);
  }
  FOVEAL_RETURN_IF_ERROR(checks::check_pointers(state_->problem, tensors));
  FOVEAL_RETURN_IF_ERROR(checks::check_element_alignment(state_->problem, tensors));
  const cuda::DeviceScope scope(state_->device.index);
  FOVEAL_RETURN_IF_ERROR(scope.status());
  if (planner::checks_device_values()) {
    FOVEAL_RETURN_IF_ERROR(planner::check_device_values(state_->problem, tensors, stream));
  }
  return launch_steps(*state_, tensors, bytes, stream);
}

Result<Plan> plan(const AttentionProblem& problem, const Device& device) try {
  Device resolved = device;
  FOVEAL_RETURN_IF_ERROR(planner::resolve_device(resolved));
  const planner::Overrides overrides = planner::read_overrides();
  const planner::PlanKeyView key{problem, resolved, overrides};
  if (auto cached = planner::find_plan(key)) return Plan(std::move(cached));

  FOVEAL_ASSIGN_OR_RETURN(info, device_info(resolved));
  FOVEAL_ASSIGN_OR_RETURN(state, planner::make_plan(problem, info, overrides));
  if (state.steps.empty()) return no_kernel(state);
  log_choice(state);
  auto shared = std::make_shared<const PlanState>(std::move(state));
  planner::store_plan(key, shared);
  return Plan(std::move(shared));
} catch (const std::bad_alloc&) {
  return Status::out_of_memory("out of memory while planning");
}

Result<Explanation> explain(const AttentionProblem& problem, const DeviceInfo& device) try {
  FOVEAL_ASSIGN_OR_RETURN(state, planner::make_plan(problem, device, planner::read_overrides()));
  return std::move(state.explanation);
} catch (const std::bad_alloc&) {
  return Status::out_of_memory("out of memory while planning");
}

std::vector<KernelInfo> kernels() {
  std::vector<KernelInfo> list;
  for (const planner::KernelEntry* entry : planner::kernel_table()) {
    list.push_back({entry->name, entry->summary, entry->pass, entry->device});
  }
  return list;
}

std::vector<KernelVerdict> usable_kernels(const DeviceInfo& device) {
  std::vector<KernelVerdict> list;
  for (const planner::KernelEntry* entry : planner::kernel_table()) {
    KernelVerdict verdict;
    verdict.name = entry->name;
    const Status status = entry->usable(device);
    const bool compiled = entry->launch != nullptr;
    verdict.outcome = status.is_ok() && compiled ? KernelVerdict::Outcome::kChosen
                                                 : KernelVerdict::Outcome::kUnsupported;
    verdict.reason = !status.is_ok() ? status.message()
                     : compiled ? concat(entry->summary, entry->held_back ? " (held back)" : "")
                                : "this build was compiled without its device code";
    list.push_back(std::move(verdict));
  }
  return list;
}

}  // namespace foveal
