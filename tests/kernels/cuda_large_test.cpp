// Tensors of more than 2^31 elements, which only a GPU's memory holds often enough to matter: the
// operands are made on the GPU, and only the rows that tell are looked at.
#include <map>

#include "kernels/kernel_case_test.hpp"
#include "support/gpu_operands.hpp"

namespace foveal::test {
namespace {

constexpr std::int64_t kDim = 128;
/// kRows * kDim is 2^31 and a bit.
constexpr std::int64_t kRows = (std::int64_t{1} << 24) + 37;
/// What the widest of the problems takes, and something for workspaces.
constexpr std::size_t kNeededBytes = std::size_t{22} << 30;

/// A problem whose operands exist on the GPU alone.
class LargeProblem {
 public:
  AttentionProblem problem;

  /// Makes an operand with every byte `fill`.
  void add(const char* name, const TensorSpec& spec, std::uint8_t fill) {
    auto& buffer = buffers_[name] = operand_memory(spec, fill, stream_);
    ASSERT_TRUE(buffer->status()) << buffer->status().message();
    bind_operand(problem, tensors_, name, spec, buffer->data());
  }

  /// Row `row` of an fp16 operand; every element, or one.
  void set_row(const char* name, std::int64_t row, double value, std::int64_t only = -1) {
    std::vector<std::uint16_t> elements(kDim, 0);
    for (std::int64_t d = 0; d < kDim; ++d) {
      if (only < 0 || d == only) store_element(DType::kFloat16, elements.data(), d, value);
    }
    ASSERT_TRUE(
        copy_bytes(buffers_[name]->data() + row * kDim * 2, elements.data(), kDim * 2, stream_));
  }

  void set_integer(const char* name, std::int32_t value) {
    ASSERT_TRUE(copy_bytes(buffers_[name]->data(), &value, sizeof value, stream_));
  }

  void expect_row(const char* name, std::int64_t row, double value, std::int64_t only = -1) {
    std::vector<std::uint16_t> elements(kDim);
    ASSERT_TRUE(
        copy_bytes(elements.data(), buffers_[name]->data() + row * kDim * 2, kDim * 2, stream_));
    for (std::int64_t d = 0; d < kDim; ++d) {
      EXPECT_EQ(load_element(DType::kFloat16, elements.data(), d),
                only < 0 || d == only ? value : 0)
          << name << ", row " << row << ", column " << d;
    }
  }

  /// Runs it; false where the kernel does not take it.
  bool run(const std::string& kernel) {
    const ForcedKernel forced(kernel);
    const Result<Plan> planned = plan(problem, kTestGpu);
    if (planned.status().code() == StatusCode::kUnsupported) return false;
    EXPECT_TRUE(planned) << planned.status().message();
    if (!planned) return false;
    const DeviceWorkspace workspace(planned->workspace_bytes(), stream_);
    EXPECT_TRUE(workspace.status()) << workspace.status().message();
    const Status ran = planned->run(tensors_, workspace.data(), workspace.size(), stream_.handle());
    EXPECT_TRUE(ran) << ran.message();
    const Status finished = stream_.wait();
    EXPECT_TRUE(finished) << finished.message();
    return true;
  }

