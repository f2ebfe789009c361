// The tests' own tools: what they generate is legal and covers what it says, and what they check
// fails when it should.
#include <cmath>

#include <foveal/experimental.hpp>

#include "kernels/kernel_case_test.hpp"
#include "support/baseline_c.h"
#include "support/case_baseline.hpp"
#include "support/comparison.hpp"
#include "support/covering_array.hpp"

namespace foveal::test {
namespace {

constexpr Pass kPasses[] = {Pass::kForward, Pass::kBackward, Pass::kAppend, Pass::kMerge};

TEST(CaseLine, ReadsBackWhatItPrints) {
  for (const Pass pass : kPasses) {
    std::vector<Case> cases = grid_cases(pass);
    for (std::uint64_t seed = 0; seed < 200; ++seed) cases.push_back(random_case(pass, seed));
    for (const Case& c : cases) {
      std::string error;
      const std::optional<Case> read = parse_case(to_line(c), error);
      ASSERT_TRUE(read) << error;
      EXPECT_EQ(*read, c);
    }
  }
}

TEST(CaseLine, SaysWhichWordItCannotRead) {
  std::string error;
  EXPECT_FALSE(parse_case("sideways", error));
  EXPECT_NE(error.find("'sideways'"), std::string::npos);
  EXPECT_FALSE(parse_case("forward d=64 causal=maybe", error));
  EXPECT_NE(error.find("'causal=maybe'"), std::string::npos);
  EXPECT_FALSE(parse_case("forward lens=3", error));
  EXPECT_FALSE(parse_case("forward width=3", error));
  EXPECT_FALSE(parse_case("forward d=64x", error));
}

TEST(CaseGenerator, MakesOnlyLegalCases) {
  for (const Pass pass : kPasses) {
    for (const Case& c : grid_cases(pass)) EXPECT_EQ(illegal_reason(c), "") << c;
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
      const Case c = random_case(pass, seed);
      EXPECT_EQ(illegal_reason(c), "") << c;
      for (const Case& simpler : simpler_cases(c)) {
        EXPECT_EQ(illegal_reason(simpler), "") << simpler;
      }
    }
  }
}

TEST(CaseGenerator, GridHoldsEveryPairOfLevels) {
  for (const Pass pass : kPasses) {
    const std::vector<CaseFactor> factors = case_factors(pass);
    std::vector<std::size_t> num_levels;
    for (const CaseFactor& factor : factors) num_levels.push_back(factor.levels.size());
    const auto meet = [&](std::size_t fa, std::size_t a, std::size_t fb, std::size_t b) {
      return levels_meet(factors[fa], factors[fa].levels[a], factors[fb], factors[fb].levels[b]);
    };
    const std::vector<DesignRow> rows = covering_array(num_levels, meet, 5);
    for (std::size_t fa = 0; fa < factors.size(); ++fa) {
      for (std::size_t fb = fa + 1; fb < factors.size(); ++fb) {
        for (std::size_t a = 0; a < num_levels[fa]; ++a) {
          for (std::size_t b = 0; b < num_levels[fb]; ++b) {
            const bool covered = std::any_of(rows.begin(), rows.end(), [&](const DesignRow& row) {
              return row[fa] == a && row[fb] == b;
            });
            EXPECT_EQ(covered, meet(fa, a, fb, b))
                << pass_name(pass) << ": " << factors[fa].name << "=" << factors[fa].levels[a].name
                << " with " << factors[fb].name << "=" << factors[fb].levels[b].name;
          }
        }
      }
    }
  }
}

TEST(CaseGenerator, EveryPassHasAKernelHere) {
  if (kernels_are_filtered()) GTEST_SKIP() << "FOVEAL_TEST_KERNELS names some";
  for (const Pass pass : kPasses) {
    EXPECT_FALSE(usable_kernels_of(pass, DeviceType::kCpu).empty()) << pass_name(pass);
  }
}

/// A forward problem with gaps between its rows, run once by whatever kernel the planner takes.
Case plain_case() {
  return {.lens = {{5, 9}},
          .headdim = 8,
          .q_layout = Layout::kPadded,
          .kv_layout = Layout::kPadded,
          .out_layout = Layout::kPadded};
}

TEST(MemoryCheck, SeesEveryKindOfStrayWrite) {
  BuiltCase built(plain_case());
  EXPECT_FALSE(built.bench.check_memory()) << "outputs that nobody wrote";
  ASSERT_TRUE(built.run());
  ASSERT_TRUE(built.bench.check_memory());

  const auto spoil = [&](std::byte* byte, const char* expected) {
    const std::byte before = *byte;
    *byte ^= std::byte{1};
    const ::testing::AssertionResult result = built.bench.check_memory();
    EXPECT_FALSE(result) << expected;
    EXPECT_NE(std::string(result.message()).find(expected), std::string::npos) << result.message();
    *byte = before;
  };
  Operand& out = built.bench.at("out");
  Operand& k = built.bench.at("k");
  spoil(out.memory.data() - 1, "out: a guard byte");
  spoil(out.memory.data() + out.memory.size(), "out: a guard byte");
  spoil(out.memory.data() + 8 * dtype_bytes(out.spec.dtype), "out: memory between its elements");
  spoil(k.memory.data(), "k is an input and was changed, 0 elements");
  EXPECT_TRUE(built.bench.check_memory());
  built.bench.restore();
  EXPECT_FALSE(built.bench.check_memory());
}

TEST(MemoryCheck, AllowsOnlyTheAppendedSlots) {
  BuiltCase built({.lens = {{1, 9}}, .k_form = KForm::kCache, .slack_k = 3, .append = 2});
  ASSERT_TRUE(built.run());
  EXPECT_TRUE(built.bench.check_memory(built.appended_elements()));
  EXPECT_FALSE(built.bench.check_memory());
}

TEST(Comparison, EachLimitIsSeenToFail) {
  Workbench bench;
  Operand& out = bench.add("out", TensorSpec::contiguous(DType::kFloat16, {1, 32, 1, 32}));
  std::vector<double> expected(1024);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] = std::sin(static_cast<double>(i));
    store_element(out.spec.dtype, out.data(), static_cast<std::int64_t>(i), expected[i]);
  }
  const AccuracyLimits limits = accuracy_limits(DType::kFloat16);
  EXPECT_TRUE(compare_with_plain(out, expected, 1e-3, limits));
  EXPECT_TRUE(compare_norm(out, expected, limits));
  EXPECT_TRUE(compare_absolute(out, expected, limits));
  EXPECT_TRUE(compare_rounded(out, expected, 0));

  out.set({0, 7, 0, 3}, out.get({0, 7, 0, 3}) + 0.06);
  const ::testing::AssertionResult absolute = compare_absolute(out, expected, limits);
  EXPECT_FALSE(absolute);
  EXPECT_NE(std::string(absolute.message()).find("out[0, 7, 0, 3]"), std::string::npos);
  EXPECT_FALSE(compare_with_plain(out, expected, 1e-3, limits));
  EXPECT_FALSE(compare_rounded(out, expected, 0));
  EXPECT_TRUE(compare_norm(out, expected, limits)) << "one element in 1024 hides in a norm";
  for (std::int64_t row = 0; row < 32; ++row)
    out.set({0, row, 0, 0}, out.get({0, row, 0, 0}) + 0.04);
  EXPECT_FALSE(compare_norm(out, expected, limits));
  out.set({0, 0, 0, 0}, std::numeric_limits<double>::quiet_NaN());
  EXPECT_FALSE(compare_with_plain(out, expected, 1e9, limits)) << "NaN passes no limit";
  EXPECT_FALSE(compare_absolute(out, expected, limits));
}

