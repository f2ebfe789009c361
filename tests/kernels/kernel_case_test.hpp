// One test per case, for every kernel that this machine can run.
#pragma once

#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/case_grid.hpp"
#include "support/case_runner.hpp"
#include "support/workbench.hpp"

namespace foveal::test {

/// Every case with every kernel of its pass in the table: a new entry is tested without a line
/// here. `type`: those of one type of device.
inline std::vector<Case> for_every_kernel(const std::vector<Case>& cases,
                                          std::optional<DeviceType> type = std::nullopt) {
  std::vector<Case> all;
  for (const Case& c : cases) {
    for (const std::string& kernel :
         type ? usable_kernels_of(c.pass, *type) : usable_kernels_of(c.pass)) {
      all.push_back(c);
      all.back().kernel = kernel;
    }
  }
  return all;
}

/// The kernel computes the case, or refuses it with a reason and the planner finds another one.
inline void expect_case(const Case& c) {
  const CaseOutcome outcome = run_case(c);
  if (outcome.kind == CaseOutcome::Kind::kUnsupported) {
    EXPECT_NE(outcome.message.find(c.kernel), std::string::npos) << outcome.message;
    Case any = c;
    any.kernel = device_type_of(c.kernel) == DeviceType::kCuda ? kAnyGpuKernel : "";
    // A GPU's kernels need not take every problem; what they refuse runs on the CPU.
    if (any.kernel.empty() || run_case(any).kind != CaseOutcome::Kind::kUnsupported) {
      EXPECT_TRUE(case_passes(any));
    }
    return;
  }
  EXPECT_EQ(outcome.kind, CaseOutcome::Kind::kPassed) << outcome.message;
}

}  // namespace foveal::test
