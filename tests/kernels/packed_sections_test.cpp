// Sequences whose keys, or rows and sums of dq, do not fit the L2 cache together: the Hopper
// kernels go through heads in sections, and here they have several, the last of fewer heads. The
// grid's cases are too small for that, so these have room for many more rows than are used, which
// costs memory and little time.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "cuda/hopper/bwd/config.hpp"
#include "cuda/hopper/forward_rules.hpp"
#include "kernels/kernel_case_test.hpp"
#include "problem/geometry.hpp"
#include "support/built_case.hpp"

namespace foveal::test {
namespace {

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

/// Keys and values of all heads take 40 MiB.
Case forward_case(std::int64_t count, std::int64_t nheads_k, std::int64_t group,
                  std::int64_t headdim) {
  constexpr std::int64_t kKeyBytes = std::int64_t{40} << 20;
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

std::vector<Case> forward_cases() {
  std::vector<Case> cases;
  for (const std::int64_t headdim : {64, 96, 128, 192, 256, 320, 512}) {
    cases.push_back(forward_case(7, 3, 1, headdim));
    cases.back().causal = true;
    // A lane looks at two sequences.
    cases.push_back(forward_case(40, 3, 4, headdim));
    cases.back().causal = true;
    cases.push_back(forward_case(11, 2, 2, headdim));
    cases.back().window_left = 100;
    cases.back().dtype = DType::kFloat16;
    cases.push_back(forward_case(33, 5, 1, headdim));
    cases.back().lens.assign(33, {129, 130});
  }
  return cases;
}

/// Two sequences, of whose mean length the cache has room for two heads of rows and keys.
Case backward_case(std::int64_t nheads_k, std::int64_t group, std::int64_t headdim) {
  constexpr std::int64_t kRowBytes = std::int64_t{30} << 20;
  Case c{.pass = Pass::kBackward, .dtype = DType::kBFloat16};
  c.lens = {{300, 333}, {129, 200}};
  c.q_form = QForm::kPackedUsed;
  c.k_form = KForm::kPackedUsed;
  c.nheads_k = nheads_k;
  c.group = group;
  c.headdim = headdim;
  c.causal = true;
  c.slack_q = c.slack_k = kRowBytes / (headdim * 8);
  return c;
}

std::vector<Case> backward_cases() {
  std::vector<Case> cases;
  for (const std::int64_t headdim : {64, 96, 128, 192, 256}) {
    for (const bool deterministic : {false, true}) {
      cases.push_back(backward_case(5, 1, headdim));
      cases.back().deterministic = deterministic;
      cases.push_back(backward_case(5, 2, headdim));
      cases.back().deterministic = deterministic;
      // Pairs of sequences and heads beside heads of all sequences.
      cases.push_back(backward_case(5, 1, headdim));
      cases.back().deterministic = deterministic;
      cases.back().lens = {{300, 333}, {129, 333}};
      cases.back().k_form = KForm::kDense;
      cases.back().slack_k = 0;
    }
  }
  return cases;
}

/// Five sections that fall and rise in turn, first two that fall: the cache has room for two of one
/// head's rows, but not for three.
std::vector<Case> alternating_cases() {
  constexpr std::int64_t kRowBytes = std::int64_t{17} << 20;
  std::vector<Case> cases;
  for (const std::int64_t headdim : {64, 96, 128, 192, 256}) {
    for (const std::int64_t group : {1, 3}) {
      if (group == 1 && headdim <= 128) continue;  // They fall alone.
      Case c = backward_case(5, group, headdim);
      c.deterministic = true;
      c.lens = {{400, 380}};
      c.slack_q = c.slack_k = kRowBytes / (headdim * 8);
      cases.push_back(c);
      c.lens = {{333, 290}};
      c.dtype = DType::kFloat16;
      cases.push_back(c);
    }
  }
  return cases;
}

/// What sections are chosen by: the shapes of a case.
AttentionGeometry geometry_of(const Case& c) {
  std::int64_t rows_q = c.slack_q;
  std::int64_t rows_k = c.slack_k;
  std::int64_t longest_k = 0;
  for (const SeqLens& one : c.lens) {
    rows_q += one.q;
    rows_k += one.k;
    longest_k = std::max(longest_k, one.k);
  }
  AttentionProblem problem;
  problem.pass = c.pass;
  problem.causal = c.causal;
  problem.q = problem.out = TensorSpec::contiguous(c.dtype, {rows_q, c.nheads_q(), c.headdim});
  problem.cu_seqlens_q = TensorSpec::contiguous(DType::kInt32, {c.batch() + 1});
  if (c.packed_k()) {
    problem.k = problem.v = TensorSpec::contiguous(c.dtype, {rows_k, c.nheads_k, c.headdim});
    problem.cu_seqlens_k = problem.cu_seqlens_q;
  } else {
    problem.k = problem.v =
        TensorSpec::contiguous(c.dtype, {c.batch(), longest_k, c.nheads_k, c.headdim});
  }
  return make_geometry(problem);
}

TEST(PackedSectionsList, HasSeveralSectionsOfTheForward) {
  for (const Case& c : forward_cases()) {
    ASSERT_EQ(illegal_reason(c), "") << to_line(c);
    AttentionProblem problem;
    problem.k.dtype = c.dtype;
    EXPECT_LT(cuda::hopper::schedule_tiles(problem, geometry_of(c), 128).section, c.nheads_q())
        << to_line(c);
  }
}

TEST(PackedSectionsList, HasSeveralSectionsOfTheBackward) {
  bool falls = false;
  bool rises = false;
  for (const Case& c : backward_cases()) {
    ASSERT_EQ(illegal_reason(c), "") << to_line(c);
    const auto order = cuda::hopper::bwd::key_tile_order(geometry_of(c), c.deterministic);
    falls |= order.falling_section < order.falling_pairs;
    rises |= order.falling_pairs == 0 && !order.alternates && order.section < order.pairs;
  }
  EXPECT_TRUE(falls);
  EXPECT_TRUE(rises);
  for (const Case& c : alternating_cases()) {
    ASSERT_EQ(illegal_reason(c), "") << to_line(c);
    const auto order = cuda::hopper::bwd::key_tile_order(geometry_of(c), c.deterministic);
    EXPECT_TRUE(order.alternates) << to_line(c);
    EXPECT_EQ(order.pairs / order.section, 5) << to_line(c);
  }
}

/// With hopper_bwd alone: they take long, and others have no such sections.
std::vector<Case> backward_cases_of_hopper() {
  std::vector<Case> all = backward_cases();
  std::ranges::copy(alternating_cases(), std::back_inserter(all));
  std::vector<Case> cases = for_every_kernel(all, DeviceType::kCuda);
  std::erase_if(cases, [](const Case& c) { return c.kernel != cuda::hopper::bwd::kName; });
  return cases;
}

class PackedSections : public ::testing::TestWithParam<Case> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PackedSections);
TEST_P(PackedSections, MatchTheOracle) { expect_case(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Forward, PackedSections,
                         ::testing::ValuesIn(for_every_kernel(forward_cases(), DeviceType::kCuda)));
INSTANTIATE_TEST_SUITE_P(Backward, PackedSections, ::testing::ValuesIn(backward_cases_of_hopper()));

}  // namespace
}  // namespace foveal::test
