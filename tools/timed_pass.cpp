#include "tools/timed_pass.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "tools/aligned_buffer.hpp"

namespace foveal::tools {

double TimedPass::median_us() const {
  if (times_us.empty()) return 0;
  const std::size_t half = times_us.size() / 2;
  if (times_us.size() % 2 == 1) return times_us[half];
  return (times_us[half - 1] + times_us[half]) / 2;
}

bool TimedPass::memory_bound() const {
  const Explanation& explanation = plan.explanation();
  return explanation.memory_time_us > explanation.compute_time_us;
}

Result<TimedPass> plan_pass(const AttentionProblem& problem, const AttentionTensors& tensors,
                            const Device& device) {
  FOVEAL_ASSIGN_OR_RETURN(planned, plan(problem, device));
  return TimedPass{
      .plan = std::move(planned), .work = attention_work(problem, &tensors), .times_us = {}};
}

Status run_pass(TimedPass& pass, const AttentionTensors& tensors, std::int64_t repeats,
                Progress& progress) {
  const auto bytes = static_cast<std::int64_t>(pass.plan.workspace_bytes());
  FOVEAL_ASSIGN_OR_RETURN(workspace, AlignedBuffer::allocate(bytes, "the workspace"));
  const char* name = pass_name(pass.plan.problem().pass);
  for (std::int64_t run = 0; run <= repeats; ++run) {
    progress.show(fmt::format("{}: run {} of {}", name, run + 1, repeats + 1));
    const auto begin = std::chrono::steady_clock::now();
    FOVEAL_RETURN_IF_ERROR(pass.plan.run(tensors, workspace.data(), workspace.size()));
    const auto end = std::chrono::steady_clock::now();
    if (run == 0) continue;
    pass.times_us.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
  }
  std::sort(pass.times_us.begin(), pass.times_us.end());
  return Status::ok();
}

}  // namespace foveal::tools
