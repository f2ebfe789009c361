// NaN and infinity in inputs that are read: no crash, a NaN in a visible key reaches the rows that
// see it, and nothing reaches another head, another sequence, or a key that is not of it.
#include "kernels/fault_probe.hpp"
#include "kernels/kernel_case_test.hpp"
#include "support/random.hpp"

namespace foveal::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Two sequences, two KV heads: the bad key is key 5 of sequence 0's head 0.
constexpr std::int64_t kBadKey = 5;

std::vector<Case> visible_key_cases(Pass pass) {
  Case dense{.pass = pass,
             .lens = {{9, 70}, {9, 70}},
             .nheads_k = 2,
             .group = 3,
             .headdim = 40,
             .causal = true};
  if (pass == Pass::kForward) return every_path(dense);
  Case packed = dense;
  packed.q_form = QForm::kPacked;
  packed.k_form = KForm::kPacked;
  return {dense, packed};
}

bool has_nan(const BuiltCase& built, std::string_view name, std::int64_t b, std::int64_t i,
             std::int64_t h) {
  for (std::int64_t d = 0; d < built.c.headdim; ++d) {
    if (std::isnan(built.at(name, built.q_index(b, i, h, d)))) return true;
  }
  return false;
}

TEST(NonFinite, VisibleKeyReachesItsRowsAndNoOtherHead) {
  for (const Case& c : visible_key_cases(Pass::kForward)) {
    for (const char* name : {"k", "v"}) {
      for (const double bad : {kNan, kInfinity, -kInfinity}) {
        for_each_kernel(
            c, kAllDtypes,
            [&](BuiltCase& built) {
              run_probe(built);
              const Operand& out = built.bench.at("out");
              const std::vector<double> clean = out.values();
              built.bench.restore();
              built.bench.at(name).set(built.key_index(0, kBadKey, 0, 1), bad);
              run_probe(built);
              const std::vector<double> spoiled = out.values();
              std::size_t flat = 0;
              for_each_index(out.spec, [&](const Index& index) {
                const std::size_t at = flat++;
                const bool packed = built.c.packed_q();
                const std::int64_t head = packed ? index[1] : index[2];
                const bool other_sequence = packed ? index[0] >= 9 : index[0] == 1;
                if (other_sequence || head >= built.c.group) {
                  ASSERT_EQ(clean[at], spoiled[at]) << "head " << head;
                }
              });
              for (std::int64_t i = 0; i < 9 && std::isnan(bad); ++i) {  // all rows see key 5
                for (std::int64_t h = 0; h < built.c.group; ++h) {
                  EXPECT_TRUE(has_nan(built, "out", 0, i, h)) << "row " << i << ", head " << h;
                }
              }
            },
            RandomData::kSkip);
      }
    }
  }
}

TEST(NonFinite, QueryReachesItsOwnRowAlone) {
  for (const Case& c : visible_key_cases(Pass::kForward)) {
    for_each_kernel(
        c, kAllDtypes,
        [&](BuiltCase& built) {
          run_probe(built);
          const std::vector<double> clean = built.bench.at("out").values();
          built.bench.restore();
          built.bench.at("q").set(built.q_index(0, 4, 1, 0), kNan);
          run_probe(built);
          EXPECT_TRUE(has_nan(built, "out", 0, 4, 1));
          const Operand& out = built.bench.at("out");
          std::size_t flat = 0;
          for_each_index(out.spec, [&](const Index& index) {
            const std::size_t at = flat++;
            const Index row =
                built.q_index(0, 4, 1, index[static_cast<std::size_t>(out.spec.rank - 1)]);
            if (index != row) {
              ASSERT_EQ(out.get(index), clean[at]);
            }
          });
        },
        RandomData::kSkip);
  }
}

