// Appending to a cache and the rotary embedding.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <vector>

#include "unit/reference_case.hpp"

namespace foveal::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kNew = 3;
constexpr std::int64_t kCapacity = 8;
constexpr std::int64_t kHeadsQ = 4;
constexpr std::int64_t kHeadsK = 2;
constexpr std::int64_t kHeaddim = 6;
constexpr std::int64_t kPositions = 16;
const std::vector<std::int32_t> kUsed{5, 2};

/// A value that names its place.
Fill place(double base) {
  return [base](const Element& element) { return base + static_cast<double>(element.flat) / 64; };
}

double angle(std::int64_t position, std::int64_t pair) {
  return 0.1 * static_cast<double>(position) / static_cast<double>(1 + pair);
}

void add_rotary(OracleCase& test, std::int64_t pairs) {
  test.add("rotary_cos", {kPositions, pairs},
           [](const Element& e) { return std::cos(angle(e.index[0], e.index[1])); });
  test.add("rotary_sin", {kPositions, pairs},
           [](const Element& e) { return std::sin(angle(e.index[0], e.index[1])); });
}

/// kNew rows of q and of new tokens on caches with 5 and 2 tokens; what is past them is NaN.
OracleCase append_case(Pass pass) {
  OracleCase test;
  test.problem.pass = pass;
  const auto cache = [](double base) -> Fill {
    return [fill = place(base)](const Element& e) {
      return e.index[1] < kUsed[static_cast<std::size_t>(e.index[0])] ? fill(e) : kNaN;
    };
  };
  Random random(1);
  test.add("q", {kBatch, kNew, kHeadsQ, kHeaddim}, normal(random));
  test.add("k", {kBatch, kCapacity, kHeadsK, kHeaddim}, cache(-2));
  test.add("v", {kBatch, kCapacity, kHeadsK, kHeaddim}, cache(1));
  test.add("k_new", {kBatch, kNew, kHeadsK, kHeaddim}, place(-1));
  test.add("v_new", {kBatch, kNew, kHeadsK, kHeaddim}, place(4));
  test.add_ints("seqused_k", kUsed);
  if (pass == Pass::kForward) {
    test.want("out", {kBatch, kNew, kHeadsQ, kHeaddim});
    test.want("lse", {kBatch, kHeadsQ, kNew});
  }
  return test;
}

/// Index into [batch, seqlen, heads, headdim].
std::size_t at(std::int64_t seqlen, std::int64_t heads, std::array<std::int64_t, 4> index) {
  return static_cast<std::size_t>(((index[0] * seqlen + index[1]) * heads + index[2]) * kHeaddim +
                                  index[3]);
}

/// Element d of a head after turning its pairs at a position, by complex products.
double turned(const std::vector<double>& head, std::int64_t d, std::int64_t position,
              std::int64_t pairs, bool interleaved) {
  if (d >= 2 * pairs) return head[static_cast<std::size_t>(d)];
  const std::int64_t pair = interleaved ? d / 2 : d % pairs;
  const bool second = interleaved ? d % 2 == 1 : d >= pairs;
  const std::int64_t first_element = interleaved ? 2 * pair : pair;
  const std::int64_t second_element = interleaved ? 2 * pair + 1 : pair + pairs;
  const std::complex<double> product =
      std::complex(head[static_cast<std::size_t>(first_element)],
                   head[static_cast<std::size_t>(second_element)]) *
      std::polar(1.0, angle(position, pair));
  return second ? product.imag() : product.real();
}

/// The head of an fp32 operand [batch, seqlen, heads, headdim] that add() made.
std::vector<double> head_of(OracleCase& test, const char* name, std::int64_t heads,
                            std::array<std::int64_t, 3> index) {
  const std::int64_t seqlen = test.spec(name).shape[1];
  std::vector<double> values;
  for (std::int64_t d = 0; d < kHeaddim; ++d) {
    const std::size_t flat = at(seqlen, heads, {index[0], index[1], index[2], d});
    values.push_back(static_cast<double>(test.value(name, static_cast<std::int64_t>(flat))));
  }
  return values;
}

TEST(ReferenceAppend, TokensGoToTheEndOfEachSequence) {
  OracleCase test = append_case(Pass::kAppend);
  test.remove("q");
  const OracleResult result = test.run();
  ASSERT_EQ(result.k_cache.size(), kBatch * kCapacity * kHeadsK * kHeaddim);
  EXPECT_TRUE(result.q_rotated.empty());
  EXPECT_TRUE(result.out.empty());
  for (std::int64_t b = 0; b < kBatch; ++b) {
    const std::int64_t used = kUsed[static_cast<std::size_t>(b)];
    for (std::int64_t token = 0; token < kCapacity; ++token) {
      for (std::int64_t h = 0; h < kHeadsK; ++h) {
        for (std::int64_t d = 0; d < kHeaddim; ++d) {
          const std::size_t flat = at(kCapacity, kHeadsK, {b, token, h, d});
          if (token >= used + kNew) {
            ASSERT_TRUE(std::isnan(result.k_cache[flat]) && std::isnan(result.v_cache[flat]));
            continue;
          }
          const bool is_new = token >= used;
          const std::int64_t row = is_new ? token - used : token;
          const auto expected = [&](const char* cache, const char* fresh) {
            return head_of(test, is_new ? fresh : cache, kHeadsK,
                           {b, row, h})[static_cast<std::size_t>(d)];
          };
          ASSERT_EQ(result.k_cache[flat], expected("k", "k_new")) << b << ' ' << token;
          ASSERT_EQ(result.v_cache[flat], expected("v", "v_new")) << b << ' ' << token;
        }
      }
    }
  }
}

