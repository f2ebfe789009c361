#include "tools/timed_pass.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
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

namespace {

/// `time_us()` runs the pass once.
Status repeat_pass(TimedPass& pass, std::int64_t repeats,
                   const std::function<Result<double>()>& time_us, Progress& progress) {
  const char* name = pass_name(pass.plan.problem().pass);
  for (std::int64_t run = 0; run <= repeats; ++run) {
    progress.show(fmt::format("{}: run {} of {}", name, run + 1, repeats + 1));
    FOVEAL_ASSIGN_OR_RETURN(us, time_us());
    if (run > 0) pass.times_us.push_back(us);
  }
  std::sort(pass.times_us.begin(), pass.times_us.end());
  return Status::ok();
}

}  // namespace

Status run_pass(TimedPass& pass, const AttentionTensors& tensors, std::int64_t repeats,
                Progress& progress) {
  const auto bytes = static_cast<std::int64_t>(pass.plan.workspace_bytes());
  FOVEAL_ASSIGN_OR_RETURN(workspace, AlignedBuffer::allocate(bytes, "the workspace"));
  const auto time_us = [&]() -> Result<double> {
    const auto begin = std::chrono::steady_clock::now();
    FOVEAL_RETURN_IF_ERROR(pass.plan.run(tensors, workspace.data(), workspace.size()));
    const auto end = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::micro>(end - begin).count();
  };
  return repeat_pass(pass, repeats, time_us, progress);
}

Status run_pass_on_gpu(TimedPass& pass, const AttentionTensors& tensors, std::int64_t repeats,
                       GpuSession& session, Progress& progress) {
  const auto bytes = static_cast<std::int64_t>(pass.plan.workspace_bytes());
  FOVEAL_ASSIGN_OR_RETURN(workspace, session.allocate(bytes, "the workspace"));
  const auto launch = [&] {
    return pass.plan.run(tensors, workspace.data(), workspace.size(), session.stream());
  };
  return repeat_pass(
      pass, repeats, [&] { return session.time_us(launch); }, progress);
}

}  // namespace foveal::tools
