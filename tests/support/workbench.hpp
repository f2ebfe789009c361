// A problem with memory of its own: every operand lies between guard bytes, outputs start as a NaN
// that no arithmetic makes, and after a run it can be said what was written and what was not.
//
//   Workbench bench;
//   bench.add("q", TensorSpec::contiguous(DType::kFloat16, {1, 3, 1, 64}));
//   bench.fill("q", [](const Index& index) { return 0.5; });
//   ...
//   bench.freeze();
//   ASSERT_TRUE(bench.run({.kernel = "cpu_blocked_forward"}));
//   EXPECT_TRUE(bench.check_memory());
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <foveal/plan.hpp>
#include <foveal/problem.hpp>

#include "support/device_memory.hpp"
#include "support/element.hpp"
#include "support/guarded_buffer.hpp"
#include "support/test_kernels.hpp"

namespace foveal::test {

/// One operand and its memory. Element 0 of the view lies `origin` elements into the memory.
struct Operand {
  const OperandInfo* info = nullptr;
  TensorSpec spec;
  std::int64_t origin = 0;
  GuardedBuffer memory;
  std::vector<std::byte> frozen;

  [[nodiscard]] void* data() { return memory.data() + origin * dtype_bytes(spec.dtype); }
  [[nodiscard]] const void* data() const {
    return memory.data() + origin * dtype_bytes(spec.dtype);
  }
  [[nodiscard]] double get(const Index& index) const {
    return load_element(spec.dtype, data(), offset_of(spec, index));
  }
  void set(const Index& index, double value) {
    store_element(spec.dtype, data(), offset_of(spec, index), value);
  }
  /// All elements, row-major.
  [[nodiscard]] std::vector<double> values() const;
};

struct RunOptions {
  std::string kernel;  ///< A kernel's name, or one of test_kernels.hpp; decides the device too.
  std::int64_t num_threads = 1;
  const CpuExecutor* executor = nullptr;
};

/// Elements of k or v that a pass may change in place, as offsets from element 0.
using ChangedElements = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

class Workbench {
 public:
  AttentionProblem problem;
  AttentionTensors tensors;

  /// Makes operand `name` and enters it into problem and tensors. Outputs of the pass (set it
  /// first) start unwritten, everything else as zero bytes. `lead`: elements before element 0.
  Operand& add(std::string_view name, const TensorSpec& spec, std::int64_t lead = 0);

  [[nodiscard]] bool has(std::string_view name) const;
  [[nodiscard]] Operand& at(std::string_view name);
  [[nodiscard]] const Operand& at(std::string_view name) const;

  void fill(std::string_view name, const std::function<double(const Index&)>& value);
  void fill(std::string_view name, double value);

  /// Remembers every byte; check_memory() compares with what was remembered.
  void freeze();
  /// Every byte as it was at freeze().
  void restore();

  /// Plans with the kernel forced and runs it on a workspace full of NaN between guard bytes.
  [[nodiscard]] Status run(const RunOptions& options);

  /// After a run: guards and gaps untouched, inputs unchanged but for `appended`, every element of
  /// every output written.
  [[nodiscard]] ::testing::AssertionResult check_memory(const ChangedElements& appended = {}) const;

  [[nodiscard]] const std::list<Operand>& all() const { return operands_; }

  /// The memory of every operand, guard bytes included.
  [[nodiscard]] std::vector<HostRange> memory();
  /// Every byte as in a workbench of the same operands, guard bytes included.
  void copy_memory_from(const Workbench& other);

 private:
  std::list<Operand> operands_;  // a list: references stay good
};

/// Whether a pass writes the operand as a whole.
[[nodiscard]] bool is_output_of(Pass pass, std::string_view name);

/// Plans `problem` with the kernel forced and runs it, on copies in device memory where it is a
/// GPU's; `memory` is then copied as a whole. An error of kInternal when the kernel wrote outside
/// its workspace.
[[nodiscard]] Status run_problem(const AttentionProblem& problem, const AttentionTensors& tensors,
                                 const RunOptions& options, std::span<const HostRange> memory = {});

/// Where a run with these options takes place.
[[nodiscard]] Device device_of(const RunOptions& options);

/// Whether a kernel supports a valid problem.
[[nodiscard]] bool kernel_takes(const AttentionProblem& problem, const RunOptions& options);

/// Sets FOVEAL_FORCE_KERNEL for its lifetime to the name of a kernel; other names leave it unset.
class ForcedKernel {
 public:
  explicit ForcedKernel(const std::string& name);
  ~ForcedKernel();
  ForcedKernel(const ForcedKernel&) = delete;
  ForcedKernel& operator=(const ForcedKernel&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  std::string name_;
};

}  // namespace foveal::test
