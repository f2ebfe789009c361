#include "support/workbench.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace foveal::test {
namespace {

// Quiet NaNs with payloads that no operation of a CPU or GPU makes from others.
constexpr std::uint16_t kUnwrittenHalf = 0x7e5bu;
constexpr std::uint16_t kUnwrittenBFloat16 = 0x7fdbu;
constexpr std::uint32_t kUnwrittenFloat = 0x7fdb5badu;

void store_unwritten(DType dtype, void* data, std::int64_t offset) {
  switch (dtype) {
    case DType::kFloat16: return store_as(data, offset, kUnwrittenHalf);
    case DType::kBFloat16: return store_as(data, offset, kUnwrittenBFloat16);
    default: return store_as(data, offset, kUnwrittenFloat);
  }
}

bool is_unwritten(DType dtype, const void* data, std::int64_t offset) {
  switch (dtype) {
    case DType::kFloat16: return load_as<std::uint16_t>(data, offset) == kUnwrittenHalf;
    case DType::kBFloat16: return load_as<std::uint16_t>(data, offset) == kUnwrittenBFloat16;
    default: return load_as<std::uint32_t>(data, offset) == kUnwrittenFloat;
  }
}

const OperandInfo* find_info(std::string_view name) {
  for (const OperandInfo& info : operands()) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

std::string place(const Operand& operand, const Index& index) {
  std::string text = std::string(operand.info->name) + '[';
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(operand.spec.rank); ++axis) {
    text += (axis > 0 ? ", " : "") + std::to_string(index[axis]);
  }
  return text + ']';
}

/// Every element written, every byte between the elements as it was.
::testing::AssertionResult check_output(const Operand& operand) {
  const std::int64_t width = dtype_bytes(operand.spec.dtype);
  std::vector<bool> covered(operand.memory.size() / static_cast<std::size_t>(width), false);
  std::string unwritten;
  for_each_index(operand.spec, [&](const Index& index) {
    const std::int64_t offset = offset_of(operand.spec, index);
    covered[static_cast<std::size_t>(operand.origin + offset)] = true;
    if (unwritten.empty() && is_unwritten(operand.spec.dtype, operand.data(), offset)) {
      unwritten = place(operand, index);
    }
  });
  if (!unwritten.empty()) return ::testing::AssertionFailure() << unwritten << " was not written";
  for (std::size_t i = 0; i < covered.size(); ++i) {
    const std::size_t byte = i * static_cast<std::size_t>(width);
    if (!covered[i] && std::memcmp(operand.memory.data() + byte, operand.frozen.data() + byte,
                                   static_cast<std::size_t>(width)) != 0) {
      return ::testing::AssertionFailure()
             << operand.info->name << ": memory between its elements was written, "
             << static_cast<std::int64_t>(i) - operand.origin << " elements from the first";
    }
  }
  return ::testing::AssertionSuccess();
}

/// Nothing changed but the elements in `allowed`.
::testing::AssertionResult check_input(const Operand& operand,
                                       const std::vector<std::int64_t>& allowed) {
  std::vector<std::byte> expected = operand.frozen;
  const auto width = static_cast<std::size_t>(dtype_bytes(operand.spec.dtype));
  for (const std::int64_t offset : allowed) {
    const std::size_t byte = static_cast<std::size_t>(operand.origin + offset) * width;
    std::memcpy(expected.data() + byte, operand.memory.data() + byte, width);
  }
  if (expected.empty() ||
      std::memcmp(expected.data(), operand.memory.data(), expected.size()) == 0) {
    return ::testing::AssertionSuccess();
  }
  std::size_t first = 0;
  while (expected[first] == operand.memory.data()[first]) ++first;
  return ::testing::AssertionFailure()
         << operand.info->name << " is an input and was changed, "
         << static_cast<std::int64_t>(first / width) - operand.origin << " elements from the first";
}

}  // namespace

double half_ulp(DType dtype, double value) {
  const double magnitude = std::abs(value);
  if (!std::isfinite(magnitude)) return 0;
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude in [2^(exponent-1), 2^exponent)
  switch (dtype) {
    case DType::kFloat16: return std::ldexp(1.0, std::max(exponent, -13) - 12);
    case DType::kBFloat16: return std::ldexp(1.0, std::max(exponent, -125) - 9);
    default: return std::ldexp(1.0, std::max(exponent, -125) - 25);
  }
}

std::vector<double> Operand::values() const {
  std::vector<double> result;
  result.reserve(static_cast<std::size_t>(spec.numel()));
  for_each_index(spec, [&](const Index& index) { result.push_back(get(index)); });
  return result;
}

bool is_output_of(Pass pass, std::string_view name) {
  switch (pass) {
    case Pass::kForward:
    case Pass::kMerge: return name == "out" || name == "lse";
    case Pass::kBackward:
      return name == "dq" || name == "dk" || name == "dv" || name == "dbias" || name == "dsinks";
    case Pass::kAppend: return name == "q_rotated";
  }
  return false;
}

