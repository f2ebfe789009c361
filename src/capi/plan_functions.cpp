// Plans and launches of foveal.h.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <foveal/foveal.h>
#include <foveal/attention.hpp>
#include <foveal/plan.hpp>

#include "capi/attention_struct.hpp"
#include "capi/boundary.hpp"
#include "capi/explanation_json.hpp"
#include "capi/tensor_view.hpp"

/// The handle: a plan, its device for the comparison at each run, and the references to it.
struct foveal_plan {
  explicit foveal_plan(foveal::Plan plan_in) : plan(std::move(plan_in)), kernel(plan.kernel()) {
    const foveal::DeviceInfo& info = plan.explanation().device;
    device = {.type = info.type, .index = info.index, .num_threads = info.num_threads};
  }

  const foveal::Plan plan;
  const std::string kernel;
  foveal::Device device;
  std::atomic<std::int64_t> references{1};
};

static_assert(FOVEAL_WORKSPACE_ALIGNMENT == foveal::kWorkspaceAlignment);

namespace foveal::capi {
namespace {

Status read_target(const foveal_attention& attention, const foveal_device* given, Device& target) {
  FOVEAL_RETURN_IF_ERROR(read_common_device(attention, target));
  if (given == nullptr) return Status::ok();
  foveal_device place;
  FOVEAL_RETURN_IF_ERROR(take_struct("foveal_device", given, place));
  if (place.reserved != 0) {
    return Status::unsupported(
        concat("foveal_device.reserved is ", place.reserved, ": only 0 is allowed"));
  }
  if (place.num_threads < 0) {
    return Status::invalid_argument(concat("foveal_device.num_threads is ", place.num_threads,
                                           ": at least 0, which takes the default"));
  }
  if (static_cast<int>(place.device.device_type) != 0) {
    Device named;
    FOVEAL_RETURN_IF_ERROR(read_device("foveal_device", place.device, named));
    if (named != target) {
      return Status::invalid_argument(concat("foveal_device is ", device_text(named),
                                             ": the tensors are on ", device_text(target)));
    }
  }
  if (target.type == DeviceType::kCpu) target.num_threads = place.num_threads;
  return Status::ok();
}

/// The C++ form of a launch's `stream`, which on the CPU is an executor.
struct Stream {
  CpuExecutor executor;
  void* pointer = nullptr;
};

Status read_stream(DeviceType device, void* given, Stream& stream) {
  stream.pointer = given;
  if (device != DeviceType::kCpu || given == nullptr) return Status::ok();
  foveal_cpu_executor executor;
  FOVEAL_RETURN_IF_ERROR(
      take_struct("foveal_cpu_executor", static_cast<const foveal_cpu_executor*>(given), executor));
  if (executor.parallel_for == nullptr) return null_argument("foveal_cpu_executor.parallel_for");
  stream.executor = {.parallel_for = executor.parallel_for, .context = executor.context};
  stream.pointer = &stream.executor;
  return Status::ok();
}

Status create_plan(const foveal_attention* given, const foveal_device* device,
                   foveal_plan** created) {
  foveal_attention attention;
  FOVEAL_RETURN_IF_ERROR(take_struct("foveal_attention", given, attention));
  FOVEAL_ASSIGN_OR_RETURN(problem, read_problem(attention));
  Device target;
  FOVEAL_RETURN_IF_ERROR(read_target(attention, device, target));
  FOVEAL_ASSIGN_OR_RETURN(made, plan(problem, target));
  *created = new foveal_plan(std::move(made));
  return Status::ok();
}

Status run_plan(const foveal_plan& handle, const foveal_attention* given, void* workspace,
                std::size_t workspace_bytes, void* stream_pointer) {
  foveal_attention attention;
  FOVEAL_RETURN_IF_ERROR(take_struct("foveal_attention", given, attention));
  FOVEAL_RETURN_IF_ERROR(check_same_problem(handle.plan.problem(), handle.device, attention));
  Stream stream;
  FOVEAL_RETURN_IF_ERROR(read_stream(handle.device.type, stream_pointer, stream));
  return handle.plan.run(read_tensors(attention), workspace, workspace_bytes, stream.pointer);
}

Status run_attention(const foveal_attention* given, const foveal_device* device,
                     void* stream_pointer) {
  foveal_attention attention;
  FOVEAL_RETURN_IF_ERROR(take_struct("foveal_attention", given, attention));
  FOVEAL_ASSIGN_OR_RETURN(problem, read_problem(attention));
  Device target;
  FOVEAL_RETURN_IF_ERROR(read_target(attention, device, target));
  Stream stream;
  FOVEAL_RETURN_IF_ERROR(read_stream(target.type, stream_pointer, stream));
  const AttentionTensors tensors = read_tensors(attention);
  switch (problem.pass) {
    case Pass::kForward: return forward(problem, tensors, target, stream.pointer);
    case Pass::kBackward: return backward(problem, tensors, target, stream.pointer);
    case Pass::kAppend: return append_kv(problem, tensors, target, stream.pointer);
    case Pass::kMerge: return merge(problem, tensors, target, stream.pointer);
  }
  return validate(problem);  // names the pass that there is not
}

/// What explain() says of the problem on the device of that name.
Result<Explanation> explain_on(const foveal_attention* given, const char* device_name) {
  foveal_attention attention;
  FOVEAL_RETURN_IF_ERROR(take_struct("foveal_attention", given, attention));
  if (device_name == nullptr) return null_argument("device_name");
  FOVEAL_ASSIGN_OR_RETURN(problem, read_problem(attention));
  FOVEAL_ASSIGN_OR_RETURN(device, device_from_name(device_name));
  return explain(problem, device);
}

/// For a function that gives a string: `make` returns a Result<std::string>.
template <class Make>
foveal_status string_result(const char* name, char** given, Make&& make) noexcept {
  return guarded([&]() -> Status {
    if (given == nullptr) return null_argument(name);
    *given = nullptr;
    const Result<std::string> text = std::forward<Make>(make)();
    if (!text) return text.status();
    return give_string(*text, given);
  });
}

}  // namespace
}  // namespace foveal::capi

