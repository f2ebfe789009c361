// Faults that users of other kernels met in softcap, sinks and grouped heads, numbered as in the
// collection that they come from, with right answers worked out by hand.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "unit/backward_probe.hpp"

namespace foveal::test {
namespace {

/// All vectors 0 but in column 0, scale 1, softcap 2.
Case softcap_case(Case c) {
  c.scale = 1;
  c.softcap = 2;
  return c;
}

double in_column_0(std::int64_t d, double value) { return d == 0 ? value : 0.0; }

void fill_softcap_queries(BuiltCase& built) {
  for (const char* name : {"q", "dout"}) {
    built.fill_queries(name, [](std::int64_t, std::int64_t, std::int64_t, std::int64_t d) {
      return in_column_0(d, 1);
    });
  }
}

TEST(CpuBackwardScoreFaults, Nr18_SoftcapOfPackedSequences) {
  BuiltCase built(softcap_case(packed_case({{1, 1}, {1, 2}}, 64)));
  fill_softcap_queries(built);
  const double k[] = {7, 3, -1}, v[] = {5, 1, 0};
  built.bench.fill("k", [&](const Index& i) { return in_column_0(i[2], k[i[0]]); });
  built.bench.fill("v", [&](const Index& i) { return in_column_0(i[2], v[i[0]]); });
  run_anew(built);
  const double dq[] = {0, 0.0760597}, dk[] = {0, 0.0103453, -0.0450236};
  const double dv[] = {1, 0.9390337, 0.0609663};
  expect_values(built, "dq", 1e-6, [&](const Index& i) { return in_column_0(i[2], dq[i[0]]); });
  expect_values(built, "dk", 1e-6, [&](const Index& i) { return in_column_0(i[2], dk[i[0]]); });
  expect_values(built, "dv", 1e-6, [&](const Index& i) { return in_column_0(i[2], dv[i[0]]); });
}

TEST(CpuBackwardScoreFaults, Nr18_SoftcapDenseWithAMaskedThirdKey) {
  for (const bool third_key : {false, true}) {
    Case c = softcap_case(backward_case({{1, third_key ? 3 : 2}}, 64));
    if (third_key) {
      c.bias = BiasKind::kMask;
      c.bias_shape = "111k";
    }
    BuiltCase built(c);
    fill_softcap_queries(built);
    const double k[] = {3, -1, 1.5}, v[] = {1, 0, 9};
    built.bench.fill("k", [&](const Index& i) { return in_column_0(i[3], k[i[1]]); });
    built.bench.fill("v", [&](const Index& i) { return in_column_0(i[3], v[i[1]]); });
    if (third_key) built.bench.fill("bias", [](const Index& i) { return i[3] < 2 ? 1.0 : 0.0; });
    run_anew(built);
    const double dk[] = {0.0103453, -0.0450236, 0}, dv[] = {0.9390337, 0.0609663, 0};
    expect_values(built, "dq", 1e-6, [](const Index& i) { return in_column_0(i[3], 0.0760597); });
    expect_values(built, "dk", 1e-6, [&](const Index& i) { return in_column_0(i[3], dk[i[1]]); });
    expect_values(built, "dv", 1e-6, [&](const Index& i) { return in_column_0(i[3], dv[i[1]]); });
  }
}

Case sink_case(Case c) {
  c.sinks = c.dsinks = true;
  return c;
}

void run_sink_probe(BuiltCase& built, double sink) {
  built.fill_queries("q", [](auto...) { return 0.0; });
  built.fill_queries("dout", [](auto...) { return 1.0; });
  built.fill_keys("v", [](std::int64_t, std::int64_t j, std::int64_t, std::int64_t) {
    return 1.0 + 2.0 * static_cast<double>(j);
  });
  built.bench.fill("sinks", sink);
  run_anew(built);
}

TEST(CpuBackwardScoreFaults, Nr19_SinksOfEverySize) {
  struct Answer {
    double sink, dsink, dv;
  };
  for (const Answer& answer :
       {Answer{std::log(2.0), -32, 0.25}, {100, 0, 0}, {-100, 0, 0.5}, {-kInfinity, 0, 0.5}}) {
    BuiltCase built(sink_case(backward_case({{1, 2}}, 64)));
    run_sink_probe(built, answer.sink);
    expect_value(built, "dsinks", answer.dsink, 1e-4);
    expect_value(built, "dv", answer.dv, 1e-6);
    expect_value(built, "dk", 0);
  }
}

TEST(CpuBackwardScoreFaults, Nr19_ASequenceWithNothingButTheSink) {
  for (const bool dlse : {false, true}) {
    Case c = sink_case(packed_case({{1, 0}, {0, 2}}, 64));
    c.dlse = dlse;
    BuiltCase built(c);
    if (dlse) built.bench.fill("dlse", 3.0);
    run_sink_probe(built, 0.5);
    expect_value(built, "dsinks", dlse ? 3 : 0);  // lse is the sink
    expect_value(built, "dq", 0);
    expect_value(built, "dv", 0);
  }
}

TEST(CpuBackwardScoreFaults, Nr19_ARowAloneAndAmongOthers) {
  Case c = sink_case(backward_case({{34, 50}}, 64));
  BuiltCase many(c);
  ASSERT_TRUE(many.run().is_ok());
  std::vector<double> dv(static_cast<std::size_t>(many.bench.at("dv").spec.numel()), 0.0);
  double dsink = 0;
  for (std::int64_t i = 0; i < 34; ++i) {
    c.lens = {{1, 50}};
    BuiltCase one(c);
    for (const char* name : {"q", "dout"}) {
      one.fill_queries(name, [&](std::int64_t, std::int64_t, std::int64_t h, std::int64_t d) {
        return many.at(name, {0, i, h, d});
      });
    }
    for (const char* name : {"k", "v", "sinks"}) {
      one.bench.fill(name, [&](const Index& index) { return many.at(name, index); });
    }
    run_anew(one);
    for (std::int64_t d = 0; d < 64; ++d) {
      EXPECT_EQ(one.at("dq", {0, 0, 0, d}), many.at("dq", {0, i, 0, d}));
    }
    dsink += one.at("dsinks", {0});
    const std::vector<double> part = one.bench.at("dv").values();
    for (std::size_t e = 0; e < dv.size(); ++e) dv[e] += part[e];
  }
  EXPECT_TRUE(compare_norm(many.bench.at("dv"), dv, {}));
  EXPECT_NEAR(many.at("dsinks", {0}), dsink, 1e-5);
}

TEST(CpuBackwardScoreFaults, Nr20_GroupsThatAreNoPowerOfTwo) {
  struct Heads {
    std::int64_t q, k;
  };
  for (const Heads heads : {Heads{12, 2}, {24, 2}, {9, 3}, {14, 2}, {20, 4}, {5, 1}, {16, 1}}) {
    for (const std::int64_t headdim : {64, 128, 512}) {
      Case c = backward_case({{1, 100}}, headdim);
      c.nheads_k = heads.k;
      c.group = heads.q / heads.k;
      BuiltCase built(c);
      run_gradient_probe(built);
      const auto group = static_cast<double>(c.group);
      expect_value(built, "dv", group / 100, 1e-6);

      // dout names the query head: each KV head gets those of its own block of heads.
      built.fill_queries("dout", [](std::int64_t, std::int64_t, std::int64_t h, std::int64_t) {
        return static_cast<double>(h + 1);
      });
      run_anew(built);
      expect_values(built, "dv", 1e-5, [&](const Index& index) {
        const double first = static_cast<double>(index[2]) * group + 1;
        return group * (first + (group - 1) / 2) / 100;
      });
    }
  }
}

TEST(CpuBackwardScoreFaults, Nr20_GroupsInCausalAndPackedTraining) {
  for (const std::int64_t group : {5, 6, 7, 12}) {
    Case c = backward_case({{3, 100}}, 64);
    c.nheads_k = 2;
    c.group = group;
    c.causal = true;
    BuiltCase few(c);
    run_gradient_probe(few);
    expect_values(few, "dv", 1e-6, [&](const Index& index) {
      const double seen[] = {1.0 / 98, 1.0 / 99, 1.0 / 100};
      double sum = 0;
      for (std::int64_t i = 0; i < 3; ++i) sum += index[1] <= 97 + i ? seen[i] : 0;
      return static_cast<double>(group) * sum;
    });

    c = packed_case({{130, 130}, {1, 1}}, 64);
    c.nheads_k = 2;
    c.group = group;
    BuiltCase packed(c);
    run_gradient_probe(packed);
    // 130 * group equal terms, one after the other in fp32.
    expect_value(packed, "dv", static_cast<double>(group), 2e-6 * static_cast<double>(group));
  }
}

}  // namespace
}  // namespace foveal::test