TEST(Comparison, InfinitiesAreEqualOnlyToThemselves) {
  Workbench bench;
  Operand& lse = bench.add("lse", TensorSpec::contiguous(DType::kFloat32, {1, 1, 2}));
  const double infinity = std::numeric_limits<double>::infinity();
  lse.set({0, 0, 0}, -infinity);
  lse.set({0, 0, 1}, 1.5);
  EXPECT_TRUE(compare_lse(lse, {-infinity, 1.5}));
  EXPECT_FALSE(compare_lse(lse, {0, 1.5}));
  EXPECT_FALSE(compare_lse(lse, {-infinity, infinity}));
  EXPECT_FALSE(compare_lse(lse, {-infinity, 1.5001}));
}

TEST(Comparison, HalfUlpIsHalfTheDistanceOfNeighbours) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
    for (const double value : {1.0, 1.9, 0.3, 1000.0, 3e-4}) {
      const double slack = half_ulp(dtype, value);
      const float stored = round_to(dtype, static_cast<float>(value));
      EXPECT_LE(std::abs(static_cast<double>(stored) - value), slack);
      EXPECT_EQ(round_to(dtype, static_cast<float>(static_cast<double>(stored) + 0.9 * slack)),
                stored);
      EXPECT_NE(round_to(dtype, static_cast<float>(static_cast<double>(stored) + 1.2 * slack)),
                stored);
    }
  }
}

