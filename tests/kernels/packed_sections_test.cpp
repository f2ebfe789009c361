// Packed sequences whose keys do not fit the L2 cache together: kernels that go through heads in
// sections then have several, the last of fewer heads. The grid's cases are too small for that, so
// these have room for many more keys than are used, which costs memory and no time.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/kernel_case_test.hpp"
#include "support/built_case.hpp"

namespace foveal::test {
namespace {

/// More than the keys of one section take (cuda/hopper/forward_rules.cpp), less than two do.
constexpr std::int64_t kKeyBytes = std::int64_t{40} << 20;

/// Sequences around tiles of 64, 128 and 192 rows, some without a row, among them one long one.
std::vector<SeqLens> documents(std::int64_t count) {
  constexpr std::int64_t kRows[] = {0, 1, 63, 64, 65, 450, 128, 129, 191, 0, 193, 385, 17};
  std::vector<SeqLens> lens;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t rows = kRows[i % std::ssize(kRows)];
    lens.push_back({rows, rows + 31 * (i % 3)});
  }
  lens[static_cast<std::size_t>(count / 2)] = {700, 900};
  return lens;
}

Case sections_case(std::int64_t count, std::int64_t nheads_k, std::int64_t group,
                   std::int64_t headdim) {
  Case c{.dtype = DType::kBFloat16};
  c.lens = documents(count);
  c.q_form = QForm::kPacked;
  c.k_form = KForm::kPackedUsed;
  c.nheads_k = nheads_k;
  c.group = group;
  c.headdim = headdim;
  c.slack_k = kKeyBytes / (nheads_k * 2 * headdim * dtype_bytes(c.dtype));
  return c;
}

std::vector<Case> sections_cases() {
  std::vector<Case> cases;
  for (const std::int64_t headdim : {64, 96, 128, 192, 256, 320, 512}) {
    cases.push_back(sections_case(7, 3, 1, headdim));
    cases.back().causal = true;
    // A lane looks at two sequences, and a block of 132 has tiles of both sections.
    cases.push_back(sections_case(40, 3, 4, headdim));
    cases.back().causal = true;
    cases.push_back(sections_case(11, 2, 2, headdim));
    cases.back().window_left = 100;
    cases.back().dtype = DType::kFloat16;
    cases.push_back(sections_case(33, 5, 1, headdim));
    cases.back().lens.assign(33, {129, 130});
  }
  return cases;
}

TEST(PackedSectionsList, HoldsKeysOfSeveralSections) {
  for (const Case& c : sections_cases()) {
    ASSERT_EQ(illegal_reason(c), "") << to_line(c);
    std::int64_t keys = c.slack_k;
    for (const SeqLens& one : c.lens) keys += one.k;
    const std::int64_t bytes = keys * c.nheads_k * 2 * c.headdim * dtype_bytes(c.dtype);
    EXPECT_GT(bytes, 32 << 20) << to_line(c);
  }
}

class PackedSections : public ::testing::TestWithParam<Case> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PackedSections);
TEST_P(PackedSections, MatchTheOracle) { expect_case(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Gpu, PackedSections,
                         ::testing::ValuesIn(for_every_kernel(sections_cases(),
                                                              DeviceType::kCuda)));

}  // namespace
}  // namespace foveal::test