TEST(ReferenceAppend, TheCallersTensorsStayAsTheyAre) {
  for (const Pass pass : {Pass::kForward, Pass::kAppend}) {
    OracleCase test = append_case(pass);
    if (pass == Pass::kAppend) test.remove("q");
    const auto bytes_of = [&](const void* data) {
      const auto* begin = static_cast<const std::byte*>(data);
      return std::vector<std::byte>(begin, begin + kBatch * kCapacity * kHeadsK * kHeaddim * 4);
    };
    const std::vector<std::byte> k = bytes_of(test.tensors.k);
    const std::vector<std::byte> v = bytes_of(test.tensors.v);
    (void)test.run();
    EXPECT_EQ(bytes_of(test.tensors.k), k);
    EXPECT_EQ(bytes_of(test.tensors.v), v);
  }
}

TEST(ReferenceAppend, KeysTurnAtTheirPositionsInBothLayouts) {
  for (const bool interleaved : {false, true}) {
    for (const std::int64_t pairs : {1, 2, 3}) {
      OracleCase test = append_case(Pass::kAppend);
      test.remove("q");
      add_rotary(test, pairs);
      test.problem.rotary_interleaved = interleaved;
      test.add_ints("leftpad_k", {1, 0});  // positions count the padding
      const OracleResult result = test.run();
      for (std::int64_t b = 0; b < kBatch; ++b) {
        for (std::int64_t i = 0; i < kNew; ++i) {
          const std::int64_t position = kUsed[static_cast<std::size_t>(b)] + i;
          for (std::int64_t h = 0; h < kHeadsK; ++h) {
            const std::vector<double> k_new = head_of(test, "k_new", kHeadsK, {b, i, h});
            const std::vector<double> v_new = head_of(test, "v_new", kHeadsK, {b, i, h});
            for (std::int64_t d = 0; d < kHeaddim; ++d) {
              const std::size_t flat = at(kCapacity, kHeadsK, {b, position, h, d});
              ASSERT_NEAR(result.k_cache[flat], turned(k_new, d, position, pairs, interleaved),
                          2e-7)
                  << "pairs " << pairs << " interleaved " << interleaved;
              ASSERT_EQ(result.v_cache[flat], v_new[static_cast<std::size_t>(d)]);
            }
          }
        }
      }
    }
  }
}

TEST(ReferenceAppend, QueriesTurnAtTheirTokensUnderAMaskAndAtTheFirstNewOneWithout) {
  struct MaskOptions {
    bool causal;
    std::int64_t left, right;
    bool advances;
  };
  const std::vector<MaskOptions> options{
      {false, -1, -1, false}, {true, -1, -1, true}, {false, 2, -1, true}, {false, -1, 1, true}};
  for (const MaskOptions& mask : options) {
    for (const bool interleaved : {false, true}) {
      OracleCase test = append_case(Pass::kAppend);
      add_rotary(test, 2);
      test.want("q_rotated", {kBatch, kNew, kHeadsQ, kHeaddim});
      test.problem.rotary_interleaved = interleaved;
      test.problem.causal = mask.causal;
      test.problem.window_size_left = mask.left;
      test.problem.window_size_right = mask.right;
      const OracleResult result = test.run();
      for (std::int64_t b = 0; b < kBatch; ++b) {
        for (std::int64_t i = 0; i < kNew; ++i) {
          const std::int64_t position =
              kUsed[static_cast<std::size_t>(b)] + (mask.advances ? i : 0);
          for (std::int64_t h = 0; h < kHeadsQ; ++h) {
            const std::vector<double> q = head_of(test, "q", kHeadsQ, {b, i, h});
            for (std::int64_t d = 0; d < kHeaddim; ++d) {
              ASSERT_NEAR(result.q_rotated[at(kNew, kHeadsQ, {b, i, h, d})],
                          turned(q, d, position, 2, interleaved), 1e-6)
                  << "row " << i << " causal " << mask.causal;
            }
          }
        }
      }
    }
  }
}

