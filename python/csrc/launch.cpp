#include "launch.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include <foveal/plan.hpp>

#include "errors.hpp"
#include "recorder.hpp"

// In the CUDA half of libtorch alone: weak, so that this file also loads beside a torch without it.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(
    std::int32_t device_index, void** stream);

namespace foveal::python {
namespace {

void torch_parallel_tasks(void* /*context*/, std::int64_t num_tasks,
                          void (*task)(void* task_context, std::int64_t index),
                          void* task_context) {
  torch::stable::parallel_for(0, num_tasks, 1, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t index = begin; index < end; ++index) task(task_context, index);
  });
}

constexpr CpuExecutor kTorchThreads{.parallel_for = torch_parallel_tasks, .context = nullptr};

void* current_cuda_stream(std::int32_t device_index) {
  if (aoti_torch_get_current_cuda_stream == nullptr) {
    raise(Status::device_error("a tensor is on CUDA, but this torch was built without it"));
  }
  void* stream = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device_index, &stream));
  return stream;
}

/// Memory of PyTorch's allocator, which on CUDA keeps it for the stream; on the CPU small ones are
/// a thread's own, since one thread runs one plan at a time.
class Workspace {
 public:
  Workspace(std::size_t bytes, const Tensor& anchor, bool on_cpu) : bytes_(bytes) {
    if (bytes == 0) return;
    if (on_cpu && bytes <= kSmallBytes) {
      alignas(kWorkspaceAlignment) static thread_local std::byte small[kSmallBytes];
      start_ = small;
      return;
    }
    memory_ = empty_operand(
        anchor, TensorSpec::contiguous(DType::kBool,
                                       {static_cast<std::int64_t>(bytes + kWorkspaceAlignment)}));
    const auto address = reinterpret_cast<std::uintptr_t>(memory_->data_ptr());
    start_ = reinterpret_cast<void*>((address + kWorkspaceAlignment - 1) &
                                     ~std::uintptr_t{kWorkspaceAlignment - 1});
  }

  [[nodiscard]] void* start() const { return start_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kSmallBytes = 65536;

  std::size_t bytes_;
  std::optional<Tensor> memory_;
  void* start_ = nullptr;
};

void run_on(const Device& device, void* stream, const AttentionProblem& problem,
            const AttentionTensors& tensors, const Tensor& anchor) {
  const Result<Plan> planned = plan(problem, device);
  if (!planned) raise(planned.status());
  const Workspace workspace(planned->workspace_bytes(), anchor, device.type == DeviceType::kCpu);
  raise_unless_ok(planned->run(tensors, workspace.start(), workspace.bytes(), stream));
}

}  // namespace

void launch(const AttentionProblem& problem, const AttentionTensors& tensors,
            const Tensor& anchor) {
  if (anchor.is_cpu()) {
    const Device device = Device::cpu(static_cast<std::int32_t>(torch::stable::get_num_threads()));
    if (recording()) return record(problem, device);
    void* threads = const_cast<CpuExecutor*>(&kTorchThreads);
    return run_on(device, threads, problem, tensors, anchor);
  }
  const std::int32_t index = anchor.get_device_index();
  const Device device = Device::cuda(index);
  if (recording()) return record(problem, device);
  const torch::stable::accelerator::DeviceGuard guard(index);
  run_on(device, current_cuda_stream(index), problem, tensors, anchor);
}

}  // namespace foveal::python
