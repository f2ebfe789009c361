// A workload's plans over its tensors, on the CPU or a GPU, and the time of a call.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <foveal/plan.hpp>
#include <foveal/status.hpp>

#include "tools/bench_report.hpp"
#include "tools/manifest.hpp"
#include "tools/workload_input.hpp"

namespace foveal::tools {

class WorkloadRun {
 public:
  /// Draws the inputs and plans; nothing has run yet.
  static Result<std::unique_ptr<WorkloadRun>> prepare(const Workload& workload,
                                                      const Device& device);
  virtual ~WorkloadRun() = default;
  WorkloadRun(const WorkloadRun&) = delete;
  WorkloadRun& operator=(const WorkloadRun&) = delete;

  /// Both passes once, their results in input(), for the check.
  virtual Status run_all() = 0;
  /// Copies for a memory-bound workload that would otherwise stay in a cache, and whatever else
  /// has to be there before the first sample.
  virtual Status prepare_timing() = 0;
  /// As a Sampler.
  virtual Result<double> sample_us(std::int64_t first, std::int64_t calls) = 0;

  [[nodiscard]] const WorkloadInput& input() const { return input_; }
  [[nodiscard]] BenchRow describe() const;

 protected:
  WorkloadRun(const Workload& workload, WorkloadInput input)
      : workload_(workload), input_(std::move(input)) {}

  [[nodiscard]] bool memory_bound() const;
  /// Sets of tensors that are `rotated_bytes` together, so that none is in a cache when its turn
  /// comes; 1 for what is not memory-bound.
  [[nodiscard]] std::int64_t wanted_copies(std::int64_t rotated_bytes) const;
  [[nodiscard]] std::int64_t workspace_bytes() const;

  /// What is timed: `run(plan)` for each pass of one call.
  template <class Run>
  Status run_timed(const Run& run) const {
    if (workload_.pass != WorkloadPass::kBackward) FOVEAL_RETURN_IF_ERROR(run(*forward_));
    return backward_ ? run(*backward_) : Status::ok();
  }
  template <class Run>
  Status run_both(const Run& run) const {
    FOVEAL_RETURN_IF_ERROR(run(*forward_));
    return backward_ ? run(*backward_) : Status::ok();
  }

  /// Copies that exist.
  virtual std::int64_t num_copies() const = 0;

  Workload workload_;
  WorkloadInput input_;

 private:
  Status plan_passes(const Device& device);
  void add_plan(BenchRow& row, const Plan& planned) const;

  std::optional<Plan> forward_;
  std::optional<Plan> backward_;
};

}  // namespace foveal::tools