/// The same attention over a cache that holds the appended tokens already, and rotated queries.
void expect_attends_over(OracleCase& test) {
  const OracleResult result = test.run();
  OracleCase append;
  append.problem = test.problem;
  append.problem.pass = Pass::kAppend;
  append.tensors = test.tensors;
  for (const char* name : {"out", "lse", "sinks"}) append.remove(name);
  const bool rotary = test.spec("rotary_cos").present();
  if (rotary) {
    append.want("q_rotated", {kBatch, kNew, kHeadsQ, kHeaddim});
  } else {
    append.remove("q");
  }
  const OracleResult after = append.run();
  EXPECT_EQ(after.k_cache.size(), result.k_cache.size());

  OracleCase concatenated;
  concatenated.problem = test.problem;
  concatenated.tensors = test.tensors;
  for (const char* name : {"k_new", "v_new", "rotary_cos", "rotary_sin"}) {
    concatenated.remove(name);
  }
  const TensorSpec& k = test.spec("k");
  const Shape cache_shape(k.shape.begin(), k.shape.begin() + k.rank);
  concatenated.add("k", cache_shape, list(after.k_cache));
  concatenated.add("v", cache_shape, list(after.v_cache));
  if (rotary) concatenated.add("q", {kBatch, kNew, kHeadsQ, kHeaddim}, list(after.q_rotated));
  concatenated.add_ints("seqused_k",
                        {kUsed[0] + std::int32_t{kNew}, kUsed[1] + std::int32_t{kNew}});
  const OracleResult expected = concatenated.run();
  // The rotated values were rounded to fp32 on their way through the test.
  expect_values(result.out, expected.out, rotary ? 2e-6 : 0);
  expect_values(result.lse, expected.lse, rotary ? 2e-6 : 0);
}

TEST(ReferenceAppend, AttentionSeesTheAppendedTokens) {
  for (const bool causal : {false, true}) {
    for (const bool rotary : {false, true}) {
      for (const bool leftpad : {false, true}) {
        OracleCase test = append_case(Pass::kForward);
        test.problem.causal = causal;
        test.add("sinks", {kHeadsQ}, constant(0.5));
        if (rotary) add_rotary(test, 3);
        if (leftpad) test.add_ints("leftpad_k", {2, 3});  // 3: past what was cached
        SCOPED_TRACE(to_string(test.problem));
        expect_attends_over(test);
      }
    }
  }
}

/// A paged cache: pages of 2, in an order of its own.
OracleCase paged_append_case() {
  OracleCase test = append_case(Pass::kForward);
  test.add_ints("block_table", {kBatch, 4}, {6, 1, 3, 7, 0, 4, 2, -1});
  test.add("k", {8, 2, kHeadsK, kHeaddim}, place(-2));
  test.add("v", {8, 2, kHeadsK, kHeaddim}, place(1));
  return test;
}

TEST(ReferenceAppend, PagesAndCacheRowsAreFollowed) {
  OracleCase paged = paged_append_case();
  expect_attends_over(paged);
  const OracleResult pages = paged.run();
  // Sequence 0 appends tokens 5..7: slot 1 of page 3, then page 7. Sequence 1, tokens 2..4: page 4,
  // then slot 0 of page 2.
  const std::array<std::array<std::int64_t, 4>, 6> places{
      {{0, 0, 3, 1}, {0, 1, 7, 0}, {0, 2, 7, 1}, {1, 0, 4, 0}, {1, 1, 4, 1}, {1, 2, 2, 0}}};
  for (const auto& [b, i, page, slot] : places) {
    for (std::int64_t d = 0; d < kHeaddim; ++d) {
      EXPECT_EQ(pages.v_cache[at(2, kHeadsK, {page, slot, 1, d})],
                head_of(paged, "v_new", kHeadsK, {b, i, 1})[static_cast<std::size_t>(d)]);
    }
  }

  OracleCase rows = append_case(Pass::kForward);
  rows.add_ints("cache_batch_idx", {2, 0});
  rows.add("k", {3, kCapacity, kHeadsK, kHeaddim}, place(-2));
  rows.add("v", {3, kCapacity, kHeadsK, kHeaddim}, place(1));
  expect_attends_over(rows);
  const OracleResult result = rows.run();
  for (std::int64_t d = 0; d < kHeaddim; ++d) {
    EXPECT_EQ(result.k_cache[at(kCapacity, kHeadsK, {2, kUsed[0], 0, d})],
              head_of(rows, "k_new", kHeadsK, {0, 0, 0})[static_cast<std::size_t>(d)]);
    EXPECT_EQ(result.k_cache[at(kCapacity, kHeadsK, {0, kUsed[1], 0, d})],
              head_of(rows, "k_new", kHeadsK, {1, 0, 0})[static_cast<std::size_t>(d)]);
  }
}

TEST(ReferenceAppend, MoreTokensThanRoomAreRefused) {
  OracleCase test = append_case(Pass::kForward);
  test.add_ints("seqused_k", {6, 2});
  EXPECT_NE(test.error().find("seqused_k[0] 6"), std::string::npos) << test.error();
}

}  // namespace
}  // namespace foveal::test
