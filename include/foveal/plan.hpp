// Problem -> plan -> launch. A plan is an immutable value: the chosen kernel, its configuration,
// its workspace, and one sentence for every kernel that was not chosen. It may run on many threads
// at once, each with its own workspace and stream.
//
//   foveal::Result<foveal::Plan> plan = foveal::plan(problem, foveal::Device::cpu());
//   if (!plan) return fail(plan.status());
//   std::vector<std::byte> workspace(plan->workspace_bytes());
//   foveal::Status status = plan->run(tensors, workspace.data(), workspace.size());
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <foveal/export.h>
#include <foveal/device.hpp>
#include <foveal/problem.hpp>
#include <foveal/status.hpp>

namespace foveal {

/// Alignment of a workspace and of everything a kernel keeps in it.
inline constexpr std::size_t kWorkspaceAlignment = 256;

/// What the planner thought of one kernel.
struct KernelVerdict {
  enum class Outcome : std::int32_t { kChosen, kSlower, kUnsupported };
  std::string name;
  Outcome outcome = Outcome::kUnsupported;
  std::string reason;            ///< One sentence.
  double predicted_time_us = 0;  ///< 0 when unsupported.
  std::int64_t workspace_bytes = 0;
};

/// One named piece of a plan's workspace.
struct WorkspacePart {
  std::string name;
  std::int64_t bytes = 0;
};

/// A plan in words and numbers. Printed by `foveal explain`, for humans and as JSON.
struct Explanation {
  std::string problem;  ///< to_string(problem)
  DeviceInfo device;
  std::string kernel;                   ///< The chosen kernel; empty when none can.
  std::string configuration;            ///< `tile 64 x 128, 8 splits, 2 threads`
  std::vector<KernelVerdict> verdicts;  ///< Every kernel of the table, in the table's order.
  std::vector<std::string> notes;       ///< What else a user may want to know; one sentence each.
  std::vector<WorkspacePart> workspace;
  std::int64_t workspace_bytes = 0;
  AttentionWork work;
  double compute_time_us = 0;  ///< flops at the device's matrix rate
  double memory_time_us = 0;   ///< bytes at the device's read rate
  double predicted_time_us = 0;

  [[nodiscard]] double roofline_time_us() const {
    return compute_time_us > memory_time_us ? compute_time_us : memory_time_us;
  }
};

/// The plan as a text of several lines, for a terminal.
[[nodiscard]] FOVEAL_API std::string to_string(const Explanation& explanation);

/// Runs `task(task_context, i)` for every i in [0, num_tasks), in any order, on any threads, and
/// returns when all are done. Tasks may run one after the other; foveal never nests calls.
using ParallelFor = void (*)(void* context, std::int64_t num_tasks,
                             void (*task)(void* task_context, std::int64_t index),
                             void* task_context);

/// The CPU's `stream`: a caller's own thread pool in place of OpenMP.
struct CpuExecutor {
  ParallelFor parallel_for = nullptr;
  void* context = nullptr;
};

namespace planner {
struct PlanState;
}

class FOVEAL_API Plan {
 public:
  [[nodiscard]] std::string_view kernel() const;
  [[nodiscard]] std::size_t workspace_bytes() const;
  [[nodiscard]] double predicted_time_us() const;
  [[nodiscard]] const AttentionProblem& problem() const;
  [[nodiscard]] const Explanation& explanation() const;

  /// Launches. `workspace` holds workspace_bytes() at kWorkspaceAlignment and may be null when
  /// that is 0. `stream` is a cudaStream_t on CUDA (null: the default stream) and a
  /// `const CpuExecutor*` on the CPU (null: OpenMP). On CUDA the call neither allocates,
  /// synchronises nor reads device memory; on the CPU it returns when the work is done. Results lie
  /// apart from what is read, and no two of their elements share a place: not checked.
  Status run(const AttentionTensors& tensors, void* workspace, std::size_t workspace_bytes,
             void* stream = nullptr) const;

  /// Not for callers: plans come from plan().
  explicit Plan(std::shared_ptr<const planner::PlanState> state);

 private:
  std::shared_ptr<const planner::PlanState> state_;
};

/// The plan for a problem on a device of this machine. Cached: a repeated call costs under 1 us.
/// Errors: kInvalidArgument with the clause that failed; kUnsupported with every kernel's reason.
[[nodiscard]] FOVEAL_API Result<Plan> plan(const AttentionProblem& problem, const Device& device);

/// What plan() would choose and why, also for devices that are not present. Only an invalid
/// problem is an error: where no kernel can, `kernel` is empty and every verdict says why.
[[nodiscard]] FOVEAL_API Result<Explanation> explain(const AttentionProblem& problem,
                                                     const DeviceInfo& device);

/// A kernel of the table.
struct KernelInfo {
  std::string name;
  std::string summary;
  Pass pass = Pass::kForward;
  DeviceType device = DeviceType::kCpu;
};

/// The kernel table, in its order. FOVEAL_FORCE_KERNEL takes these names.
[[nodiscard]] FOVEAL_API std::vector<KernelInfo> kernels();

/// The kernels that can run on a device at all (its instruction set, its family), with the reason
/// for each that cannot.
[[nodiscard]] FOVEAL_API std::vector<KernelVerdict> usable_kernels(const DeviceInfo& device);

enum class LogLevel : std::int32_t { kInfo = 0, kWarning = 1 };
using LogCallback = void (*)(void* context, LogLevel level, const char* message);

/// Hears of choices and fall-backs; off by default, null turns it off. The callback may be called
/// from any thread that plans and must not plan itself.
FOVEAL_API void set_log_callback(LogCallback callback, void* context);

}  // namespace foveal
