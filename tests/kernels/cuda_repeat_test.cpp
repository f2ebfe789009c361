// Training steps of models' sizes, again and again: the same bits each time. Blocks take several
// tiles here, all multiprocessors are busy and sums leave the L2 cache, none of which happens in
// cases that the oracle can compute.
#include <algorithm>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/integer.hpp"
#include "kernels/kernel_case_test.hpp"
#include "support/gpu_operands.hpp"
#include "support/random.hpp"

namespace foveal::test {
namespace {

constexpr int kSteps = 20;

struct StepShape {
  std::int64_t nheads_q = 0;
  std::int64_t nheads_k = 0;
  std::int64_t headdim = 0;
  std::int64_t tokens = 4096;
  std::int64_t documents = 1;
  std::int64_t window_left = -1;
  bool causal = true;
  DType dtype = DType::kBFloat16;
  std::string forward = {};  ///< Kernels.
  std::string backward = {};
};

std::ostream& operator<<(std::ostream& out, const StepShape& s) {
  out << s.forward << " and " << s.backward << ", heads " << s.nheads_q << "/" << s.nheads_k
      << " of " << s.headdim << ", " << s.documents << " x " << s.tokens / s.documents << " "
      << dtype_name(s.dtype) << (s.causal ? ", causal" : "");
  return s.window_left < 0 ? out : out << ", window " << s.window_left;
}

std::vector<StepShape> shapes() {
  const StepShape wide{.nheads_q = 16, .nheads_k = 8, .headdim = 256};
  std::vector<StepShape> all = {
      {.nheads_q = 32, .nheads_k = 32, .headdim = 64},
      {.nheads_q = 32, .nheads_k = 8, .headdim = 64, .documents = 3},
      {.nheads_q = 24, .nheads_k = 24, .headdim = 96},
      {.nheads_q = 32, .nheads_k = 32, .headdim = 128},
      {.nheads_q = 32, .nheads_k = 8, .headdim = 128, .tokens = 4000},
      {.nheads_q = 32, .nheads_k = 8, .headdim = 128, .dtype = DType::kFloat16},
      {.nheads_q = 32, .nheads_k = 8, .headdim = 128, .documents = 4},
      {.nheads_q = 32, .nheads_k = 8, .headdim = 128, .causal = false},
      {.nheads_q = 32, .nheads_k = 32, .headdim = 128, .tokens = 8000, .window_left = 2000},
      {.nheads_q = 32, .nheads_k = 32, .headdim = 64, .documents = 4, .window_left = 500},
      {.nheads_q = 16, .nheads_k = 8, .headdim = 192},
      {.nheads_q = 16, .nheads_k = 8, .headdim = 320},
      {.nheads_q = 16, .nheads_k = 8, .headdim = 512},
      {.nheads_q = 16, .nheads_k = 8, .headdim = 512, .documents = 4},
      {.nheads_q = 16, .nheads_k = 8, .headdim = 512, .tokens = 6400, .documents = 32},
      wide,
  };
  all.push_back(wide);
  all.back().window_left = 1000;
  all.push_back(wide);
  all.back().documents = 4;
  all.push_back(wide);
  all.back().dtype = DType::kFloat16;
  all.back().tokens = 8000;
  return all;
}

TensorSpec spec_of(const StepShape& shape, std::string_view name) {
  if (name == "lse") {
    return TensorSpec::contiguous(DType::kFloat32, {shape.nheads_q, shape.tokens});
  }
  if (name.starts_with("cu_seqlens")) {
    return TensorSpec::contiguous(DType::kInt32, {shape.documents + 1});
  }
  const bool of_keys = name == "k" || name == "v" || name == "dk" || name == "dv";
  return TensorSpec::contiguous(
      shape.dtype, {shape.tokens, of_keys ? shape.nheads_k : shape.nheads_q, shape.headdim});
}

constexpr const char* kInputs[] = {"q", "k", "v", "dout"};
constexpr const char* kLengths[] = {"cu_seqlens_q", "cu_seqlens_k"};
constexpr const char* kResults[] = {"out", "lse", "dq", "dk", "dv"};

bool is_of_backward_alone(std::string_view name) { return name.starts_with('d'); }

AttentionProblem problem_of(const StepShape& shape, Pass pass) {
  AttentionProblem problem;
  AttentionTensors none;
  problem.pass = pass;
  problem.causal = shape.causal;
  problem.window_size_left = shape.window_left;
  problem.deterministic = pass == Pass::kBackward;
  problem.max_seqlen_q = problem.max_seqlen_k = ceil_div(shape.tokens, shape.documents);
  const auto add = [&](const auto& names) {
    for (const char* name : names) {
      if (pass == Pass::kForward && is_of_backward_alone(name)) continue;
      bind_operand(problem, none, name, spec_of(shape, name), nullptr);
    }
  };
  add(kInputs);
  add(kLengths);
  add(kResults);
  return problem;
}

/// A training step on memory of the GPU: several of them on a stream, each with results of its own
/// and all on one workspace, as a framework would launch them.
class TrainingSteps {
 public:
  explicit TrainingSteps(const StepShape& shape) : shape_(shape) {
    std::uint64_t seed = 1;
    for (const char* name : kInputs) {
      const auto& memory = inputs_.emplace_back(operand_memory(spec_of(shape, name), 0, stream_));
      status_ = memory->status() ? fill(*memory, seed++) : memory->status();
      if (!status_) return;
      for (Step& step : steps_) bind_in(step, name, *memory);
    }
    status_ = add_documents();
    if (!status_) return;
    for (Step& step : steps_) {
      for (const char* name : kResults) {
        const auto& memory =
            step.results.emplace_back(operand_memory(spec_of(shape, name), 0xFF, stream_));
        status_ = memory->status();
        if (!status_) return;
        bind_in(step, name, *memory);
      }
    }
  }