extern "C" {

foveal_status foveal_plan_create(const foveal_attention* attention, const foveal_device* device,
                                 foveal_plan** plan) {
  return foveal::capi::guarded([&] {
    if (plan == nullptr) return foveal::capi::null_argument("plan");
    *plan = nullptr;
    return foveal::capi::create_plan(attention, device, plan);
  });
}

foveal_plan* foveal_plan_retain(foveal_plan* plan) {
  if (plan != nullptr) plan->references.fetch_add(1, std::memory_order_relaxed);
  return plan;
}

void foveal_plan_release(foveal_plan* plan) {
  if (plan != nullptr && plan->references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    delete plan;
  }
}

size_t foveal_plan_workspace_bytes(const foveal_plan* plan) {
  return plan == nullptr ? 0 : plan->plan.workspace_bytes();
}

const char* foveal_plan_kernel(const foveal_plan* plan) {
  return plan == nullptr ? "" : plan->kernel.c_str();
}

double foveal_plan_predicted_time_us(const foveal_plan* plan) {
  return plan == nullptr ? 0.0 : plan->plan.predicted_time_us();
}

foveal_status foveal_plan_run(const foveal_plan* plan, const foveal_attention* attention,
                              void* workspace, size_t workspace_bytes, void* stream) {
  return foveal::capi::guarded([&] {
    if (plan == nullptr) return foveal::capi::null_argument("plan");
    return foveal::capi::run_plan(*plan, attention, workspace, workspace_bytes, stream);
  });
}

foveal_status foveal_attention_run(const foveal_attention* attention, const foveal_device* device,
                                   void* stream) {
  return foveal::capi::guarded(
      [&] { return foveal::capi::run_attention(attention, device, stream); });
}

foveal_status foveal_plan_explain_text(const foveal_plan* plan, char** text) {
  return foveal::capi::string_result("text", text, [&]() -> foveal::Result<std::string> {
    if (plan == nullptr) return foveal::capi::null_argument("plan");
    return to_string(plan->plan.explanation());
  });
}

foveal_status foveal_plan_explain_json(const foveal_plan* plan, char** json) {
  return foveal::capi::string_result("json", json, [&]() -> foveal::Result<std::string> {
    if (plan == nullptr) return foveal::capi::null_argument("plan");
    return foveal::capi::explanation_json(plan->plan.explanation());
  });
}

foveal_status foveal_explain_text(const foveal_attention* attention, const char* device_name,
                                  char** text) {
  return foveal::capi::string_result("text", text, [&]() -> foveal::Result<std::string> {
    FOVEAL_ASSIGN_OR_RETURN(explanation, foveal::capi::explain_on(attention, device_name));
    return to_string(explanation);
  });
}

foveal_status foveal_explain_json(const foveal_attention* attention, const char* device_name,
                                  char** json) {
  return foveal::capi::string_result("json", json, [&]() -> foveal::Result<std::string> {
    FOVEAL_ASSIGN_OR_RETURN(explanation, foveal::capi::explain_on(attention, device_name));
    return foveal::capi::explanation_json(explanation);
  });
}

foveal_status foveal_devices_json(char** json) {
  return foveal::capi::string_result("json", json, []() -> foveal::Result<std::string> {
    return foveal::capi::devices_json(foveal::devices());
  });
}

}  // extern "C"
