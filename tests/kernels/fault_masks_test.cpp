// Fault classes of masks and lengths: fully masked rows, causal alignment, documents that began
// earlier, empty sequences.
#include "kernels/fault_probe.hpp"

namespace foveal::test {
namespace {

/// Rows that see nothing: a range of the mask that is all false.
struct MaskedRows {
  std::int64_t begin, end;
  [[nodiscard]] bool contains(std::int64_t i) const { return begin <= i && i < end; }
};

void hide_rows(BuiltCase& built, MaskedRows rows) {
  built.bench.fill("bias", [&](const Index& index) { return rows.contains(index[2]) ? 0.0 : 1.0; });
  if (built.c.sinks) built.bench.fill("sinks", 0.0);
}

constexpr MaskedRows kHiddenRows[] = {{0, 14}, {20, 34}, {0, 40}};

Case masked_rows_case(Pass pass, bool sinks) {
  return {.pass = pass,
          .lens = {{40, 64}},
          .group = 8,
          .headdim = 512,
          .sinks = sinks,
          .bias = BiasKind::kMask,
          .dsinks = sinks && pass == Pass::kBackward};
}

TEST(Fault01_MaskedRows, ForwardCounts) {
  for (const bool sinks : {false, true}) {
    for (const MaskedRows rows : kHiddenRows) {
      for_each_kernel(masked_rows_case(Pass::kForward, sinks), kAllDtypes, [&](BuiltCase& built) {
        hide_rows(built, rows);
        fill_counting(built);
        run_probe(built);
        for (std::int64_t i = 0; i < 40; ++i) {
          if (rows.contains(i)) {
            expect_out(built, 0, i, 0, sinks ? 0 : kMinusInfinity);
          } else {
            expect_out(built, 0, i, sinks ? 2016.0 / 65 : 31.5, std::log(sinks ? 65 : 64));
          }
        }
      });
    }
  }
}

TEST(Fault01_MaskedRows, BackwardActsAsIfTheyWereNotThere) {
  for (const bool sinks : {false, true}) {
    for (const MaskedRows rows : kHiddenRows) {
      for_each_kernel(
          masked_rows_case(Pass::kBackward, sinks), kAllDtypes,
          [&](BuiltCase& built) {
            hide_rows(built, rows);
            built.compute_forward();
            const CaseOutcome random_data = run_built(built);
            EXPECT_EQ(random_data.kind, CaseOutcome::Kind::kPassed) << random_data.message;
            for (std::int64_t i = rows.begin; i < rows.end; ++i) {
              for (std::int64_t h = 0; h < 8; ++h) expect_row(built, "dq", 0, i, h, 0);
            }
            // The same rows out of the problem: other values there change no bit of dk and dv.
            const std::vector<double> dk = built.bench.at("dk").values();
            const std::vector<double> dv = built.bench.at("dv").values();
            built.bench.restore();
            for (const std::string_view name : {"q", "dout"}) {
              Operand& operand = built.bench.at(name);
              for_each_index(operand.spec, [&](const Index& index) {
                if (rows.contains(index[1])) operand.set(index, 77);
              });
            }
            run_probe(built);
            EXPECT_EQ(built.bench.at("dk").values(), dk);
            EXPECT_EQ(built.bench.at("dv").values(), dv);
          },
          RandomData::kSkip);
    }
  }
}

TEST(Fault01_MaskedRows, GradientProbeCountsTheOthers) {
  for_each_kernel(masked_rows_case(Pass::kBackward, false), kAllDtypes, [&](BuiltCase& built) {
    hide_rows(built, {0, 14});
    fill_gradient_probe(built);
    run_probe(built);
    for (std::int64_t j = 0; j < 64; ++j) {
      expect_key(built, "dv", 0, j, 0, 8 * 26 / 64.0);
      expect_key(built, "dk", 0, j, 0, 0);
    }
  });
}

TEST(Fault02_CausalFewerQueries, IsAlignedBottomRight) {
  struct Expected {
    SeqLens lens;
    std::vector<double> out;
    std::vector<double> keys;
  };
  const Expected table[] = {{{3, 8}, {2.5, 3, 3.5}, {6, 7, 8}},
                            {{3, 128}, {62.5, 63, 63.5}, {126, 127, 128}},
                            {{1, 8}, {3.5}, {8}}};
  for (const Expected& expected : table) {
    for (const Case& c : every_path({.lens = {expected.lens}, .causal = true})) {
      for_each_kernel(c, kAllDtypes, [&](BuiltCase& built) {
        fill_counting(built);
        run_probe(built);
        for (std::size_t i = 0; i < expected.out.size(); ++i) {
          expect_out(built, 0, static_cast<std::int64_t>(i), expected.out[i],
                     std::log(expected.keys[i]));
        }
      });
    }
  }
}

TEST(Fault02_CausalFewerQueries, OneQueryIsAsWithoutAMask) {
  for (Case c : in_every_kernel({.lens = {{1, 128}}, .group = 3, .headdim = 80})) {
    BuiltCase unmasked(c);
    c.causal = true;
    BuiltCase causal(c);
    run_probe(unmasked);
    run_probe(causal);
    EXPECT_TRUE(same_bits(unmasked.bench.at("out"), causal.bench.at("out")));
    EXPECT_TRUE(same_bits(unmasked.bench.at("lse"), causal.bench.at("lse")));
  }
}

TEST(Fault03_CausalMoreQueries, RowsWithoutAKeyAreWritten) {
  for (const std::int64_t n_q : {8, 300}) {
    for (const Case& c : every_path({.lens = {{n_q, 3}}, .group = 2, .causal = true})) {
      for_each_kernel(c, kAllDtypes, [&](BuiltCase& built) {
        fill_counting(built);
        run_probe(built);
        for (std::int64_t i = 0; i < n_q - 3; ++i) expect_out(built, 0, i, 0, kMinusInfinity);
        for (std::int64_t seen = 1; seen <= 3; ++seen) {
          expect_out(built, 0, n_q - 4 + seen, 0.5 * static_cast<double>(seen - 1),
                     std::log(static_cast<double>(seen)));
        }
      });
    }
  }
}

TEST(Fault03_CausalMoreQueries, BackwardWritesZeros) {
  const Case dense{.pass = Pass::kBackward, .causal = true};
  for (const std::int64_t n_q : {8, 300}) {
    for (const QForm form : {QForm::kDense, QForm::kPacked}) {
      Case c = dense;
      c.lens = {{n_q, 3}};
      c.q_form = form;
      c.k_form = form == QForm::kDense ? KForm::kDense : KForm::kPacked;
      for_each_kernel(c, kAllDtypes, [&](BuiltCase& built) {
        fill_gradient_probe(built);
        run_probe(built);
        for (std::int64_t i = 0; i < n_q - 3; ++i) expect_row(built, "dq", 0, i, 0, 0);
        const double expected[] = {1 + 1 / 2.0 + 1 / 3.0, 1 / 2.0 + 1 / 3.0, 1 / 3.0};
        for (std::int64_t j = 0; j < 3; ++j) expect_key(built, "dv", 0, j, 0, expected[j]);
      });
    }
  }
}

Case straddling_case(std::int64_t headdim, bool window) {
  Case c{.lens = {{3, 5}, {4, 4}},
         .q_form = QForm::kPacked,
         .k_form = KForm::kPacked,
         .headdim = headdim,
         .causal = true};
  if (window) {
    c.window_left = 1;
    c.window_right = 0;
  }
  return c;
}

TEST(Fault04_EarlierDocument, SeesTheKeysThatCameBefore) {
  const std::vector<double> plain[] = {{1, 1.5, 2}, {0, 0.5, 1, 1.5}};
  const std::vector<double> windowed[] = {{1.5, 2.5, 3.5}, {0, 0.5, 1.5, 2.5}};
  const std::vector<double> plain_keys[] = {{3, 4, 5}, {1, 2, 3, 4}};
  const std::vector<double> windowed_keys[] = {{2, 2, 2}, {1, 2, 2, 2}};
  for (const std::int64_t headdim : {64, 512}) {
    for (const bool window : {false, true}) {
      for_each_kernel(straddling_case(headdim, window), kAllDtypes, [&](BuiltCase& built) {
        fill_counting(built);
        run_probe(built);
        for (std::size_t b = 0; b < 2; ++b) {
          const std::vector<double>& out = window ? windowed[b] : plain[b];
          const std::vector<double>& keys = window ? windowed_keys[b] : plain_keys[b];
          for (std::size_t i = 0; i < out.size(); ++i) {
            expect_out(built, static_cast<std::int64_t>(b), static_cast<std::int64_t>(i), out[i],
                       std::log(keys[i]));
          }
        }
      });
    }
  }
}

TEST(Fault04_EarlierDocument, NothingOfItReachesTheNextDocument) {
  for_each_kernel(straddling_case(64, false), kAllDtypes, [&](BuiltCase& built) {
    fill_counting(built);
    run_probe(built);
    const std::vector<double> before = built.bench.at("out").values();
    built.bench.restore();
    built.fill_keys("v", [](std::int64_t b, std::int64_t j, auto...) {
      return b == 0 ? 1e4 : static_cast<double>(j);
    });
    run_probe(built);
    const std::vector<double> after = built.bench.at("out").values();
    constexpr std::size_t kFirstRows = std::size_t{3} * 64;
    EXPECT_EQ(std::vector(before.begin() + kFirstRows, before.end()),
              std::vector(after.begin() + kFirstRows, after.end()));
    EXPECT_NE(before[0], after[0]);
  });
}

Case empty_entries_case(std::vector<SeqLens> lens) {
  return {.lens = std::move(lens),
          .q_form = QForm::kPacked,
          .k_form = KForm::kPacked,
          .nheads_k = 2,
          .group = 3,
          .headdim = 64,
          .causal = true};
}

TEST(Fault05_EmptyEntries, FewerTokensThanSequences) {
  for_each_kernel(empty_entries_case({{0, 2}, {1, 3}, {0, 0}, {1, 5}}), kAllDtypes,
                  [&](BuiltCase& built) {
                    ASSERT_EQ(built.bench.problem.max_seqlen_q, 1);
                    built.fill_queries("q", [](auto...) { return 0.0; });
                    built.fill_keys("v", [](std::int64_t, std::int64_t j, std::int64_t h, auto...) {
                      return static_cast<double>(100 * h + j);
                    });
                    run_probe(built);
                    for (std::int64_t h = 0; h < 6; ++h) {
                      const double head = h < 3 ? 0 : 100;
                      expect_row(built, "out", 1, 0, h, head + 1);
                      expect_row(built, "out", 3, 0, h, head + 2);
                      expect_lse(built, 1, 0, h, std::log(3.0));
                      expect_lse(built, 3, 0, h, std::log(5.0));
                    }
                  });
}

TEST(Fault05_EmptyEntries, NoQueriesAtAll) {
  for_each_kernel(empty_entries_case({{0, 2}, {0, 3}, {0, 0}, {0, 5}}), kAllDtypes,
                  [&](BuiltCase& built) {
                    ASSERT_EQ(built.bench.problem.q.shape[0], 0);
                    run_probe(built);
                  });
}

TEST(Fault05_EmptyEntries, NoKeysAtAll) {
  for_each_kernel(empty_entries_case({{0, 0}, {1, 0}, {0, 0}, {1, 0}}), kAllDtypes,
                  [&](BuiltCase& built) {
                    run_probe(built);
                    expect_out(built, 1, 0, 0, kMinusInfinity);
                    expect_out(built, 3, 0, 0, kMinusInfinity);
                  });
}

Case no_queries_case(std::int64_t headdim, std::vector<SeqLens> lens) {
  return {.pass = Pass::kBackward,
          .lens = std::move(lens),
          .q_form = QForm::kPacked,
          .k_form = KForm::kPacked,
          .group = 4,
          .headdim = headdim};
}

TEST(Fault06_BackwardWithoutQueries, TheirKeysGetZeros) {
  for (const std::int64_t headdim : {64, 256, 512}) {
    for_each_kernel(no_queries_case(headdim, {{0, 4}, {3, 3}, {2, 5}, {0, 2}}), kAllDtypes,
                    [&](BuiltCase& built) {
                      fill_gradient_probe(built);
                      run_probe(built);
                      const double expected[] = {0, 4, 1.6, 0};
                      for (std::int64_t b = 0; b < 4; ++b) {
                        for (std::int64_t j = 0; j < built.sequences[b].lens.k; ++j) {
                          expect_key(built, "dv", b, j, 0, expected[b]);
                          expect_key(built, "dk", b, j, 0, 0);
                        }
                      }
                    });
  }
}

TEST(Fault06_BackwardWithoutQueries, TheOthersAreAsIfAlone) {
  for (const std::int64_t headdim : {64, 256, 512}) {
    for_each_kernel(no_queries_case(headdim, {{0, 4}, {3, 3}, {2, 5}, {0, 2}}), kAllDtypes,
                    [&](BuiltCase& all) {
                      Case c = all.c;
                      c.lens = {{3, 3}, {2, 5}};
                      BuiltCase alone(c);
                      const auto copy = [&](std::string_view name, bool keys) {
                        const Operand& from = all.bench.at(name);
                        const auto value = [&](std::int64_t b, std::int64_t row, std::int64_t h,
                                               std::int64_t d) {
                          return from.get(keys ? all.key_index(b + 1, row, h, d)
                                               : all.q_index(b + 1, row, h, d));
                        };
                        keys ? alone.fill_keys(name, value) : alone.fill_queries(name, value);
                      };
                      copy("q", false);
                      copy("dout", false);
                      copy("k", true);
                      copy("v", true);
                      alone.compute_forward();
                      run_probe(all);
                      run_probe(alone);
                      const auto tail = [&](const BuiltCase& built, std::string_view name) {
                        return built.bench.at(name).values();
                      };
                      EXPECT_EQ(tail(all, "dq"), tail(alone, "dq"));
                      const auto keys = static_cast<std::size_t>(headdim);
                      for (const std::string_view name : {"dk", "dv"}) {
                        const std::vector<double> with = tail(all, name);
                        EXPECT_EQ(std::vector(with.begin() + 4 * keys, with.end() - 2 * keys),
                                  tail(alone, name));
                      }
                    });
  }
}

}  // namespace
}  // namespace foveal::test
