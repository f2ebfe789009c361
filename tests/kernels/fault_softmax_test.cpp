// Fault classes of softmax arithmetic: maxima that are reset or start finite, empty parts, the base
// of the lse, window edges, softcap's derivative, sinks.
#include "kernels/fault_probe.hpp"
#include "kernels/key_parts.hpp"

namespace foveal::test {
namespace {

void fill_constant(BuiltCase& built, double q, double k) {
  built.fill_queries("q", [q](auto...) { return q; });
  built.fill_keys("k", [k](auto...) { return k; });
}

TEST(Fault13_RunningMaximum, StaysBelowZero) {
  const Case c{.lens = {{88, 448}}, .nheads_k = 2, .group = 7, .headdim = 128, .causal = true};
  for (const Case& path : every_path(c)) {
    for_each_kernel(
        path, kExactDtypes,
        [](BuiltCase& built) {
          fill_constant(built, 4, -4.5);
          built.fill_keys(
              "v", [](std::int64_t, std::int64_t j, auto...) { return static_cast<double>(j); });
          run_probe(built);
          const double score = -4 * 4.5 * 128 / std::sqrt(128.0);
          for (std::int64_t i = 0; i < 88; ++i) {
            const auto keys = static_cast<double>(361 + i);
            for (std::int64_t h = 0; h < 14; ++h) {
              expect_row(built, "out", 0, i, h, (keys - 1) / 2);
              ASSERT_NEAR(built.at("lse", built.lse_index(0, h, i)), score + std::log(keys), 1e-4);
            }
          }
        },
        RandomData::kSkip);
  }
  for_each_kernel(c, kAllDtypes, [](BuiltCase&) {});  // random data at the same shape
}

Case far_logits_case(std::int64_t num_threads, bool batch_invariant) {
  return {.lens = {{1, 300}},
          .headdim = 128,
          .batch_invariant = batch_invariant,
          .num_threads = num_threads};
}

void fill_far_logits(BuiltCase& built, double k) {
  fill_constant(built, 64, k);
  built.fill_keys(
      "v", [](std::int64_t, std::int64_t j, auto...) { return static_cast<double>(j % 100); });
}

TEST(Fault14_FiniteSentinel, LogitsFarBelowZeroAndAbove) {
  for (const double k : {-128.0, 128.0}) {
    const double lse = k < 0 ? -92676.196 : 92687.604;
    for (const std::int64_t threads : {1, 4, 16}) {
      for (const Case& c : every_path(far_logits_case(threads, threads == 4))) {
        for_each_kernel(
            c, kAllDtypes,
            [&](BuiltCase& built) {
              fill_far_logits(built, k);
              run_probe(built);
              expect_row(built, "out", 0, 0, 0, 49.5);
              EXPECT_NEAR(built.at("lse", built.lse_index(0, 0, 0)), lse, 0.02);
            },
            RandomData::kSkip);
      }
    }
  }
}

TEST(Fault14_FiniteSentinel, InParts) {
  for (const double k : {-128.0, 128.0}) {
    for_each_kernel(far_logits_case(1, false), kAllDtypes, [&](BuiltCase& built) {
      fill_far_logits(built, k);
      for (const std::int64_t parts : {1, 4, 16}) {
        const Merged merged = attend_in_parts(built, parts);
        // Parts of different sizes differ in lse by less than fp32 resolves at 92,681.
        for (const double out : merged.out) ASSERT_NEAR(out, 49.5, 0.4) << parts << " parts";
        EXPECT_NEAR(merged.lse[0], k < 0 ? -92676.196 : 92687.604, 0.02) << parts << " parts";
      }
    });
  }
}

TEST(Fault14_FiniteSentinel, OneLargerKeyTakesAll) {
  for (const std::int64_t threads : {1, 4, 16}) {
    for_each_kernel(
        far_logits_case(threads, false), kAllDtypes,
        [](BuiltCase& built) {
          fill_far_logits(built, -128);
          built.fill_keys(
              "k", [](std::int64_t, std::int64_t j, auto...) { return j == 7 ? -127 : -128; });
          run_probe(built);
          expect_row(built, "out", 0, 0, 0, 7);
        },
        RandomData::kSkip);
  }
}

TEST(Fault15_EmptyParts, SplitsOfEveryLength) {
  std::int64_t most_splits = 0;
  for (const std::int64_t threads : {1, 2, 8, 16}) {
    for (const KForm form : {KForm::kCache, KForm::kPaged}) {
      for (const bool batch_invariant : {false, true}) {
        const Case c{.lens = {{1, 0}, {1, 1}, {1, 5}, {1, 4096}},
                     .k_form = form,
                     .batch_invariant = batch_invariant,
                     .num_threads = threads};
        for_each_kernel(
            c, kExactDtypes,
            [&](BuiltCase& built) {
              most_splits = std::max(most_splits, planned_splits(built));
              built.fill_queries("q", [](auto...) { return 0.0; });
              built.fill_keys("v", [](std::int64_t, std::int64_t j, auto...) {
                return static_cast<double>(j % 1024);
              });
              run_probe(built);
              expect_out(built, 0, 0, 0, kMinusInfinity);
              expect_out(built, 1, 0, 0, 0);
              expect_out(built, 2, 0, 2, std::log(5.0));
              expect_out(built, 3, 0, 511.5, std::log(4096.0));
            },
            RandomData::kSkip);
      }
    }
  }
  if (most_splits <= 1 && kernels_are_filtered()) return;
  EXPECT_GE(most_splits, 8) << "no plan split the keys, so that nothing was merged";
}

/// merge() of two single rows; out has one element a part.
struct Part {
  double out, lse;
};

void expect_merge(Part a, Part b, Part expected) {
  for (const std::string& kernel : usable_kernels_of(Pass::kMerge)) {
    for (const DType dtype : kAllDtypes) {
      Workbench bench;
      bench.problem.pass = Pass::kMerge;
      const TensorSpec out = TensorSpec::contiguous(dtype, {1, 1, 1, 64});
      const TensorSpec lse = TensorSpec::contiguous(DType::kFloat32, {1, 1, 1});
      bench.add("out_a", out);
      bench.add("out_b", out);
      bench.add("lse_a", lse);
      bench.add("lse_b", lse);
      bench.fill("out_a", a.out);
      bench.fill("out_b", b.out);
      bench.fill("lse_a", a.lse);
      bench.fill("lse_b", b.lse);
      bench.add("out", out);
      bench.add("lse", lse);
      bench.freeze();
      const Status status = bench.run({.kernel = kernel});
      ASSERT_TRUE(status) << status.message();
      EXPECT_TRUE(bench.check_memory());
      EXPECT_EQ(bench.at("out").get({0, 0, 0, 63}), expected.out) << kernel;
      EXPECT_EQ(bench.at("lse").get({0, 0, 0}), expected.lse) << kernel;
    }
  }
}

TEST(Fault15_EmptyParts, MergeOfNothing) {
  const Part nothing{0, kMinusInfinity};
  const Part two{2, static_cast<double>(0.7f)};
  expect_merge(nothing, nothing, nothing);
  expect_merge(nothing, two, two);
  expect_merge(two, nothing, two);
}

TEST(Fault16_LseBase, IsNaturalOnEveryPath) {
  for (const std::int64_t n_q : {1, 5, 70}) {
    for (const std::int64_t threads : {1, 4}) {
      for (const Case& c : every_path({.lens = {{n_q, 8}}, .group = 4, .num_threads = threads})) {
        for_each_kernel(c, kAllDtypes, [&](BuiltCase& built) {
          fill_counting(built);
          run_probe(built);
          for (std::int64_t i = 0; i < n_q; ++i) expect_out(built, 0, i, 3.5, 2.0794415);
        });
      }
    }
  }
}

TEST(Fault16_LseBase, PartsMergeByWeight) {
  for_each_kernel({.lens = {{1, 8}}}, kAllDtypes, [](BuiltCase& built) {
    fill_counting(built);
    Workbench first;
    Workbench last;
    Workbench merged;
    attend_to_part(built, 0, 6, first);
    attend_to_part(built, 6, 8, last);
    EXPECT_NEAR(first.at("lse").get({}), std::log(6.0), 1e-6);
    EXPECT_NEAR(last.at("lse").get({}), std::log(2.0), 1e-6);
    merge_parts(first, last, merged);
    EXPECT_NEAR(merged.at("out").get({}), 3.5, 1e-6);
    EXPECT_NEAR(merged.at("lse").get({}), std::log(8.0), 1e-6);
  });
}

TEST(Fault17_WindowEdges, AreInclusive) {
  struct Window {
    SeqLens lens;
    bool causal;
    std::int64_t left, right;
    std::vector<double> out;
  };
  const std::vector<double> causal = {0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5};
  const Window windows[] = {
      {{8, 8}, true, 3, 0, {0, 0.5, 1, 1.5, 2.5, 3.5, 4.5, 5.5}},
      {{8, 8}, true, 0, 0, {0, 1, 2, 3, 4, 5, 6, 7}},
      {{8, 8}, true, 7, 0, causal},
      {{8, 8}, true, 100, 0, causal},
      {{8, 8}, true, -1, 0, causal},
      {{8, 8}, false, -1, 0, causal},
      {{8, 8}, false, 2, -1, {3.5, 3.5, 3.5, 4, 4.5, 5, 5.5, 6}},
      {{8, 8}, false, 1, 1, {0.5, 1, 2, 3, 4, 5, 6, 6.5}},
      {{2, 5}, false, 1, 0, {2.5, 3.5}},
      {{1, 10}, false, 2, 0, {8}},
  };
  for (const Window& window : windows) {
    Case c{.lens = {window.lens},
           .causal = window.causal,
           .window_left = window.left,
           .window_right = window.right};
    for (const Case& path : every_path(c)) {
      for_each_kernel(path, kAllDtypes, [&](BuiltCase& built) {
        fill_counting(built);
        run_probe(built);
        for (std::size_t i = 0; i < window.out.size(); ++i) {
          const auto row = static_cast<std::int64_t>(i);
          expect_out(built, 0, row, window.out[i], count_row(c, window.lens, row).lse);
        }
      });
    }
  }
}

/// Two sequences with one query each; all vectors are 0 but in column 0.
void fill_softcap_probe(BuiltCase& built) {
  const double k[2][3] = {{7, 0, 0}, {3, -1, 9}};
  const double v[2][3] = {{5, 0, 0}, {1, 0, 8}};
  const auto sequence = [&](std::int64_t b) { return built.c.batch() == 1 ? 1 : b; };
  const auto column_0 = [](std::int64_t d, double value) { return d == 0 ? value : 0.0; };
  built.fill_queries("q", [&](auto, auto, auto, std::int64_t d) { return column_0(d, 1); });
  built.fill_queries("dout", [&](auto, auto, auto, std::int64_t d) { return column_0(d, 1); });
  built.fill_keys("k", [&](std::int64_t b, std::int64_t j, auto, std::int64_t d) {
    return column_0(d, k[sequence(b)][j]);
  });
  built.fill_keys("v", [&](std::int64_t b, std::int64_t j, auto, std::int64_t d) {
    return column_0(d, v[sequence(b)][j]);
  });
  if (built.c.bias == BiasKind::kMask) {
    built.bench.fill("bias", [](const Index& index) { return index[3] == 2 ? 0.0 : 1.0; });
  }
}

void expect_softcap_gradients(const BuiltCase& built, std::int64_t b) {
  // The rounded out and the rounded results: a few roundings of the dtype.
  const double slack = built.c.dtype == DType::kFloat32   ? 2e-6
                       : built.c.dtype == DType::kFloat16 ? 1e-3
                                                          : 8e-3;
  EXPECT_NEAR(built.at("dq", built.q_index(b, 0, 0, 0)), 0.0760597, slack);
  const double dk[] = {0.0103453, -0.0450236, 0};
  const double dv[] = {0.9390337, 0.0609663, 0};
  for (std::int64_t j = 0; j < built.sequences[static_cast<std::size_t>(b)].lens.k; ++j) {
    EXPECT_NEAR(built.at("dk", built.key_index(b, j, 0, 0)), dk[j], slack) << "key " << j;
    EXPECT_NEAR(built.at("dv", built.key_index(b, j, 0, 0)), dv[j], slack) << "key " << j;
  }
  EXPECT_NEAR(built.at("out", built.q_index(b, 0, 0, 0)), 0.9390337, slack);
  EXPECT_NEAR(built.at("lse", built.lse_index(b, 0, 0)), 1.8732004, 1e-6);
}

Case softcap_case(std::vector<SeqLens> lens) {
  return {.pass = Pass::kBackward, .lens = std::move(lens), .scale = 1, .softcap = 2};
}

TEST(Fault18_SoftcapBackward, PackedHasTheDerivative) {
  Case c = softcap_case({{1, 1}, {1, 2}});
  c.q_form = QForm::kPacked;
  c.k_form = KForm::kPacked;
  for_each_kernel(c, kAllDtypes, [](BuiltCase& built) {
    fill_softcap_probe(built);
    built.compute_forward();
    run_probe(built);
    expect_softcap_gradients(built, 1);
    EXPECT_NEAR(built.at("out", built.q_index(0, 0, 0, 0)), 5, 0);
    EXPECT_NEAR(built.at("lse", built.lse_index(0, 0, 0)), 1.9963562, 1e-6);
    EXPECT_NEAR(built.at("dv", built.key_index(0, 0, 0, 0)), 1, 1e-6);
    EXPECT_NEAR(built.at("dq", built.q_index(0, 0, 0, 0)), 0, 1e-6);
    EXPECT_NEAR(built.at("dk", built.key_index(0, 0, 0, 0)), 0, 1e-6);
  });
}

TEST(Fault18_SoftcapBackward, DenseAndWithAMaskedKey) {
  for (const bool masked : {false, true}) {
    Case c = softcap_case({{1, masked ? 3 : 2}});
    if (masked) c.bias = BiasKind::kMask;
    for_each_kernel(c, kAllDtypes, [](BuiltCase& built) {
      fill_softcap_probe(built);
      built.compute_forward();
      run_probe(built);
      expect_softcap_gradients(built, 0);
    });
  }
}

/// What a sink makes of two keys with v = 1 and 3 under q = 0.
struct SinkAnswer {
  double sink, out, lse, dsink;
};

TEST(Fault19_Sinks, TakeMassAndAddNoValue) {
  const SinkAnswer answers[] = {{std::log(2.0), 1, std::log(4.0), -32},
                                {100, 0, 100, 0},
                                {-100, 2, std::log(2.0), 0},
                                {kMinusInfinity, 2, std::log(2.0), 0}};
  for (const SinkAnswer& answer : answers) {
    for (const std::int64_t n_q : {1, 34}) {
      const auto fill = [&](BuiltCase& built) {
        built.bench.fill("sinks", answer.sink);
        built.fill_queries("q", [](auto...) { return 0.0; });
        built.fill_keys("v", [](std::int64_t, std::int64_t j, auto...) {
          return static_cast<double>(2 * j + 1);
        });
      };
      for_each_kernel({.lens = {{n_q, 2}}, .sinks = true}, kAllDtypes, [&](BuiltCase& built) {
        fill(built);
        run_probe(built);
        for (std::int64_t i = 0; i < n_q; ++i) expect_out(built, 0, i, answer.out, answer.lse);
      });
      for_each_kernel({.pass = Pass::kBackward, .lens = {{n_q, 2}}, .sinks = true, .dsinks = true},
                      kAllDtypes, [&](BuiltCase& built) {
                        fill(built);
                        built.fill_queries("dout", [](auto...) { return 1.0; });
                        built.compute_forward();
                        run_probe(built);
                        const double expected = answer.dsink * static_cast<double>(n_q);
                        EXPECT_NEAR(built.at("dsinks", {0}), expected,
                                    1e-5 * std::abs(expected) + 1e-35);
                      });
    }
  }
}

TEST(Fault19_Sinks, AloneInASequence) {
  const Case c{
      .lens = {{1, 0}, {1, 2}}, .q_form = QForm::kPacked, .k_form = KForm::kPacked, .sinks = true};
  for_each_kernel(c, kAllDtypes, [](BuiltCase& built) {
    built.bench.fill("sinks", 0.5);
    run_probe(built);
    expect_out(built, 0, 0, 0, 0.5);
  });
}

TEST(Fault19_Sinks, ARowAloneIsTheRowAmongOthers) {
  for_each_kernel(
      {.lens = {{34, 50}}, .headdim = 128, .sinks = true}, kAllDtypes, [](BuiltCase& many) {
        Case c = many.c;
        c.lens = {{1, 50}};
        BuiltCase one(c);
        constexpr std::int64_t kRow = 20;
        for (const std::string_view name : {"k", "v"}) {
          one.fill_keys(name, [&](auto b, auto j, auto h, auto d) {
            return many.at(name, many.key_index(b, j, h, d));
          });
        }
        one.fill_queries("q", [&](auto b, auto, auto h, auto d) {
          return many.at("q", many.q_index(b, kRow, h, d));
        });
        one.bench.fill("sinks", [&](const Index& index) { return many.at("sinks", index); });
        run_probe(many);
        run_probe(one);
        for (std::int64_t d = 0; d < 128; ++d) {
          const double alone = one.at("out", one.q_index(0, 0, 0, d));
          ASSERT_NEAR(alone, many.at("out", many.q_index(0, kRow, 0, d)),
                      2 * half_ulp(many.c.dtype, alone) + 1e-6);
        }
        EXPECT_NEAR(one.at("lse", one.lse_index(0, 0, 0)),
                    many.at("lse", many.lse_index(0, 0, kRow)), 1e-6);
      });
}

}  // namespace
}  // namespace foveal::test