  /// Unsupported where a kernel does not take the shape.
  Status run() {
    FOVEAL_RETURN_IF_ERROR(status_);
    const Result<Plan> forward = plan_with(shape_.forward, forward_);
    FOVEAL_RETURN_IF_ERROR(forward.status());
    const Result<Plan> backward = plan_with(shape_.backward, backward_);
    FOVEAL_RETURN_IF_ERROR(backward.status());
    const DeviceWorkspace workspace(
        std::max(forward->workspace_bytes(), backward->workspace_bytes()), stream_);
    FOVEAL_RETURN_IF_ERROR(workspace.status());
    for (const Step& step : steps_) {
      for (const auto& [plan, tensors] :
           {std::pair{&*forward, &step.forward}, std::pair{&*backward, &step.backward}}) {
        FOVEAL_RETURN_IF_ERROR(
            plan->run(*tensors, workspace.data(), workspace.size(), stream_.handle()));
      }
    }
    return stream_.wait();
  }

  /// Fails for each result that has other bits than in the first step.
  void expect_equal_bits() {
    const std::size_t num_results = std::size(kResults);
    for (std::size_t i = 0; i < num_results; ++i) {
      const std::vector<std::byte> first = read(*steps_[0].results[i]);
      for (int step = 1; step < kSteps; ++step) {
        const std::vector<std::byte> again = read(*steps_[step].results[i]);
        if (std::memcmp(first.data(), again.data(), first.size()) == 0) continue;
        std::size_t count = 0;
        std::size_t where = 0;
        for (std::size_t byte = first.size(); byte-- > 0;) {
          if (first[byte] == again[byte]) continue;
          ++count;
          where = byte;
        }
        ADD_FAILURE() << kResults[i] << " of step " << step << ": " << count << " of "
                      << first.size() << " bytes differ, the first is " << where << "; " << shape_;
      }
    }
  }

 private:
  struct Step {
    AttentionTensors forward;
    AttentionTensors backward;
    std::vector<std::unique_ptr<DeviceBuffer>> results;
  };

  void bind_in(Step& step, std::string_view name, const DeviceBuffer& memory) {
    const TensorSpec spec = spec_of(shape_, name);
    if (!is_of_backward_alone(name)) {
      bind_operand(forward_, step.forward, name, spec, memory.data());
    }
    bind_operand(backward_, step.backward, name, spec, memory.data());
  }

