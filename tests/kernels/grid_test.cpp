// The generated grid: every two feature levels that go together, in every kernel of the table,
// against the fp64 oracle and the plain same-dtype baseline.
#include <set>

#include "kernels/kernel_case_test.hpp"

namespace foveal::test {
namespace {

// Where no kernel is left to test, as by FOVEAL_TEST_KERNELS, there is no test.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(KernelGrid);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SlowRandomCases);

class KernelGrid : public ::testing::TestWithParam<Case> {};

TEST_P(KernelGrid, MatchesTheOracle) { expect_case(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Forward, KernelGrid,
                         ::testing::ValuesIn(for_every_kernel(grid_cases(Pass::kForward))));
INSTANTIATE_TEST_SUITE_P(Backward, KernelGrid,
                         ::testing::ValuesIn(for_every_kernel(grid_cases(Pass::kBackward))));
INSTANTIATE_TEST_SUITE_P(Append, KernelGrid,
                         ::testing::ValuesIn(for_every_kernel(grid_cases(Pass::kAppend))));
INSTANTIATE_TEST_SUITE_P(Merge, KernelGrid,
                         ::testing::ValuesIn(for_every_kernel(grid_cases(Pass::kMerge))));

class SlowRandomCases : public ::testing::TestWithParam<Case> {};

TEST_P(SlowRandomCases, MatchTheOracle) { expect_case(GetParam()); }

std::vector<Case> random_cases(Pass pass, std::uint64_t count) {
  std::vector<Case> cases;
  for (std::uint64_t seed = 1; seed <= count; ++seed) cases.push_back(random_case(pass, seed));
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Forward, SlowRandomCases,
                         ::testing::ValuesIn(for_every_kernel(random_cases(Pass::kForward, 5000))));
INSTANTIATE_TEST_SUITE_P(Backward, SlowRandomCases,
                         ::testing::ValuesIn(for_every_kernel(random_cases(Pass::kBackward,
                                                                           3000))));
INSTANTIATE_TEST_SUITE_P(Append, SlowRandomCases,
                         ::testing::ValuesIn(for_every_kernel(random_cases(Pass::kAppend, 1000))));
INSTANTIATE_TEST_SUITE_P(Merge, SlowRandomCases,
                         ::testing::ValuesIn(for_every_kernel(random_cases(Pass::kMerge, 200))));

}  // namespace
}  // namespace foveal::test
