#include "tools/workload_run.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "tools/gpu_session.hpp"
#include "tools/gpu_tensors.hpp"
#include "tools/paired_timing.hpp"

namespace foveal::tools {
namespace {

/// Memory that calls of a memory-bound workload rotate over: several times a large L3 cache, and on
/// a GPU so many times its L2.
constexpr std::int64_t kRotatedBytes = std::int64_t{256} << 20;
constexpr std::int64_t kL2Times = 5;
constexpr std::int64_t kMaxCopies = 64;

/// Calls that a GPU's graph has at least: its own launch is then a small part of a sample.
constexpr std::int64_t kGraphCalls = 16;

class CpuWorkloadRun final : public WorkloadRun {
 public:
  CpuWorkloadRun(const Workload& workload, WorkloadInput input)
      : WorkloadRun(workload, std::move(input)) {}

  Status allocate() {
    FOVEAL_ASSIGN_OR_RETURN(workspace, AlignedBuffer::allocate(workspace_bytes(), "the workspace"));
    workspace_ = std::move(workspace);
    return Status::ok();
  }

  Status run_all() override {
    return run_both([&](const Plan& planned) { return run_plan(planned, input_.tensors); });
  }

  Status prepare_timing() override {
    while (num_copies() < wanted_copies(kRotatedBytes)) {
      FOVEAL_ASSIGN_OR_RETURN(copy, clone(input_));
      copies_.push_back(std::move(copy));
    }
    return Status::ok();
  }

  Result<double> sample_us(std::int64_t first, std::int64_t calls) override {
    const Sampler sampler = clock_sampler([&](std::int64_t n) { return call(n); });
    return sampler(first, calls);
  }

 private:
  Status call(std::int64_t n) {
    const std::int64_t turn = n % num_copies();
    const AttentionTensors& tensors =
        turn == 0 ? input_.tensors : copies_[static_cast<std::size_t>(turn - 1)].tensors;
    return run_timed([&](const Plan& planned) { return run_plan(planned, tensors); });
  }

  Status run_plan(const Plan& planned, const AttentionTensors& tensors) {
    return planned.run(tensors, workspace_.data(), workspace_.size());
  }

  [[nodiscard]] std::int64_t num_copies() const override {
    return 1 + static_cast<std::int64_t>(copies_.size());
  }

  std::vector<WorkloadInput> copies_;
  AlignedBuffer workspace_;
};

/// Samples replay a graph of calls that take their turns among the copies.
class GpuWorkloadRun final : public WorkloadRun {
 public:
  GpuWorkloadRun(const Workload& workload, WorkloadInput input)
      : WorkloadRun(workload, std::move(input)) {}

  Status open(std::int32_t index) {
    FOVEAL_ASSIGN_OR_RETURN(session, GpuSession::open(index));
    session_ = std::move(session);
    problems_.push_back(input_.forward);
    if (input_.backward) problems_.push_back(*input_.backward);
    FOVEAL_ASSIGN_OR_RETURN(workspace, session_->allocate(workspace_bytes(), "the workspace"));
    workspace_ = std::move(workspace);
    return add_copy();
  }

  Status run_all() override {
    FOVEAL_RETURN_IF_ERROR(
        run_both([&](const Plan& planned) { return run_plan(planned, copies_.front()); }));
    FOVEAL_RETURN_IF_ERROR(session_->wait());
    return copies_.front().download(problems_, input_.tensors, *session_);
  }

  Status prepare_timing() override {
    const std::int64_t wanted =
        wanted_copies(std::max(kRotatedBytes, kL2Times * session_->l2_bytes()));
    while (num_copies() < wanted) FOVEAL_RETURN_IF_ERROR(add_copy());
    graph_calls_ = num_copies() * std::max<std::int64_t>(kGraphCalls / num_copies(), 1);
    FOVEAL_ASSIGN_OR_RETURN(graph, session_->record([&] {
      for (std::int64_t n = 0; n < graph_calls_; ++n) FOVEAL_RETURN_IF_ERROR(call(n));
      return Status::ok();
    }));
    graph_ = std::move(graph);
    return Status::ok();
  }

  Result<double> sample_us(std::int64_t /*first*/, std::int64_t calls) override {
    const std::int64_t launches = (calls + graph_calls_ - 1) / graph_calls_;
    FOVEAL_ASSIGN_OR_RETURN(us, session_->time_us([&] {
      for (std::int64_t n = 0; n < launches; ++n) FOVEAL_RETURN_IF_ERROR(session_->launch(graph_));
      return Status::ok();
    }));
    return us / static_cast<double>(launches * graph_calls_);
  }

