// Runs a Case through its kernel and checks everything that the contract says of the result.
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "support/built_case.hpp"

namespace foveal::test {

struct CaseOutcome {
  enum class Kind { kPassed, kUnsupported, kFailed };
  Kind kind = Kind::kPassed;
  std::string message;  ///< The kernel's reason, or what is wrong with the replay line.
};

/// Accuracy against the oracle and the baseline, every output element written, guards and inputs
/// untouched, and the same bits from a second run on another workspace as far as the contract
/// promises them. A case that validate() refuses has failed: it should not have been made.
[[nodiscard]] CaseOutcome run_case(const Case& c);

/// The same for a case whose data a test has changed since it was built.
[[nodiscard]] CaseOutcome run_built(BuiltCase& built);

/// run_case() as an assertion: kUnsupported fails as well.
[[nodiscard]] ::testing::AssertionResult case_passes(const Case& c);

/// `message`, and how to run the case again.
[[nodiscard]] std::string with_replay(const Case& c, const std::string& message);

}  // namespace foveal::test
