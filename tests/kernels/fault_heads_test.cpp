// Fault class 20: query heads to a KV head in numbers that are no power of two.
#include "kernels/fault_probe.hpp"

namespace foveal::test {
namespace {

struct Heads {
  std::int64_t q, k;
};
constexpr Heads kHeads[] = {{12, 2}, {24, 2}, {9, 3}, {14, 2}, {20, 4}, {5, 1}, {16, 1}};

Case heads_case(Heads heads, std::int64_t headdim, SeqLens lens, bool causal) {
  return {.lens = {lens},
          .nheads_k = heads.k,
          .group = heads.q / heads.k,
          .headdim = headdim,
          .causal = causal};
}

void fill_head_probe(BuiltCase& built) {
  built.fill_queries("q", [](auto...) { return 0.0; });
  built.fill_keys("v", [](auto, auto, std::int64_t h, auto) { return static_cast<double>(h + 1); });
}

void expect_heads(const BuiltCase& built) {
  for (std::int64_t i = 0; i < built.c.lens[0].q; ++i) {
    for (std::int64_t h = 0; h < built.c.nheads_q(); ++h) {
      expect_row(built, "out", 0, i, h, static_cast<double>(h / built.c.group + 1));
    }
  }
}

TEST(Fault20_GroupSizes, OutNamesItsKvHead) {
  for (const Heads heads : kHeads) {
    for (const std::int64_t headdim : {64, 128, 512}) {
      for (const auto& [lens, causal] :
           {std::pair{SeqLens{1, 100}, false}, {SeqLens{3, 100}, true}}) {
        for (const Case& c : every_path(heads_case(heads, headdim, lens, causal))) {
          for_each_kernel(
              c, kAllDtypes,
              [](BuiltCase& built) {
                fill_head_probe(built);
                run_probe(built);
                expect_heads(built);
              },
              RandomData::kSkip);
        }
        for_each_kernel(heads_case(heads, headdim, lens, causal), kAllDtypes, [](BuiltCase&) {});
      }
    }
  }
}

TEST(Fault20_GroupSizes, GradientsCountTheGroup) {
  for (const Heads heads : kHeads) {
    for (const std::int64_t headdim : {64, 128, 512}) {
      for (const auto& [lens, causal] :
           {std::pair{SeqLens{1, 100}, false}, {SeqLens{3, 100}, true}}) {
        Case c = heads_case(heads, headdim, lens, causal);
        c.pass = Pass::kBackward;
        for_each_kernel(
            c, kAllDtypes,
            [](BuiltCase& built) {
              fill_gradient_probe(built);
              run_probe(built);
              for (std::int64_t h = 0; h < built.c.nheads_k; ++h) {
                for (std::int64_t j = 0; j < 100; ++j) {
                  expect_key(built, "dv", 0, j, h, count_gradient(built.c, built.c.lens[0], j));
                  expect_key(built, "dk", 0, j, h, 0);
                }
              }
            },
            RandomData::kSkip);
      }
    }
  }
}

/// Packed training, two documents, n = 130 together.
Case packed_training_case(Heads heads, std::int64_t headdim) {
  Case c = heads_case(heads, headdim, {}, true);
  c.lens = {{80, 80}, {50, 50}};
  c.q_form = QForm::kPacked;
  c.k_form = KForm::kPacked;
  return c;
}

void expect_packed_training(Heads heads, std::int64_t headdim, RandomData random_data) {
  Case c = packed_training_case(heads, headdim);
  for_each_kernel(
      c, kAllDtypes,
      [](BuiltCase& built) {
        fill_head_probe(built);
        run_probe(built);
        expect_heads(built);
      },
      random_data);
  c.pass = Pass::kBackward;
  for_each_kernel(
      c, kAllDtypes,
      [](BuiltCase& built) {
        fill_gradient_probe(built);
        run_probe(built);
        for (std::int64_t b = 0; b < 2; ++b) {
          const SeqLens& lens = built.c.lens[static_cast<std::size_t>(b)];
          for (std::int64_t h = 0; h < built.c.nheads_k; ++h) {
            for (std::int64_t j = 0; j < lens.k; ++j) {
              expect_key(built, "dv", b, j, h, count_gradient(built.c, lens, j));
            }
          }
        }
      },
      random_data);
}

TEST(Fault20_GroupSizes, PackedTraining) {
  for (const Heads heads : kHeads) expect_packed_training(heads, 64, RandomData::kSkip);
}

TEST(Fault20_SlowGroupSizes, PackedTrainingWideHeadsAndRandomData) {
  for (const Heads heads : kHeads) {
    for (const std::int64_t headdim : {64, 128, 512}) {
      expect_packed_training(heads, headdim, RandomData::kToo);
    }
  }
}

TEST(Fault20_GroupSizes, HeadsThatDoNotDivideAreRefused) {
  AttentionProblem problem;
  problem.q = problem.out = TensorSpec::contiguous(DType::kFloat32, {1, 4, 3, 64});
  problem.k = problem.v = TensorSpec::contiguous(DType::kFloat32, {1, 4, 2, 64});
  const Status status = validate(problem);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("nheads_q 3"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("nheads_k 2"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace foveal::test
