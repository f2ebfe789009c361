// The plain same-dtype baseline of a built case.
#pragma once

#include <string>
#include <vector>

#include "support/baseline.hpp"
#include "support/built_case.hpp"

namespace foveal::test {

/// The values of one operand, row-major in its own shape.
struct NamedValues {
  std::string name;
  std::vector<double> values;
};

/// What the baseline gives for every output of a forward or backward case. Rows that are not in use
/// are 0, their lse -inf. Reads the inputs as they are before the case runs.
[[nodiscard]] std::vector<NamedValues> baseline_of(const BuiltCase& built);

/// Sequence b of a case, gathered.
[[nodiscard]] BaselineInput baseline_input(const BuiltCase& built, std::int64_t b);

}  // namespace foveal::test