  /// 16-bit floats between -2 and 2 whose exponents vary.
  Status fill(const DeviceBuffer& memory, std::uint64_t seed) {
    Random random(seed);
    std::vector<std::uint16_t> elements(memory.size() / 2);
    const bool half = shape_.dtype == DType::kFloat16;
    for (std::size_t i = 0; i < elements.size(); i += 4) {
      std::uint64_t bits = random.bits();
      for (std::size_t j = i; j < std::min(i + 4, elements.size()); ++j, bits >>= 16) {
        const auto low = static_cast<std::uint16_t>(bits);
        elements[j] =
            static_cast<std::uint16_t>(half ? (low & 0x8fff) | 0x3000 : (low & 0x81ff) | 0x3e00);
      }
    }
    return copy_bytes(memory.data(), elements.data(), memory.size(), stream_);
  }

  Status add_documents() {
    std::vector<std::int32_t> ends;
    for (std::int64_t i = 0; i <= shape_.documents; ++i) {
      ends.push_back(static_cast<std::int32_t>(shape_.tokens * i / shape_.documents));
    }
    const auto& memory =
        inputs_.emplace_back(operand_memory(spec_of(shape_, kLengths[0]), 0, stream_));
    FOVEAL_RETURN_IF_ERROR(memory->status());
    for (Step& step : steps_) {
      for (const char* name : kLengths) bind_in(step, name, *memory);
    }
    return copy_bytes(memory->data(), ends.data(), 4 * ends.size(), stream_);
  }

  static Result<Plan> plan_with(const std::string& kernel, const AttentionProblem& problem) {
    const ForcedKernel forced(kernel);
    return plan(problem, kTestGpu);
  }

  std::vector<std::byte> read(const DeviceBuffer& memory) {
    std::vector<std::byte> bytes(memory.size());
    EXPECT_TRUE(copy_bytes(bytes.data(), memory.data(), bytes.size(), stream_));
    return bytes;
  }

  StepShape shape_;
  DeviceStream stream_;
  AttentionProblem forward_ = problem_of(shape_, Pass::kForward);
  AttentionProblem backward_ = problem_of(shape_, Pass::kBackward);
  std::vector<std::unique_ptr<DeviceBuffer>> inputs_;
  std::vector<Step> steps_ = std::vector<Step>(kSteps);
  Status status_;
};

/// Every shape with all kernels that take it, a forward with a backward.
std::vector<StepShape> shapes_of_kernels() {
  std::vector<StepShape> all;
  const std::vector<std::string> forward = usable_kernels_of(Pass::kForward, DeviceType::kCuda);
  for (const std::string& backward : usable_kernels_of(Pass::kBackward, DeviceType::kCuda)) {
    for (StepShape shape : shapes()) {
      shape.backward = backward;
      for (const std::string& name : forward) {
        // Each family's own; what the planner chooses where it is not among those asked for.
        if (name.substr(0, name.rfind('_')) == backward.substr(0, backward.rfind('_'))) {
          shape.forward = name;
        }
      }
      if (shape.forward.empty()) shape.forward = kAnyGpuKernel;
      all.push_back(shape);
    }
  }
  return all;
}

TEST(CudaRepeatList, HoldsValidProblems) {
  for (const StepShape& shape : shapes()) {
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const Status valid = validate(problem_of(shape, pass));
      EXPECT_TRUE(valid) << shape << ": " << valid.message();
    }
  }
}

class CudaRepeat : public ::testing::TestWithParam<StepShape> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaRepeat);
TEST_P(CudaRepeat, TwentyStepsGiveTheSameBits) {
  TrainingSteps steps(GetParam());
  const Status ran = steps.run();
  if (ran.code() == StatusCode::kUnsupported) GTEST_SKIP() << ran.message();
  ASSERT_TRUE(ran) << ran.message();
  steps.expect_equal_bits();
}
INSTANTIATE_TEST_SUITE_P(Shapes, CudaRepeat, ::testing::ValuesIn(shapes_of_kernels()));

}  // namespace
}  // namespace foveal::test
