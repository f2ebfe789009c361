// Softcap, ALiBi and rotary pairs against their closed forms.
#include "algorithm/score.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <set>

#include "algorithm/rotary.hpp"

namespace foveal::test {
namespace {

TEST(AlgorithmScore, SoftcapBendsAndZeroIsOff) {
  EXPECT_EQ(algorithm::cap_score(1234.5f, 0.0f), 1234.5f);
  EXPECT_NEAR(algorithm::cap_score(7.0f, 2.0f), 2 * std::tanh(3.5), 1e-6);
  EXPECT_NEAR(algorithm::cap_score(-1e6f, 30.0f), -30.0, 1e-5);
}

TEST(AlgorithmScore, SoftcapDerivativeIsThatOfTheCap) {
  EXPECT_EQ(algorithm::cap_derivative(5.0f, 0.0f), 1.0f);
  for (const double softcap : {0.5, 2.0, 30.0}) {
    for (const double score : {-4.0, -0.1, 0.0, 1.0, 3.0}) {
      constexpr double kStep = 1e-5;
      const auto cap = [&](double x) { return softcap * std::tanh(x / softcap); };
      const double expected = (cap(score + kStep) - cap(score - kStep)) / (2 * kStep);
      const float capped =
          algorithm::cap_score(static_cast<float>(score), static_cast<float>(softcap));
      EXPECT_NEAR(algorithm::cap_derivative(capped, static_cast<float>(softcap)), expected, 2e-6)
          << "softcap " << softcap << " score " << score;
    }
  }
}

TEST(AlgorithmScore, AlibiFallsOffOnBothSidesOfTheDiagonal) {
  // seqlen_q 2, seqlen_k 5: row 0 sits at key 3.
  EXPECT_EQ(algorithm::alibi_bias(0.5f, 0, 3, 3), 0.0f);
  EXPECT_EQ(algorithm::alibi_bias(0.5f, 0, 3, 1), -1.0f);
  EXPECT_EQ(algorithm::alibi_bias(0.5f, 0, 3, 4), -0.5f);
  EXPECT_EQ(algorithm::alibi_bias(0.5f, 1, 3, 0), -2.0f);
}

TEST(AlgorithmRotary, PairsCoverTheRotaryDimensionOnce) {
  for (const bool interleaved : {false, true}) {
    for (std::int64_t rotary_dim = 2; rotary_dim <= 32; rotary_dim += 2) {
      std::set<std::int64_t> elements;
      for (std::int64_t p = 0; p < rotary_dim / 2; ++p) {
        const algorithm::RotaryPair pair = algorithm::rotary_pair(p, rotary_dim, interleaved);
        EXPECT_EQ(pair.second - pair.first, interleaved ? 1 : rotary_dim / 2);
        elements.insert({pair.first, pair.second});
      }
      EXPECT_EQ(static_cast<std::int64_t>(elements.size()), rotary_dim);
      EXPECT_EQ(*elements.begin(), 0);
      EXPECT_EQ(*elements.rbegin(), rotary_dim - 1);
    }
  }
}

TEST(AlgorithmRotary, ATurnIsAComplexProduct) {
  for (const double angle : {0.0, 0.3, 1.5707963, 3.0, -2.0}) {
    const std::complex<double> expected = std::complex(0.6, -1.7) * std::polar(1.0, angle);
    const algorithm::RotatedPair turned = algorithm::rotate(
        0.6f, -1.7f, static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle)));
    EXPECT_NEAR(turned.first, expected.real(), 1e-6);
    EXPECT_NEAR(turned.second, expected.imag(), 1e-6);
  }
}

TEST(AlgorithmRotary, PositionsGoOnFromTheCache) {
  EXPECT_EQ(algorithm::rotary_position(10, 3, true), 13);
  EXPECT_EQ(algorithm::rotary_position(10, 3, false), 10);
}

}  // namespace
}  // namespace foveal::test
