// Plans a problem, runs it several times and keeps the times.
#pragma once

#include <cstdint>
#include <vector>

#include <foveal/device.hpp>
#include <foveal/plan.hpp>
#include <foveal/problem.hpp>
#include <foveal/status.hpp>

#include "tools/gpu_session.hpp"
#include "tools/progress.hpp"

namespace foveal::tools {

struct TimedPass {
  Plan plan;
  AttentionWork work;            ///< By the lengths of these tensors.
  std::vector<double> times_us;  ///< Sorted; without the first run, which warms up.

  [[nodiscard]] double median_us() const;
  /// Whether the device's memory, not its arithmetic, bounds the pass.
  [[nodiscard]] bool memory_bound() const;
};

Result<TimedPass> plan_pass(const AttentionProblem& problem, const AttentionTensors& tensors,
                            const Device& device);

/// 1 + `repeats` runs; the results are those of the last.
Status run_pass(TimedPass& pass, const AttentionTensors& tensors, std::int64_t repeats,
                Progress& progress);

/// The same on a GPU, timed by its events; `tensors` are in its memory.
Status run_pass_on_gpu(TimedPass& pass, const AttentionTensors& tensors, std::int64_t repeats,
                       GpuSession& session, Progress& progress);

}  // namespace foveal::tools
