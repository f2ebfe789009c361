// Decode of sequences whose lengths are on the device. In a cache with room for many more keys
// blocks share the work evenly: teams of blocks of every kind, parts by the dozen, and shares that
// end everywhere. In a short one clusters of every size take equal parts of each sequence. Few
// cases of the grid make the plan do either, so these are made for it, which tests ask of the plan
// for an H200.
#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/kernel_case_test.hpp"
#include "support/built_case.hpp"

namespace foveal::test {
namespace {

/// Keys beyond the longest sequence's from which the plan shares the work, whatever the heads: as
/// table entries they take no memory.
constexpr std::int64_t kSlack = 80000;
/// The same of a cache in one piece, for clusters of two: keys times headdim.
constexpr std::int64_t kDenseSlack = 1100000;

/// `lens` times one query token.
Case lengths_case(const std::vector<std::int64_t>& lens, std::int64_t nheads_k, std::int64_t group,
                  std::int64_t headdim) {
  Case c{.dtype = DType::kFloat16};
  c.lens.clear();
  for (const std::int64_t keys : lens) c.lens.push_back({1, keys});
  c.k_form = KForm::kPaged;
  c.page_size = 64;
  c.nheads_k = nheads_k;
  c.group = group;
  c.headdim = headdim;
  return c;
}

/// The heads decide how many blocks make a team.
Case shared_case(const std::vector<std::int64_t>& lens, std::int64_t nheads_k, std::int64_t group,
                 std::int64_t headdim) {
  Case c = lengths_case(lens, nheads_k, group, headdim);
  c.slack_k = kSlack;
  return c;
}

/// Lengths around blocks of keys, granules and pages, and one long sequence.
std::vector<std::int64_t> far_apart(std::int64_t count, std::int64_t longest) {
  constexpr std::int64_t kLengths[] = {0, 1, 63, 64, 65, 450, 15, 16, 17, 128, 31, 33, 0, 97};
  std::vector<std::int64_t> lens;
  for (std::int64_t i = 0; i < count; ++i) lens.push_back(kLengths[i % std::ssize(kLengths)]);
  lens[static_cast<std::size_t>(count / 2)] = longest;
  return lens;
}

/// 132 and 264 blocks: teams of one, two, three, four and six, with one KV head each and with
/// several.
std::vector<Case> team_cases() {
  std::vector<Case> cases;
  for (const std::int64_t headdim : {64, 128, 256}) {
    cases.push_back(shared_case(far_apart(7, 3000), 5, 4, headdim));
    cases.push_back(shared_case(far_apart(6, 3000), 6, 1, headdim));
    cases.push_back(shared_case(far_apart(9, 2000), 4, 2, headdim));
    cases.push_back(shared_case(far_apart(12, 1500), 3, 8, headdim));
    cases.push_back(shared_case(far_apart(5, 5000), 7, 3, headdim));
  }
  cases.push_back(shared_case(far_apart(14, 8200), 16, 1, 64));
  // A block has many short sequences.
  cases.push_back(shared_case(far_apart(300, 700), 2, 4, 128));
  cases.push_back(shared_case(far_apart(1000, 700), 1, 2, 64));
  // One head, in parts of nearly every block, and sequences without a key beside it.
  cases.push_back(shared_case({12000, 3}, 1, 4, 64));
  cases.push_back(shared_case({0, 12000, 0}, 1, 4, 128));
  return cases;
}

/// One feature at a time, with teams of six.
std::vector<Case> feature_cases() {
  std::vector<Case> cases;
  for (const std::int64_t headdim : {64, 128, 256}) {
    const Case plain = shared_case(far_apart(7, 3000), 6, 2, headdim);
    const auto add = [&](auto&& change) { change(cases.emplace_back(plain)); };
    add([](Case& c) { c.dtype = DType::kBFloat16; });
    add([](Case& c) { c.page_size = 16; });
    add([](Case& c) {
      c.k_form = KForm::kCache;
      c.slack_k = kDenseSlack / c.headdim;
      c.kv_layout = Layout::kBhsd;
    });
    add([](Case& c) { c.sinks = c.fp32_out = true; });
    add([](Case& c) { c.window_left = 333; });
    add([](Case& c) { c.out_layout = Layout::kMisaligned; });
    add([](Case& c) { c.lse = false; });
    add([](Case& c) { c.poison = Poison::kInfinity; });
    add([](Case& c) { c.lens.assign(7, {1, 0}); });
    add([](Case& c) { c.lens.assign(7, {1, 1000}); });
    add([](Case& c) {
      c.causal = true;
      for (SeqLens& one : c.lens) one = {3, std::max<std::int64_t>(one.k, 3)};
    });
    add([](Case& c) {
      c.append = 2;
      for (SeqLens& one : c.lens) one.k += 2;
    });
    // The general kernel for the same plan.
    add([](Case& c) { c.page_size = 20; });
    add([](Case& c) { c.softcap = 7; });
  }
  return cases;
}

std::vector<Case> shared_cases() {
  std::vector<Case> cases = team_cases();
  const std::vector<Case> features = feature_cases();
  cases.insert(cases.end(), features.begin(), features.end());
  return cases;
}

/// A case, and the blocks of a cluster that the plan is to take for it.
struct ClusterCase {
  Case the_case;
  int size;
};

/// Clusters of 8, 4 and 2 that are under way all at once, of 2 and of 1 that are not.
std::vector<ClusterCase> cluster_plans() {
  std::vector<ClusterCase> cases;
  for (const std::int64_t headdim : {64, 128, 256}) {
    // Blocks of headdim 256 are too large for two on a multiprocessor.
    const bool pairs = headdim < 256;
    cases.push_back({lengths_case(far_apart(5, 3000), 3, 4, headdim), pairs ? 8 : 4});
    cases.push_back({lengths_case(far_apart(11, 3000), 3, 2, headdim), pairs ? 4 : 2});
    cases.push_back({lengths_case(far_apart(7, 2000), 9, 1, headdim), 2});
    cases.push_back({lengths_case(far_apart(16, 2000), 8, 4, headdim), 2});
    cases.push_back({lengths_case(far_apart(40, 1500), 5, 8, headdim), 1});
    // A part of every block alone, or of none; too few keys for parts.
    cases.push_back({lengths_case({1024, 1024, 0, 1}, 8, 4, headdim), pairs ? 4 : 2});
    cases.push_back({lengths_case({2000, 17}, 8, 4, headdim), pairs ? 8 : 4});
    cases.push_back({lengths_case({60, 17, 0}, 8, 4, headdim), 1});
    for (const std::int64_t batch : {4, 16}) {
      const Case plain = lengths_case(far_apart(batch, 1000), 8, 2, headdim);
      const int size = batch == 4 && pairs ? 4 : 2;
      const auto add = [&](auto&& change) { change(cases.emplace_back(plain, size).the_case); };
      add([](Case& c) { c.dtype = DType::kBFloat16; });
      add([](Case& c) { c.page_size = 16; });
      add([](Case& c) {
        c.k_form = KForm::kCache;
        c.slack_k = 9;
        c.kv_layout = Layout::kBhsd;
      });
      // The general kernel for the same plan.
      add([](Case& c) { c.kv_layout = Layout::kMisaligned; });
      add([](Case& c) { c.sinks = c.fp32_out = true; });
      add([](Case& c) { c.window_left = 333; });
      add([](Case& c) { c.poison = Poison::kInfinity; });
      add([](Case& c) {
        c.append = 2;
        for (SeqLens& one : c.lens) one.k += 2;
      });
    }
  }
  return cases;
}

std::vector<Case> cluster_cases() {
  std::vector<Case> cases;
  for (ClusterCase& plan : cluster_plans()) cases.push_back(std::move(plan.the_case));
  return cases;
}

/// What the schedule is chosen by: the shapes of a case, and that its lengths are on the device.
AttentionProblem shapes_of(const Case& c) {
  std::int64_t longest = 0;
  for (const SeqLens& one : c.lens) longest = std::max(longest, one.k);
  const std::int64_t pages = (longest + c.slack_k + c.page_size - 1) / c.page_size;
  AttentionProblem problem;
  problem.q = problem.out =
      TensorSpec::contiguous(c.dtype, {c.batch(), c.lens.front().q, c.nheads_q(), c.headdim});
  problem.k = problem.v =
      TensorSpec::contiguous(c.dtype, {c.batch() * pages, c.page_size, c.nheads_k, c.headdim});
  problem.block_table = TensorSpec::contiguous(DType::kInt32, {c.batch(), pages});
  problem.seqused_k = TensorSpec::contiguous(DType::kInt32, {c.batch()});
  problem.softcap = c.softcap;
  return problem;
}

void expect_note(const Case& c, std::string_view expected) {
  const ForcedKernel forced("cuda_decode");
  ASSERT_EQ(illegal_reason(c), "") << to_line(c);
  const Result<Explanation> plan = explain(shapes_of(c), *device_from_name("sm_90"));
  ASSERT_TRUE(plan) << to_line(c) << ": " << plan.status().message();
  EXPECT_TRUE(std::any_of(
      plan->notes.begin(), plan->notes.end(),
      [&](const std::string& note) { return note.find(expected) != std::string::npos; }))
      << to_line(c) << ": " << plan->configuration << ", not " << expected;
}

TEST(DecodeSharedList, HoldsCasesThatBlocksShareOnAnH200) {
  for (const Case& c : shared_cases()) {
    expect_note(c, "blocks share the keys of all sequences evenly");
  }
}

TEST(DecodeOwnLengthsList, HoldsCasesThatClustersTakeOnAnH200) {
  for (const ClusterCase& plan : cluster_plans()) {
    expect_note(plan.the_case, plan.size == 1
                                   ? "a block takes all keys of a head"
                                   : "split " + std::to_string(plan.size) +
                                         " ways, in equal parts of each sequence's own length");
  }
}

class DecodeShared : public ::testing::TestWithParam<Case> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DecodeShared);
TEST_P(DecodeShared, MatchTheOracle) { expect_case(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Gpu, DecodeShared,
                         ::testing::ValuesIn(for_every_kernel(shared_cases(), DeviceType::kCuda)));

class DecodeOwnLengths : public ::testing::TestWithParam<Case> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DecodeOwnLengths);
TEST_P(DecodeOwnLengths, MatchTheOracle) { expect_case(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Gpu, DecodeOwnLengths,
                         ::testing::ValuesIn(for_every_kernel(cluster_cases(), DeviceType::kCuda)));

}  // namespace
}  // namespace foveal::test