/// The baseline is the oracle's formula: in fp32 the two are equal but for fp32's rounding, which
/// makes each the other's second opinion; in 16 bits it is off by the dtype, and not by nothing.
TEST(Baseline, IsTheOracleInItsDtype) {
  const std::pair<DType, double> limits[] = {
      {DType::kFloat32, 1e-5}, {DType::kFloat16, 0.02}, {DType::kBFloat16, 0.12}};
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    for (std::uint64_t seed = 1; seed < 60; ++seed) {
      Case c = random_case(pass, seed);
      c.scale = 0;  // errors of order 1
      c.dropout = std::min(c.dropout, 0.5f);
      for (const auto& [dtype, limit] : limits) {
        c.dtype = dtype;
        BuiltCase built(c);
        const Result<OracleResult> exact =
            oracle(built.bench.problem, built.bench.tensors, {.rows = {}, .num_threads = 1});
        ASSERT_TRUE(exact) << c << "\n" << exact.status().message();
        for (const NamedValues& plain : baseline_of(built)) {
          const std::vector<double>& expected = plain.name == "out"     ? exact->out
                                                : plain.name == "lse"   ? exact->lse
                                                : plain.name == "dq"    ? exact->dq
                                                : plain.name == "dk"    ? exact->dk
                                                : plain.name == "dv"    ? exact->dv
                                                : plain.name == "dbias" ? exact->dbias
                                                                        : exact->dsinks;
          double largest = 1;
          for (const double value : expected) {
            if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
          }
          EXPECT_LE(largest_error(expected, plain.values), limit * largest)
              << plain.name << " of " << c;
        }
      }
    }
  }
}

TEST(Baseline, CFunctionComputesTheSame) {
  const Case c{.pass = Pass::kBackward,
               .dtype = DType::kFloat16,
               .lens = {{7, 12}, {7, 12}},
               .nheads_k = 2,
               .group = 3,
               .headdim = 24,
               .causal = true,
               .window_left = 6,
               .softcap = 5,
               .sinks = true,
               .dsinks = true};
  BuiltCase built(c);
  const auto bytes = [&](std::string_view name) { return built.bench.at(name).data(); };
  std::vector<std::byte> dq(built.bench.at("dq").memory.size());
  std::vector<std::byte> dk(built.bench.at("dk").memory.size());
  std::vector<std::byte> dv(built.bench.at("dv").memory.size());
  std::vector<float> sinks(6);
  std::vector<float> dsinks(6);
  for (std::int64_t h = 0; h < 6; ++h) {
    sinks[static_cast<std::size_t>(h)] = static_cast<float>(built.at("sinks", {h}));
  }
  foveal_baseline_args args{};
  args.struct_size = sizeof args;
  args.dtype = FOVEAL_BASELINE_FP16;
  args.causal = 1;
  args.batch = 2;
  args.seqlen_q = 7;
  args.seqlen_k = 12;
  args.nheads_q = 6;
  args.nheads_k = 2;
  args.headdim = args.headdim_v = 24;
  args.window_size_left = 6;
  args.window_size_right = -1;
  args.softcap = 5;
  args.q = bytes("q");
  args.k = bytes("k");
  args.v = bytes("v");
  args.dout = bytes("dout");
  args.sinks = sinks.data();
  args.dq = dq.data();
  args.dk = dk.data();
  args.dv = dv.data();
  args.dsinks = dsinks.data();
  ASSERT_EQ(foveal_baseline(&args), 0);
  for (const NamedValues& expected : baseline_of(built)) {
    const std::byte* data = expected.name == "dq"   ? dq.data()
                            : expected.name == "dk" ? dk.data()
                            : expected.name == "dv" ? dv.data()
                                                    : reinterpret_cast<std::byte*>(dsinks.data());
    const DType dtype = expected.name == "dsinks" ? DType::kFloat32 : DType::kFloat16;
    for (std::size_t i = 0; i < expected.values.size(); ++i) {
      const double actual = load_element(dtype, data, static_cast<std::int64_t>(i));
      ASSERT_NEAR(actual, expected.values[i], 1e-6 * std::abs(actual)) << expected.name << " " << i;
    }
  }
  args.struct_size = 1;
  EXPECT_EQ(foveal_baseline(&args), 1);
  EXPECT_EQ(foveal_baseline(nullptr), 1);
}

}  // namespace
}  // namespace foveal::test