 private:
  DeviceStream stream_;
  std::map<std::string, std::unique_ptr<DeviceBuffer>> buffers_;
  AttentionTensors tensors_;
};

TensorSpec rows_spec(std::int64_t rows) {
  return TensorSpec::contiguous(DType::kFloat16, {1, rows, 1, kDim});
}
TensorSpec lse_spec(std::int64_t rows) {
  return TensorSpec::contiguous(DType::kFloat32, {1, 1, rows});
}

/// One query that sees only the last of 2^24 keys, all others having a weight of e^-90.
bool attend_to_last_key(const std::string& kernel) {
  LargeProblem large;
  large.add("q", rows_spec(1), 0);
  large.set_row("q", 0, 8);
  for (const char* name : {"k", "v"}) large.add(name, rows_spec(kRows), 0);
  large.set_row("k", kRows - 1, 1);
  large.set_row("v", kRows - 1, 3);
  large.add("out", rows_spec(1), 0xFF);
  if (!large.run(kernel)) return false;
  large.expect_row("out", 0, 3);
  return true;
}

/// 2^24 queries on one key.
bool attend_from_many_rows(const std::string& kernel) {
  LargeProblem large;
  large.add("q", rows_spec(kRows), 0);
  for (const char* name : {"k", "v"}) large.add(name, rows_spec(1), 0);
  large.set_row("v", 0, 3);
  large.add("out", rows_spec(kRows), 0xFF);
  large.add("lse", lse_spec(kRows), 0xFF);
  if (!large.run(kernel)) return false;
  for (const std::int64_t row : {std::int64_t{0}, kRows / 2, kRows - 1}) {
    large.expect_row("out", row, 3);
  }
  return true;
}

/// The gradient of one value is the sum of two rows' dout, one before and one past 2^31 elements.
bool gradients_of_many_rows(const std::string& kernel) {
  LargeProblem large;
  large.problem.pass = Pass::kBackward;
  for (const char* name : {"q", "out", "dout"}) large.add(name, rows_spec(kRows), 0);
  for (const char* name : {"k", "v"}) large.add(name, rows_spec(1), 0);
  large.add("lse", lse_spec(kRows), 0);
  large.set_row("dout", 65536, 5, 3);
  large.set_row("dout", kRows - 1, 2, 3);
  large.add("dq", rows_spec(kRows), 0xFF);
  for (const char* name : {"dk", "dv"}) large.add(name, rows_spec(1), 0xFF);
  if (!large.run(kernel)) return false;
  large.expect_row("dv", 0, 7, 3);
  large.expect_row("dk", 0, 0);
  for (const std::int64_t row : {std::int64_t{0}, kRows / 2, kRows - 1}) {
    large.expect_row("dq", row, 0);
  }
  return true;
}

bool append_at_the_end(const std::string& kernel) {
  LargeProblem large;
  large.problem.pass = Pass::kAppend;
  for (const char* name : {"k", "v"}) large.add(name, rows_spec(kRows), 0);
  for (const char* name : {"k_new", "v_new"}) {
    large.add(name, rows_spec(2), 0);
    large.set_row(name, 0, 3);
    large.set_row(name, 1, 4);
  }
  large.add("seqused_k", TensorSpec::contiguous(DType::kInt32, {1}), 0);
  large.set_integer("seqused_k", static_cast<std::int32_t>(kRows - 2));
  if (!large.run(kernel)) return false;
  for (const char* name : {"k", "v"}) {
    large.expect_row(name, kRows - 3, 0);
    large.expect_row(name, kRows - 2, 3);
    large.expect_row(name, kRows - 1, 4);
  }
  return true;
}

/// Both parts weigh the same.
bool merge_many_rows(const std::string& kernel) {
  LargeProblem large;
  large.problem.pass = Pass::kMerge;
  for (const char* name : {"out_a", "out_b"}) large.add(name, rows_spec(kRows), 0);
  for (const char* name : {"lse_a", "lse_b"}) large.add(name, lse_spec(kRows), 0);
  large.set_row("out_a", kRows - 1, 2);
  large.set_row("out_b", kRows - 1, 4);
  large.add("out", rows_spec(kRows), 0xFF);
  if (!large.run(kernel)) return false;
  large.expect_row("out", kRows / 2, 0);
  large.expect_row("out", kRows - 1, 3);
  return true;
}

// Where no kernel is left to test, as by FOVEAL_TEST_KERNELS, there is no test.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SlowCudaLarge);

class SlowCudaLarge : public ::testing::TestWithParam<KernelInfo> {};

TEST_P(SlowCudaLarge, OffsetsHave64Bits) {
  const std::string& kernel = GetParam().name;
  if (const std::string reason = cuda_refusal(kernel); !reason.empty()) GTEST_SKIP() << reason;
  if (free_gpu_bytes() < kNeededBytes) GTEST_SKIP() << "the GPU has too little free memory";
  bool taken = false;
  switch (GetParam().pass) {
    case Pass::kForward: {
      const bool keys = attend_to_last_key(kernel);
      const bool rows = attend_from_many_rows(kernel);
      taken = keys || rows;
      break;
    }
    case Pass::kBackward: taken = gradients_of_many_rows(kernel); break;
    case Pass::kAppend: taken = append_at_the_end(kernel); break;
    case Pass::kMerge: taken = merge_many_rows(kernel); break;
  }
  if (!taken) GTEST_SKIP() << "the kernel takes no tensors of this size";
}

INSTANTIATE_TEST_SUITE_P(Table, SlowCudaLarge, ::testing::ValuesIn(cuda_kernels()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace foveal::test