 private:
  /// With out and lse, where run_all() has computed them: a backward alone needs them.
  Status add_copy() {
    FOVEAL_ASSIGN_OR_RETURN(copy, GpuTensors::copy_of(problems_, input_.tensors, *session_));
    copies_.push_back(std::move(copy));
    return Status::ok();
  }

  Status call(std::int64_t n) {
    const GpuTensors& tensors = copies_[static_cast<std::size_t>(n % num_copies())];
    return run_timed([&](const Plan& planned) { return run_plan(planned, tensors); });
  }

  Status run_plan(const Plan& planned, const GpuTensors& tensors) {
    return planned.run(tensors.tensors(), workspace_.data(), workspace_.size(), session_->stream());
  }

  [[nodiscard]] std::int64_t num_copies() const override {
    return static_cast<std::int64_t>(copies_.size());
  }

  std::unique_ptr<GpuSession> session_;  // the last to go
  std::vector<AttentionProblem> problems_;
  std::vector<GpuTensors> copies_;
  GpuBuffer workspace_;
  GpuGraph graph_;
  std::int64_t graph_calls_ = 1;
};

}  // namespace

Result<std::unique_ptr<WorkloadRun>> WorkloadRun::prepare(const Workload& workload,
                                                          const Device& device) {
  FOVEAL_ASSIGN_OR_RETURN(input, make_workload_input(workload));
  if (device.type == DeviceType::kCuda) {
    auto run = std::make_unique<GpuWorkloadRun>(workload, std::move(input));
    FOVEAL_RETURN_IF_ERROR(run->plan_passes(device));
    FOVEAL_RETURN_IF_ERROR(run->open(device.index));
    return std::unique_ptr<WorkloadRun>(std::move(run));
  }
  auto run = std::make_unique<CpuWorkloadRun>(workload, std::move(input));
  FOVEAL_RETURN_IF_ERROR(run->plan_passes(device));
  FOVEAL_RETURN_IF_ERROR(run->allocate());
  return std::unique_ptr<WorkloadRun>(std::move(run));
}

Status WorkloadRun::plan_passes(const Device& device) {
  FOVEAL_ASSIGN_OR_RETURN(forward, plan(input_.forward, device));
  forward_ = std::move(forward);
  if (!input_.backward) return Status::ok();
  FOVEAL_ASSIGN_OR_RETURN(backward, plan(*input_.backward, device));
  backward_ = std::move(backward);
  return Status::ok();
}

bool WorkloadRun::memory_bound() const {
  const Explanation& explanation = forward_->explanation();
  return !backward_ && explanation.memory_time_us > explanation.compute_time_us;
}

std::int64_t WorkloadRun::wanted_copies(std::int64_t rotated_bytes) const {
  if (!memory_bound()) return 1;
  const std::int64_t bytes = std::max<std::int64_t>(input_.tensor_bytes(), 1);
  return std::min(kMaxCopies, (rotated_bytes + bytes - 1) / bytes);
}

std::int64_t WorkloadRun::workspace_bytes() const {
  std::size_t bytes = forward_->workspace_bytes();
  if (backward_) bytes = std::max(bytes, backward_->workspace_bytes());
  return static_cast<std::int64_t>(bytes);
}

BenchRow WorkloadRun::describe() const {
  BenchRow row;
  row.id = workload_.id;
  row.role = workload_.role;
  row.pass = workload_.pass;
  row.dtype = workload_.dtype;
  row.memory_bound = memory_bound();
  row.copies = num_copies();
  row.peak_bytes = input_.tensor_bytes() + workspace_bytes();
  if (workload_.pass != WorkloadPass::kBackward) add_plan(row, *forward_);
  if (backward_) add_plan(row, *backward_);
  return row;
}

void WorkloadRun::add_plan(BenchRow& row, const Plan& planned) const {
  const AttentionWork work = attention_work(planned.problem(), &input_.tensors);
  row.work.visible_pairs = work.visible_pairs;
  row.work.flops += work.flops;
  row.work.read_bytes += work.read_bytes;
  row.work.written_bytes += work.written_bytes;
  row.problem += (row.problem.empty() ? "" : "; ") + planned.explanation().problem;
  row.kernels.emplace_back(planned.kernel());
  row.configurations.push_back(planned.explanation().configuration);
}

}  // namespace foveal::tools