Operand& Workbench::add(std::string_view name, const TensorSpec& spec, std::int64_t lead) {
  const OperandInfo* info = find_info(name);
  if (info == nullptr) {
    ADD_FAILURE() << name << " is no operand";
    std::abort();
  }
  operands_.remove_if([&](const Operand& operand) { return operand.info == info; });
  const auto [low, high] = reach(spec);
  const std::int64_t elements = spec.numel() == 0 ? 0 : high - low + 1 + lead;
  const auto bytes = static_cast<std::size_t>(elements * dtype_bytes(spec.dtype));
  Operand& operand = operands_.emplace_back(Operand{.info = info,
                                                    .spec = spec,
                                                    .origin = spec.numel() == 0 ? 0 : lead - low,
                                                    .memory = GuardedBuffer(bytes),
                                                    .frozen = {}});
  if (is_output_of(problem.pass, name)) {
    for (std::int64_t i = 0; i < elements; ++i) {
      store_unwritten(spec.dtype, operand.memory.data(), i);
    }
  }
  problem.*(info->spec) = spec;
  if (info->input != nullptr) {
    tensors.*(info->input) = operand.data();
  } else {
    tensors.*(info->output) = operand.data();
  }
  return operand;
}

bool Workbench::has(std::string_view name) const {
  return std::any_of(operands_.begin(), operands_.end(),
                     [&](const Operand& operand) { return operand.info->name == name; });
}

const Operand& Workbench::at(std::string_view name) const {
  for (const Operand& operand : operands_) {
    if (operand.info->name == name) return operand;
  }
  ADD_FAILURE() << "the problem has no " << name;
  std::abort();
}

Operand& Workbench::at(std::string_view name) {
  return const_cast<Operand&>(std::as_const(*this).at(name));
}

void Workbench::fill(std::string_view name, const std::function<double(const Index&)>& value) {
  Operand& operand = at(name);
  for_each_index(operand.spec, [&](const Index& index) { operand.set(index, value(index)); });
}

void Workbench::fill(std::string_view name, double value) {
  fill(name, [value](const Index&) { return value; });
}

void Workbench::freeze() {
  for (Operand& operand : operands_) {
    operand.frozen.assign(operand.memory.data(), operand.memory.data() + operand.memory.size());
  }
}

void Workbench::restore() {
  for (Operand& operand : operands_) {
    std::copy(operand.frozen.begin(), operand.frozen.end(), operand.memory.data());
  }
}

Status Workbench::run(const RunOptions& options) {
  return run_problem(problem, tensors, options, memory());
}

std::vector<HostRange> Workbench::memory() {
  std::vector<HostRange> ranges;
  for (Operand& operand : operands_) ranges.push_back(operand.memory.with_guards());
  return ranges;
}

void Workbench::copy_memory_from(const Workbench& other) {
  for (Operand& operand : operands_) {
    const GuardedBuffer& from = other.at(operand.info->name).memory;
    std::memcpy(operand.memory.with_guards().data(), from.with_guards().data(),
                operand.memory.with_guards().size());
  }
}

::testing::AssertionResult Workbench::check_memory(const ChangedElements& appended) const {
  for (const Operand& operand : operands_) {
    if (!operand.memory.guards_intact()) {
      return ::testing::AssertionFailure()
             << operand.info->name << ": a guard byte beside it was written";
    }
    const bool output = is_output_of(problem.pass, operand.info->name);
    std::vector<std::int64_t> allowed;
    for (const auto& [name, offsets] : appended) {
      if (name == operand.info->name) allowed = offsets;
    }
    const auto result = output ? check_output(operand) : check_input(operand, allowed);
    if (!result) return result;
  }
  return ::testing::AssertionSuccess();
}

Device device_of(const RunOptions& options) {
  if (device_type_of(options.kernel) == DeviceType::kCuda) return kTestGpu;
  return Device::cpu(static_cast<std::int32_t>(options.num_threads));
}

Status run_problem(const AttentionProblem& problem, const AttentionTensors& tensors,
                   const RunOptions& options, std::span<const HostRange> memory) {
  const ForcedKernel forced(options.kernel);
  const Device device = device_of(options);
  const Result<Plan> planned = plan(problem, device);
  if (!planned) return planned.status();
  if (!forced.name().empty() && planned->kernel() != options.kernel) {
    return Status::internal("FOVEAL_FORCE_KERNEL=" + options.kernel + ", but the plan has " +
                            std::string(planned->kernel()));
  }
  if (device.type == DeviceType::kCuda) return run_on_gpu(*planned, tensors, memory);
  GuardedBuffer workspace(planned->workspace_bytes(), 0xFF);  // all ones: NaN in every dtype
  const Status status = planned->run(tensors, workspace.data(), workspace.size(),
                                     const_cast<CpuExecutor*>(options.executor));
  if (!workspace.guards_intact())
    return Status::internal("memory beside the workspace was written");
  return status;
}

bool kernel_takes(const AttentionProblem& problem, const RunOptions& options) {
  const ForcedKernel forced(options.kernel);
  const Result<Plan> planned = plan(problem, device_of(options));
  return planned.status().code() != StatusCode::kUnsupported;
}

ForcedKernel::ForcedKernel(const std::string& name) : name_(name == kAnyGpuKernel ? "" : name) {
  if (name_.empty()) {
    unsetenv("FOVEAL_FORCE_KERNEL");
  } else {
    setenv("FOVEAL_FORCE_KERNEL", name_.c_str(), /*overwrite=*/1);
  }
}

ForcedKernel::~ForcedKernel() { unsetenv("FOVEAL_FORCE_KERNEL"); }

}  // namespace foveal::test
