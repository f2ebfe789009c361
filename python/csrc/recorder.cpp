#include "recorder.hpp"

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

#include <foveal/foveal.h>

#include "errors.hpp"

namespace foveal::python {
namespace {

struct Recording {
  bool active = false;
  std::string device_name;
  std::string json;  ///< The explanations so far, separated by commas.
};

thread_local Recording current;

// An operand's pointers lie in the C struct in the order of operands().
constexpr std::size_t kNumOperands = 31;
static_assert(offsetof(foveal_attention, lse_b) ==
              offsetof(foveal_attention, q) + (kNumOperands - 1) * sizeof(const DLTensor*));

DLDataType dl_dtype(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * dtype_bytes(dtype));
  if (dtype == DType::kBFloat16) return {kDLBfloat, bits, 1};
  if (dtype == DType::kInt32) return {kDLInt, bits, 1};
  if (dtype == DType::kBool) return {kDLUInt, bits, 1};
  return {kDLFloat, bits, 1};
}

/// The problem as the C interface takes it, without data.
struct CAttention {
  explicit CAttention(const AttentionProblem& problem) {
    attention.struct_size = sizeof attention;
    attention.pass = static_cast<foveal_pass>(problem.pass);
    attention.causal = problem.causal;
    attention.rotary_interleaved = problem.rotary_interleaved;
    attention.deterministic = problem.deterministic;
    attention.batch_invariant = problem.batch_invariant;
    attention.has_softmax_scale = problem.softmax_scale.has_value();
    attention.softmax_scale = problem.softmax_scale.value_or(0.0f);
    attention.softcap = problem.softcap;
    attention.dropout_p = problem.dropout_p;
    attention.has_window = 1;
    attention.window_size_left = problem.window_size_left;
    attention.window_size_right = problem.window_size_right;
    attention.max_seqlen_q = problem.max_seqlen_q;
    attention.max_seqlen_k = problem.max_seqlen_k;
    specs = problem;
    std::size_t index = 0;
    for (const OperandInfo& operand : operands()) set_operand(index++, specs.*operand.spec);
  }

  void set_operand(std::size_t index, TensorSpec& spec) {
    if (!spec.present()) return;
    DLTensor& tensor = tensors[index];
    tensor = {nullptr,           {kDLCPU, 0},         spec.rank, dl_dtype(spec.dtype),
              spec.shape.data(), spec.strides.data(), 0};
    const DLTensor* pointer = &tensor;
    auto* first = reinterpret_cast<std::byte*>(&attention) + offsetof(foveal_attention, q);
    std::memcpy(first + index * sizeof pointer, &pointer, sizeof pointer);
  }

  foveal_attention attention{};
  AttentionProblem specs;
  std::array<DLTensor, kNumOperands> tensors{};
};

std::string name_of(const Device& device) {
  if (device.type == DeviceType::kCuda) return "cuda:" + std::to_string(device.index);
  return "cpu:" + std::to_string(device.num_threads);
}

}  // namespace

bool recording() { return current.active; }

void record(const AttentionProblem& problem, const Device& device) {
  const CAttention c(problem);
  const std::string name = current.device_name.empty() ? name_of(device) : current.device_name;
  char* json = nullptr;
  const foveal_status status = foveal_explain_json(&c.attention, name.c_str(), &json);
  if (status != FOVEAL_OK) {
    raise({static_cast<StatusCode>(status), foveal_last_error()});
  }
  const std::unique_ptr<char, void (*)(char*)> owner(json, foveal_string_free);
  if (!current.json.empty()) current.json += ',';
  current.json += json;
}

}  // namespace foveal::python

void foveal_torch_record(const char* device_name) {
  foveal::python::current = {
      .active = true, .device_name = device_name == nullptr ? "" : device_name, .json = {}};
}

const char* foveal_torch_take_record() {
  auto& current = foveal::python::current;
  current.active = false;
  current.json = '[' + current.json + ']';
  return current.json.c_str();
}
