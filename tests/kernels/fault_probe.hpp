// The probes of the fault classes: inputs whose right answers are known without a reference.
//
//   counting probe   q = 0 and v[j] = j: out is the mean of the visible j, lse the logarithm of
//                    their number
//   head probe       v of KV head h is h + 1: out names the head that was read
//   gradient probe   q = 0 and dout = 1: dv[j] sums 1 / (keys that i sees) over the rows i that see
//   j
#pragma once

#include <cmath>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "support/built_case.hpp"
#include "support/case_runner.hpp"
#include "support/comparison.hpp"

namespace foveal::test {

inline constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
inline constexpr std::initializer_list<DType> kAllDtypes = {DType::kFloat32, DType::kFloat16,
                                                            DType::kBFloat16};
/// Where the numbers need more than bf16's eight bits.
inline constexpr std::initializer_list<DType> kExactDtypes = {DType::kFloat32, DType::kFloat16};

enum class RandomData { kToo, kSkip };

/// `check(built)` for the case in every kernel of its pass that supports it and every dtype; before
/// that, unless the check does so itself, the same shapes with random data against the oracle.
inline void for_each_kernel(Case c, std::initializer_list<DType> dtypes,
                            const std::function<void(BuiltCase&)>& check,
                            RandomData random_data = RandomData::kToo) {
  int checked = 0;
  for (const std::string& kernel : usable_kernels_of(c.pass)) {
    for (const DType dtype : dtypes) {
      c.kernel = kernel;
      c.dtype = dtype;
      SCOPED_TRACE(to_line(c));
      BuiltCase built(c);
      if (!kernel_takes(built.bench.problem, {.kernel = kernel})) continue;
      if (random_data == RandomData::kToo) {
        const CaseOutcome outcome = run_case(c);
        EXPECT_EQ(outcome.kind, CaseOutcome::Kind::kPassed) << outcome.message;
      }
      check(built);
      ++checked;
    }
  }
  if (checked == 0 && kernels_are_filtered())
    GTEST_SKIP() << "none of FOVEAL_TEST_KERNELS takes it";
  EXPECT_GT(checked, 0) << "no kernel takes " << to_line(c);
}

/// The case for every kernel of its pass, in fp16 or in the dtype and at the head size that the
/// kernel takes in their place. Only FOVEAL_MAX_SMEM may leave a kernel nothing.
inline std::vector<Case> in_every_kernel(const Case& c) {
  const auto form_of = [&](const std::string& kernel) -> std::optional<Case> {
    for (const std::int64_t headdim : {c.headdim, std::int64_t{512}}) {
      for (const DType dtype : {DType::kFloat16, DType::kFloat32}) {
        Case form = c;
        form.kernel = kernel;
        form.headdim = headdim;
        form.dtype = dtype;
        if (kernel_takes(BuiltCase(form).bench.problem, {.kernel = kernel})) return form;
      }
    }
    return std::nullopt;
  };
  std::vector<Case> forms;
  for (const std::string& kernel : usable_kernels_of(c.pass)) {
    const auto form = form_of(kernel);
    if (form) forms.push_back(*form);
    EXPECT_TRUE(form || shared_memory_is_limited()) << kernel << " takes no form of " << to_line(c);
  }
  return forms;
}

/// The case in each form that q, k and v can have: dense, packed, cache, paged.
inline std::vector<Case> every_path(const Case& c) {
  std::vector<Case> cases{c};
  const auto add = [&](QForm q, KForm k, std::int64_t page_size) {
    Case other = c;
    other.q_form = q;
    other.k_form = k;
    other.slack_q = q == QForm::kUsed ? 2 : 0;
    other.slack_k = k == KForm::kPacked ? 0 : 5;
    other.page_size = page_size;
    if (illegal_reason(other).empty()) cases.push_back(other);
  };
  cases.push_back(c);
  cases.back().q_layout = cases.back().kv_layout = cases.back().out_layout = Layout::kBhsd;
  add(QForm::kPacked, KForm::kPacked, 16);
  add(QForm::kUsed, KForm::kCache, 16);
  add(QForm::kDense, KForm::kPaged, 16);
  add(QForm::kPacked, KForm::kPaged, 4);
  return cases;
}

inline void fill_counting(BuiltCase& built) {
  built.fill_queries("q", [](auto...) { return 0.0; });
  built.fill_keys("v",
                  [](std::int64_t, std::int64_t j, auto...) { return static_cast<double>(j); });
}

inline void fill_gradient_probe(BuiltCase& built) {
  built.fill_queries("q", [](auto...) { return 0.0; });
  built.fill_queries("dout", [](auto...) { return 1.0; });
  built.compute_forward();
}

/// Runs what was filled in and checks guards, inputs and that everything was written.
inline void run_probe(BuiltCase& built) {
  built.bench.freeze();
  const Status status = built.run();
  ASSERT_TRUE(status) << status.message();
  EXPECT_TRUE(built.bench.check_memory(built.appended_elements()));
}

/// One rounding to the operand's dtype, and a few of fp32. A kernel may round the weights to the
/// dtype before it adds them up in dv, all of them the same way.
inline double rounding_slack(const Operand& operand, double expected) {
  double slack = 1.01 * half_ulp(operand.spec.dtype, expected) + 2e-6 * std::abs(expected) + 1e-40;
  if (std::string_view(operand.info->name) == "dv") {
    if (operand.spec.dtype == DType::kFloat16) slack += 0x1p-11 * std::abs(expected);
    if (operand.spec.dtype == DType::kBFloat16) slack += 0x1p-8 * std::abs(expected);
  }
  return slack;
}

/// Every column of a row; `index(d)` is its element in column d.
template <class IndexOf>
void expect_columns(const Operand& operand, std::int64_t headdim, double expected,
                    const std::string& place, IndexOf&& index) {
  const double slack = rounding_slack(operand, expected);
  for (std::int64_t d = 0; d < headdim; ++d) {
    const double actual = operand.get(index(d));
    if (!(std::abs(actual - expected) <= slack)) {
      FAIL() << operand.info->name << ", " << place << ", column " << d << ": expected " << expected
             << ", got " << actual;
    }
  }
}

inline std::string place_text(std::int64_t b, const char* what, std::int64_t row, std::int64_t h) {
  return "sequence " + std::to_string(b) + ", " + what + " " + std::to_string(row) + ", head " +
         std::to_string(h);
}

/// Every column of row i.
inline void expect_row(const BuiltCase& built, std::string_view name, std::int64_t b,
                       std::int64_t i, std::int64_t h, double expected) {
  expect_columns(built.bench.at(name), built.c.headdim, expected, place_text(b, "row", i, h),
                 [&](std::int64_t d) { return built.q_index(b, i, h, d); });
}

/// Every column of key j.
inline void expect_key(const BuiltCase& built, std::string_view name, std::int64_t b,
                       std::int64_t j, std::int64_t h, double expected) {
  expect_columns(built.bench.at(name), built.c.headdim, expected, place_text(b, "key", j, h),
                 [&](std::int64_t d) { return built.key_index(b, j, h, d); });
}

inline void expect_lse(const BuiltCase& built, std::int64_t b, std::int64_t i, std::int64_t h,
                       double expected) {
  const double actual = built.at("lse", built.lse_index(b, h, i));
  if (std::isinf(expected)) {
    ASSERT_EQ(actual, expected) << "lse: sequence " << b << ", row " << i << ", head " << h;
  } else {
    ASSERT_NEAR(actual, expected, 1e-6 + 2e-7 * std::abs(expected))
        << "lse: sequence " << b << ", row " << i << ", head " << h;
  }
}

/// out and lse of one row in every head.
inline void expect_out(const BuiltCase& built, std::int64_t b, std::int64_t i, double out,
                       double lse) {
  for (std::int64_t h = 0; h < built.c.nheads_q(); ++h) {
    expect_row(built, "out", b, i, h, out);
    expect_lse(built, b, i, h, lse);
  }
}

/// What the counting probe gives for a row: mean and logarithm of the number of visible keys, by
/// counting them.
struct CountedRow {
  double mean = 0;
  double lse = kMinusInfinity;
};
inline CountedRow count_row(const Case& c, const SeqLens& lens, std::int64_t i) {
  double sum = 0;
  double count = 0;
  for (std::int64_t j = 0; j < lens.k; ++j) {
    if (!c.sees(lens, i, j)) continue;
    sum += static_cast<double>(j);
    ++count;
  }
  return count == 0 ? CountedRow{} : CountedRow{sum / count, std::log(count)};
}

/// dv[j] of the gradient probe in one KV head, by counting.
inline double count_gradient(const Case& c, const SeqLens& lens, std::int64_t j) {
  double sum = 0;
  for (std::int64_t i = 0; i < lens.q; ++i) {
    if (c.sees(lens, i, j)) sum += std::exp(-count_row(c, lens, i).lse);
  }
  return sum * static_cast<double>(c.group);
}

}  // namespace foveal::test
