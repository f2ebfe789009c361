// Packs of real documents (bench/data/doclens.json): many short ones, some of one token or none,
// the first begun in an earlier pack.
#include <fstream>

#include <nlohmann/json.hpp>

#include "kernels/fault_probe.hpp"
#include "kernels/kernel_case_test.hpp"
#include "support/source_directory.hpp"

namespace foveal::test {
namespace {

/// The packs of a group, each as lengths: the first document's keys begin first_doc_offset earlier.
std::vector<std::vector<SeqLens>> packs_of(const std::string& group) {
  std::ifstream file(source_directory() + "/bench/data/doclens.json");
  const nlohmann::json data = nlohmann::json::parse(file);
  std::vector<std::vector<SeqLens>> packs;
  for (const auto& entry : data.at("groups")) {
    if (entry.at("name") != group) continue;
    for (const auto& pack : entry.at("packs")) {
      std::vector<SeqLens> lens;
      std::int64_t earlier = pack.at("first_doc_offset");
      for (const std::int64_t length : pack.at("doc_lens")) {
        lens.push_back({length, length + earlier});
        earlier = 0;
      }
      packs.push_back(lens);
    }
  }
  return packs;
}

Case pack_case(const std::vector<SeqLens>& lens, std::int64_t headdim) {
  return {.lens = lens,
          .q_form = QForm::kPacked,
          .k_form = KForm::kPacked,
          .headdim = headdim,
          .causal = true,
          .num_threads = 2};
}

/// The counting probe, whose answers need no reference; fp32, where every position is exact.
void expect_counts(const std::string& group, std::int64_t window_left) {
  const std::vector<std::vector<SeqLens>> packs = packs_of(group);
  ASSERT_FALSE(packs.empty()) << group;
  for (const std::vector<SeqLens>& lens : packs) {
    Case c = pack_case(lens, 8);
    c.window_left = window_left;
    for_each_kernel(
        c, {DType::kFloat32},
        [&](BuiltCase& built) {
          fill_counting(built);
          run_probe(built);
          for (std::int64_t b = 0; b < built.c.batch(); ++b) {
            const SeqLens& doc = lens[static_cast<std::size_t>(b)];
            for (std::int64_t i = 0; i < doc.q; ++i) {
              const std::int64_t last = doc.k - doc.q + i;
              const std::int64_t first =
                  window_left < 0 ? 0 : std::max<std::int64_t>(last - window_left, 0);
              expect_out(built, b, i, 0.5 * static_cast<double>(first + last),
                         std::log(static_cast<double>(last - first + 1)));
            }
          }
        },
        RandomData::kSkip);
  }
}

TEST(DocLens, TinyDocumentsCount) { expect_counts("tiny-4k", -1); }
TEST(DocLens, TinyDocumentsCountInAWindow) { expect_counts("tiny-4k", 64); }
TEST(DocLens, MixedDocumentsCountInAWindow) { expect_counts("mixed-4k", 255); }
TEST(SlowDocLens, MixedDocumentsCount) { expect_counts("mixed-4k", -1); }
TEST(SlowDocLens, LongPacksCount) { expect_counts("tiny-16k", 1023); }

/// Random data, forward and backward, against the oracle.
void expect_oracle(const std::vector<SeqLens>& lens, DType dtype, std::int64_t headdim) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    Case c = pack_case(lens, headdim);
    c.pass = pass;
    c.dtype = dtype;
    c.group = 2;
    for (const Case& one : for_every_kernel({c})) expect_case(one);
  }
}

TEST(DocLens, TinyDocumentsMatchTheOracle) {
  const std::vector<std::vector<SeqLens>> packs = packs_of("tiny-4k");
  ASSERT_EQ(packs.size(), 3u);
  EXPECT_GT(packs[1][0].k, packs[1][0].q) << "the first document began earlier";
  expect_oracle(packs[1], DType::kBFloat16, 32);
}

TEST(SlowDocLens, EveryPackMatchesTheOracle) {
  for (const char* group : {"tiny-4k", "short-4k"}) {
    for (const std::vector<SeqLens>& lens : packs_of(group)) {
      for (const DType dtype : kAllDtypes) expect_oracle(lens, dtype, 64);
    }
  }
}

}  // namespace
}  // namespace foveal::test
