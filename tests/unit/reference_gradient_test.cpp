// Every gradient against differences of the forward: with loss = sum(out * dout) + sum(lse * dlse),
// dq, dk, dv, dbias and dsinks are the loss' derivatives, element by element. Inputs and steps are
// multiples of 2^-8, exact in fp32, and the oracle is in double, so that the five-point formula's
// own error (h^4) is the only one.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "unit/reference_case.hpp"

namespace foveal::test {
namespace {

constexpr double kStep = 1.0 / 256;
constexpr double kNegativeInfinity = -std::numeric_limits<double>::infinity();

struct Gradient {
  std::string_view operand;
  std::vector<double> OracleResult::*values;
};
constexpr std::array<Gradient, 5> kGradients{{{"q", &OracleResult::dq},
                                              {"k", &OracleResult::dk},
                                              {"v", &OracleResult::dv},
                                              {"bias", &OracleResult::dbias},
                                              {"sinks", &OracleResult::dsinks}}};

/// The forward pass of a backward case.
AttentionProblem forward_of(const OracleCase& test) {
  AttentionProblem problem = test.problem;
  problem.pass = Pass::kForward;
  for (TensorSpec AttentionProblem::*spec :
       {&AttentionProblem::dout, &AttentionProblem::dlse, &AttentionProblem::dq,
        &AttentionProblem::dk, &AttentionProblem::dv, &AttentionProblem::dbias,
        &AttentionProblem::dsinks}) {
    problem.*spec = {};
  }
  return problem;
}

double loss(OracleCase& test, const AttentionProblem& forward) {
  const Result<OracleResult> result = oracle(forward, test.tensors, one_thread());
  if (!result) {
    ADD_FAILURE() << result.status().message();
    return 0;
  }
  double sum = 0;
  for (std::size_t i = 0; i < result->out.size(); ++i) {
    sum += result->out[i] * static_cast<double>(test.value("dout", static_cast<std::int64_t>(i)));
  }
  for (std::size_t i = 0; test.problem.dlse.present() && i < result->lse.size(); ++i) {
    if (result->lse[i] == kNegativeInfinity) continue;  // such a row has no gradient
    sum += result->lse[i] * static_cast<double>(test.value("dlse", static_cast<std::int64_t>(i)));
  }
  return sum;
}

/// d loss / d element.
double difference(OracleCase& test, const AttentionProblem& forward, std::string_view operand,
                  std::int64_t flat) {
  float& element = test.value(operand, flat);
  const float original = element;
  const auto loss_at = [&](double steps) {
    element = original + static_cast<float>(steps * kStep);
    return loss(test, forward);
  };
  const double result =
      (8 * (loss_at(1) - loss_at(-1)) - (loss_at(2) - loss_at(-2))) / (12 * kStep);
  element = original;
  return result;
}

void expect_gradients(OracleCase& test) {
  const OracleResult result = test.run();
  const AttentionProblem forward = forward_of(test);
  double largest = 0;
  for (const Gradient& gradient : kGradients) {
    const std::vector<double>& values = result.*gradient.values;
    const TensorSpec& spec = test.spec(gradient.operand);
    if (!spec.present() || spec.dtype == DType::kBool) continue;
    ASSERT_EQ(static_cast<std::int64_t>(values.size()), spec.numel()) << "d" << gradient.operand;
    for (std::int64_t flat = 0; flat < spec.numel(); ++flat) {
      const double value = values[static_cast<std::size_t>(flat)];
      if (std::isinf(test.value(gradient.operand, flat))) {
        ASSERT_EQ(value, 0) << "d" << gradient.operand << "[" << flat << "]";
        continue;
      }
      const double expected = difference(test, forward, gradient.operand, flat);
      largest = std::fmax(largest, std::fabs(expected));
      ASSERT_NEAR(value, expected, 2e-7 * (1 + std::fabs(expected)))
          << "d" << gradient.operand << "[" << flat << "]";
    }
  }
  EXPECT_GT(largest, 0.05) << "gradients of nothing show nothing";
}

/// Two sequences, three rows, five keys, four heads on two.
OracleCase gradient_case(Random& random) {
  OracleCase test = dense_case(
      {.batch = 2, .seqlen_q = 3, .seqlen_k = 5, .nheads_q = 4, .nheads_k = 2, .headdim = 3},
      normal(random), normal(random), normal(random));
  make_backward(test, normal(random));
  return test;
}

/// One feature, added to the case.
struct Feature {
  const char* name;
  std::function<void(OracleCase&, Random&)> add;
};

void add_bias(OracleCase& test, const Shape& shape, const Fill& fill) {
  test.add("bias", shape, fill);
  test.want("dbias", shape);
}
void add_sinks(OracleCase& test, Random& random) {
  test.add("sinks", {4}, normal(random));
  test.want("dsinks", {4});
}
void add_dlse(OracleCase& test, Random& random) { test.add("dlse", {2, 4, 3}, normal(random)); }
void add_dropout(OracleCase& test, Random& random) {
  test.problem.dropout_p = 0.3f;
  test.tensors.dropout_seed = random.bits();
  test.tensors.dropout_offset = random.bits();
}
void add_alibi(OracleCase& test, Random& random) { test.add("alibi_slopes", {4}, normal(random)); }

const std::vector<Feature>& features() {
  static const std::vector<Feature> list_of_features{
      {"plain", [](OracleCase&, Random&) {}},
      {"scale", [](OracleCase& test, Random&) { test.problem.softmax_scale = -0.75f; }},
      {"causal", [](OracleCase& test, Random&) { test.problem.causal = true; }},
      {"window",
       [](OracleCase& test, Random&) {
         test.problem.window_size_left = 1;
         test.problem.window_size_right = 0;
       }},
      {"softcap", [](OracleCase& test, Random&) { test.problem.softcap = 1.5f; }},
      {"sinks", add_sinks},
      {"dlse", add_dlse},
      {"dropout", add_dropout},
      {"alibi", add_alibi},
      {"bias",
       [](OracleCase& test, Random& random) {
         add_bias(test, {2, 4, 3, 5}, normal(random));
       }},
      {"bias over batch",
       [](OracleCase& test, Random& random) {
         add_bias(test, {1, 4, 3, 5}, normal(random));
       }},
      {"bias over heads",
       [](OracleCase& test, Random& random) {
         add_bias(test, {2, 1, 3, 5}, normal(random));
       }},
      {"bias over rows",
       [](OracleCase& test, Random& random) {
         add_bias(test, {2, 4, 1, 5}, normal(random));
       }},
      {"bias over columns and dlse",
       [](OracleCase& test, Random& random) {
         // Without dlse the softmax doesn't notice a bias that shifts whole rows.
         add_bias(test, {2, 4, 3, 1}, normal(random));
         add_dlse(test, random);
       }},
      {"bias over all but columns",
       [](OracleCase& test, Random& random) {
         add_bias(test, {1, 1, 1, 5}, normal(random));
       }},
      {"bias with hidden keys",
       [](OracleCase& test, Random& random) {
         const Fill fill = normal(random);
         add_bias(test, {2, 4, 3, 5}, [fill](const Element& element) {
           const bool row_is_blind = element.flat / 5 == 7;
           return row_is_blind || element.flat % 4 == 1 ? kNegativeInfinity : fill(element);
         });
       }},
      {"mask",
       [](OracleCase& test, Random& random) {
         test.add(
             "bias", {2, 1, 3, 5}, [&](const Element&) { return random.chance(0.6) ? 1.0 : 0.0; },
             DType::kBool);
       }},
      {"lengths",
       [](OracleCase& test, Random&) {
         test.add_ints("seqused_q", {2, 3});
         test.add_ints("seqused_k", {4, 3});
         test.add_ints("leftpad_k", {1, 0});
       }},
  };
  return list_of_features;
}

TEST(ReferenceGradient, EachFeatureMatchesDifferences) {
  for (const Feature& feature : features()) {
    SCOPED_TRACE(feature.name);
    Random random(17);
    OracleCase test = gradient_case(random);
    feature.add(test, random);
    expect_gradients(test);
  }
}

TEST(ReferenceGradient, AllFeaturesTogetherMatchDifferences) {
  for (const bool packed : {false, true}) {
    Random random(18);
    OracleCase test =
        packed ? packed_case({2, 0, 3}, {4, 1, 5}, {.nheads_q = 4, .nheads_k = 2, .headdim = 3},
                             {normal(random), normal(random), normal(random)})
               : gradient_case(random);
    if (packed) {
      make_backward(test, normal(random));
      test.add("dlse", {4, 5}, normal(random));
      test.add_ints("seqused_q", {2, 0, 2});
      test.add_ints("seqused_k", {3, 1, 5});
      test.add_ints("leftpad_k", {1, 0, 0});
    } else {
      add_bias(test, {2, 1, 3, 5}, normal(random));
      add_dlse(test, random);
      test.add_ints("seqused_q", {2, 3});
      test.add_ints("seqused_k", {5, 4});
      test.add_ints("leftpad_k", {1, 0});
    }
    add_sinks(test, random);
    add_dropout(test, random);
    add_alibi(test, random);
    test.problem.causal = true;
    test.problem.window_size_left = 2;
    test.problem.softcap = 3.0f;
    test.problem.softmax_scale = 0.4f;
    SCOPED_TRACE(to_string(test.problem));
    expect_gradients(test);
  }
}

TEST(ReferenceGradient, DensePackedAndHeaddimVMix) {
  // q dense with k packed, and v narrower than k.
  Random random(19);
  OracleCase test;
  test.add("q", {2, 3, 2, 4}, normal(random));
  test.add_ints("cu_seqlens_k", {0, 2, 6});
  test.add("k", {6, 1, 4}, normal(random));
  test.add("v", {6, 1, 2}, normal(random));
  test.want("out", {2, 3, 2, 2});
  test.want("lse", {2, 2, 3});
  make_backward(test, normal(random));
  test.problem.causal = true;
  expect_gradients(test);

  // q packed with k dense.
  OracleCase other;
  other.add_ints("cu_seqlens_q", {0, 1, 5});
  other.add("q", {5, 2, 4}, normal(random));
  other.add("k", {2, 3, 1, 4}, normal(random));
  other.add("v", {2, 3, 1, 5}, normal(random));
  other.want("out", {5, 2, 5});
  other.want("lse", {2, 5});
  make_backward(other, normal(random));
  other.problem.causal = true;
  expect_gradients(other);
}

// Everything dropped: the weights leave no value, and nothing flows back but through the lse.
TEST(ReferenceGradient, DropoutOfOneDropsAll) {
  Random random(20);
  OracleCase test = gradient_case(random);
  test.problem.dropout_p = 1.0f;
  const OracleResult result = test.run();
  for (const std::vector<double>* gradient : {&result.dq, &result.dk, &result.dv}) {
    for (const double value : *gradient) ASSERT_EQ(value, 0);
  }
  add_dlse(test, random);
  expect_gradients(test);
}

}  // namespace
}  // namespace foveal::test
