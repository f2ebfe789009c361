// A result put together from parts: each part of the keys attended to alone, by the kernel under
// test, and the parts merged by the library's merge pass.
#pragma once

#include <string>

#include "support/built_case.hpp"
#include "support/comparison.hpp"
#include "support/workbench.hpp"

namespace foveal::test {

/// out and lse of a merge; fp32.
struct Merged {
  std::vector<double> out, lse;
};

/// Keys [begin, end) of the built case's dense k and v, as a problem of its own. The mask has to be
/// one that does not depend on the lengths.
inline void attend_to_part(const BuiltCase& whole, std::int64_t begin, std::int64_t end,
                           Workbench& part) {
  part.problem = whole.bench.problem;
  part.tensors = whole.bench.tensors;
  for (const std::string_view name : {"k", "v"}) {
    const Operand& operand = whole.bench.at(name);
    TensorSpec spec = operand.spec;
    spec.shape[1] = end - begin;
    part.problem.*(operand.info->spec) = spec;
    part.tensors.*(operand.info->input) = static_cast<const std::byte*>(operand.data()) +
                                          begin * spec.strides[1] * dtype_bytes(spec.dtype);
  }
  TensorSpec rows = whole.bench.at("out").spec;
  rows.dtype = DType::kFloat32;
  part.add("out", rows);
  part.add("lse", whole.bench.at("lse").spec);
  const Status status = part.run({.kernel = whole.c.kernel, .num_threads = whole.c.num_threads});
  ASSERT_TRUE(status) << status.message();
}

/// out_b and lse_b joined to out_a and lse_a, by every merge kernel; all give the same values, but
/// for the last bits of exp and log, which a GPU has of its own.
inline void merge_parts(const Workbench& a, const Workbench& b, Workbench& merged) {
  merged.problem.pass = Pass::kMerge;
  const auto copy = [&](const Workbench& from, std::string_view source, std::string_view target) {
    const Operand& operand = from.at(source);
    merged.add(target, operand.spec);
    merged.fill(target, [&](const Index& index) { return operand.get(index); });
  };
  copy(a, "out", "out_a");
  copy(a, "lse", "lse_a");
  copy(b, "out", "out_b");
  copy(b, "lse", "lse_b");
  merged.add("out", a.at("out").spec);
  merged.add("lse", a.at("lse").spec);
  std::vector<std::string> kernels = usable_kernels_of(Pass::kMerge);
  if (kernels.empty()) kernels.emplace_back();  // filtered: the planner's own
  std::vector<double> first;
  for (const std::string& kernel : kernels) {
    const Status status = merged.run({.kernel = kernel});
    ASSERT_TRUE(status) << kernel << ": " << status.message();
    const std::vector<double> values = merged.at("out").values();
    if (first.empty()) first = values;
    EXPECT_LE(largest_error(first, values), 1e-6) << kernel;
  }
}

/// The keys of the built case in `parts` equal parts, merged one after the other.
inline Merged attend_in_parts(const BuiltCase& whole, std::int64_t parts) {
  const std::int64_t keys = whole.bench.problem.k.shape[1];
  auto sum = std::make_unique<Workbench>();
  attend_to_part(whole, 0, keys / parts, *sum);
  for (std::int64_t part = 1; part < parts; ++part) {
    Workbench next;
    attend_to_part(whole, keys * part / parts, keys * (part + 1) / parts, next);
    auto merged = std::make_unique<Workbench>();
    merge_parts(*sum, next, *merged);
    sum = std::move(merged);
  }
  return {sum->at("out").values(), sum->at("lse").values()};
}

/// Splits of the keys that a plan says it makes; 1 where it says nothing.
inline std::int64_t planned_splits(const BuiltCase& built) {
  const ForcedKernel forced(built.c.kernel);
  const Result<Plan> planned =
      plan(built.bench.problem,
           device_of({.kernel = built.c.kernel, .num_threads = built.c.num_threads}));
  if (!planned) return 0;
  const std::string& text = planned->explanation().configuration;
  const std::size_t word = text.find(" splits");
  if (word == std::string::npos) return 1;
  const std::size_t begin = text.rfind(' ', word - 1);
  return std::stoll(text.substr(begin == std::string::npos ? 0 : begin + 1));
}

}  // namespace foveal::test
