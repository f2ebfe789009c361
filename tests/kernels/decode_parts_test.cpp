// Decoding with keys in parts: what cuda_decode's two kernels and its clusters must agree on. The
// grid's cases have few heads and short caches; these have enough of both that heads are split, by
// the planner's choice and under batch_invariant, where a sequence's bits are its own.
#include <string>
#include <vector>

#include "kernels/kernel_case_test.hpp"
#include "support/built_case.hpp"
#include "support/comparison.hpp"

namespace foveal::test {
namespace {

/// One query token or three against caches whose last block, last part and last page are not full.
Case decode_case(std::int64_t nheads_k, std::int64_t group, std::int64_t tokens,
                 std::int64_t headdim) {
  Case c{.dtype = DType::kFloat16};
  c.lens = {{tokens, 1000 + tokens}};
  c.k_form = KForm::kCache;
  c.slack_k = 40;
  c.nheads_k = nheads_k;
  c.group = group;
  c.headdim = headdim;
  c.causal = tokens > 1;
  c.kv_layout = Layout::kBhsd;
  return c;
}

/// Features that the direct kernel has, and one it lacks, at each head size.
std::vector<Case> split_cases() {
  std::vector<Case> cases;
  for (const std::int64_t headdim : {64, 128, 256}) {
    const Case plain = decode_case(16, 1, 1, headdim);
    cases.push_back(plain);
    cases.push_back(decode_case(8, 4, 2, headdim));  // 8 rows
    cases.push_back(decode_case(8, 2, 3, headdim));
    cases.push_back(plain);
    cases.back().sinks = cases.back().fp32_out = true;
    cases.push_back(plain);
    cases.back().window_left = 301;
    cases.back().dtype = DType::kBFloat16;
    cases.push_back(plain);
    cases.back().append = 3;
    cases.back().kv_layout = Layout::kBshd;
    cases.push_back(plain);
    cases.back().k_form = KForm::kDense;
    cases.back().slack_k = 0;
    cases.back().lse = false;
    cases.back().out_layout = Layout::kMisaligned;
    cases.push_back(plain);
    cases.back().k_form = KForm::kPaged;
    cases.back().page_size = 64;
    cases.back().kv_layout = Layout::kBshd;
    cases.push_back(plain);
    cases.back().kv_layout = Layout::kMisaligned;  // the other kernel, with the same plan
    cases.push_back(plain);
    cases.back().softcap = 5;
    cases.push_back(plain);
    cases.back().lens = {{1, 0}};
    cases.push_back(plain);
    cases.back().lens = {{1, 17}};
  }
  const std::size_t count = cases.size();
  for (std::size_t i = 0; i < count; ++i) {
    cases.push_back(cases[i]);
    cases.back().batch_invariant = true;
    cases.back().lens.push_back({cases[i].lens[0].q, 2100});
    if (cases[i].k_form == KForm::kDense) cases.back().lens[0].k = 2100;
  }
  return cases;
}

class DecodeParts : public ::testing::TestWithParam<Case> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DecodeParts);
TEST_P(DecodeParts, MatchTheOracle) { expect_case(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Gpu, DecodeParts,
                         ::testing::ValuesIn(for_every_kernel(split_cases(), DeviceType::kCuda)));

/// Data of a sequence by its number, wherever it lies.
double value_of(std::int64_t sequence, std::int64_t row, std::int64_t head, std::int64_t d) {
  std::uint64_t x = static_cast<std::uint64_t>(((sequence * 40009 + row) * 67 + head) * 521 + d);
  x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u;
  return static_cast<double>((x >> 40) % 2048) / 512.0 - 2.0;
}

/// Runs the sequences `numbers`, each with its own data.
void run_sequences(BuiltCase& built, const std::vector<std::int64_t>& numbers) {
  const auto fill = [&](std::int64_t salt) {
    return [&numbers, salt](std::int64_t b, std::int64_t row, std::int64_t h, std::int64_t d) {
      return value_of(numbers[static_cast<std::size_t>(b)] + salt, row, h, d);
    };
  };
  built.fill_queries("q", fill(0));
  built.fill_keys("k", fill(100));
  built.fill_keys("v", fill(200));
  built.bench.freeze();
  const Status status = built.run();
  ASSERT_TRUE(status) << status.message();
}

/// out and lse of sequence `a_b` of `a` have the bits of sequence `b_b` of `b`.
void expect_same_bits(const BuiltCase& a, std::int64_t a_b, const BuiltCase& b, std::int64_t b_b) {
  for (std::int64_t i = 0; i < a.c.lens[static_cast<std::size_t>(a_b)].q; ++i) {
    for (std::int64_t h = 0; h < a.c.nheads_q(); ++h) {
      EXPECT_EQ(a.at("lse", a.lse_index(a_b, h, i)), b.at("lse", b.lse_index(b_b, h, i)));
      for (std::int64_t d = 0; d < a.c.headdim; ++d) {
        ASSERT_EQ(a.at("out", a.q_index(a_b, i, h, d)), b.at("out", b.q_index(b_b, i, h, d)))
            << "head " << h << ", d " << d << "\n  " << to_line(a.c) << "\n  " << to_line(b.c);
      }
    }
  }
}

Case invariant_case(const std::string& kernel, std::int64_t headdim) {
  Case c = decode_case(8, 2, 1, headdim);
  c.kernel = kernel;
  c.fp32_out = true;  // every bit of the sums
  c.batch_invariant = true;
  c.lens = {{1, 5000}, {1, 0}, {1, 2048}, {1, 2049}, {1, 31}};
  return c;
}

std::vector<std::string> decode_kernels() {
  std::vector<std::string> kernels;
  for (const std::string& kernel : usable_kernels_of(Pass::kForward, DeviceType::kCuda)) {
    if (kernel == "cuda_decode") kernels.push_back(kernel);
  }
  return kernels;
}

class InvariantParts : public ::testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(InvariantParts);

TEST_P(InvariantParts, ASequenceAloneHasItsBitsOfTheBatch) {
  for (const std::int64_t headdim : {64, 128, 256}) {
    const Case c = invariant_case(GetParam(), headdim);
    BuiltCase batch(c);
    run_sequences(batch, {0, 1, 2, 3, 4});
    for (std::int64_t b = 0; b < c.batch(); ++b) {
      Case one = c;
      one.lens = {c.lens[static_cast<std::size_t>(b)]};
      one.slack_k = 3 * b;  // another capacity, down to a single part
      BuiltCase alone(one);
      run_sequences(alone, {b});
      expect_same_bits(batch, b, alone, 0);
    }
  }
}

TEST_P(InvariantParts, StorageDecidesNoBit) {
  for (const std::int64_t headdim : {64, 128, 256}) {
    const Case c = invariant_case(GetParam(), headdim);
    BuiltCase direct(c);
    run_sequences(direct, {0, 1, 2, 3, 4});
    Case paged = c;
    paged.k_form = KForm::kPaged;
    paged.page_size = 48;
    paged.kv_layout = Layout::kBshd;
    Case odd_pages = paged;  // the other kernel, and so is the misaligned cache
    odd_pages.page_size = 20;
    Case misaligned = c;
    misaligned.kv_layout = Layout::kMisaligned;
    for (const Case& other_case : {paged, odd_pages, misaligned}) {
      BuiltCase other(other_case);
      run_sequences(other, {0, 1, 2, 3, 4});
      for (std::int64_t b = 0; b < c.batch(); ++b) expect_same_bits(direct, b, other, b);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, InvariantParts, ::testing::ValuesIn(decode_kernels()));

}  // namespace
}  // namespace foveal::test