TEST(NonFinite, BackwardKeepsItInItsHeadAndSequence) {
  for (const Case& c : visible_key_cases(Pass::kBackward)) {
    for (const char* name : {"q", "k", "v", "dout"}) {
      for_each_kernel(
          c, kAllDtypes,
          [&](BuiltCase& built) {
            run_probe(built);
            std::vector<std::vector<double>> clean;
            for (const char* gradient : {"dq", "dk", "dv"}) {
              clean.push_back(built.bench.at(gradient).values());
            }
            built.bench.restore();
            const bool key = *name == 'k' || *name == 'v';
            built.bench.at(name).set(
                key ? built.key_index(0, kBadKey, 0, 1) : built.q_index(0, 2, 1, 1), kNan);
            run_probe(built);
            std::size_t which = 0;
            for (const char* gradient : {"dq", "dk", "dv"}) {
              const Operand& operand = built.bench.at(gradient);
              const std::vector<double>& before = clean[which++];
              const std::int64_t rows = which == 1 ? 9 : 70;
              const std::int64_t bad_heads = which == 1 ? built.c.group : 1;
              std::size_t flat = 0;
              for_each_index(operand.spec, [&](const Index& index) {
                const std::size_t at = flat++;
                const bool packed = operand.spec.rank == 3;
                const bool other_sequence = packed ? index[0] >= rows : index[0] == 1;
                if (other_sequence || (packed ? index[1] : index[2]) >= bad_heads) {
                  ASSERT_EQ(operand.get(index), before[at]) << gradient << " from " << name;
                }
              });
            }
          },
          RandomData::kSkip);
    }
  }
}

/// A mask hides a key as if it were not there, NaN or not, in rows of other tiles; a row that sees
/// only finite keys in its tile is finite.
TEST(NonFinite, KeysLeftOfEveryWindowAreNotRead) {
  const Case c{.lens = {{20, 400}}, .headdim = 64, .causal = true, .window_left = 30};
  for (const Case& path : every_path(c)) {
    for_each_kernel(
        path, kAllDtypes,
        [](BuiltCase& built) {
          for (const std::string_view name : {"k", "v"}) {
            for (std::int64_t j = 0; j < 400 - 20 - 30; ++j) {
              for (std::int64_t d = 0; d < 64; ++d) {
                built.bench.at(name).set(built.key_index(0, j, 0, d), kNan);
              }
            }
          }
          const CaseOutcome outcome = run_built(built);
          EXPECT_EQ(outcome.kind, CaseOutcome::Kind::kPassed) << outcome.message;
        },
        RandomData::kSkip);
  }
}

/// NaN, both infinities, the largest and the smallest numbers anywhere among the inputs.
void scatter_oddities(BuiltCase& built, std::uint64_t seed) {
  constexpr double kOddities[] = {kNan, kInfinity, -kInfinity, 3e38, -3e38, 1e-40, 65504, -0.0};
  Random random(seed);
  for (const Operand& operand : built.bench.all()) {
    const bool numbers = operand.spec.dtype != DType::kInt32 && operand.spec.dtype != DType::kBool;
    if (!numbers || is_output_of(built.c.pass, operand.info->name)) continue;
    if (random.chance(0.5) || operand.spec.numel() == 0) continue;
    Operand& target = built.bench.at(operand.info->name);
    for (int i = 0; i < 4; ++i) {
      Index index{};
      for (std::size_t axis = 0; axis < static_cast<std::size_t>(operand.spec.rank); ++axis) {
        index[axis] = random.integer(0, operand.spec.shape[axis] - 1);
      }
      target.set(index, kOddities[random.integer(0, 7)]);
    }
  }
}

TEST(NonFinite, OddNumbersAnywhereNeverCrash) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kAppend, Pass::kMerge}) {
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
      for (const Case& c : for_every_kernel({random_case(pass, 5000 + seed)})) {
        SCOPED_TRACE(to_line(c));
        BuiltCase built(c);
        if (!kernel_takes(built.bench.problem, {.kernel = c.kernel})) continue;
        scatter_oddities(built, seed);
        run_probe(built);
      }
    }
  }
}

}  // namespace
}  // namespace foveal::test
