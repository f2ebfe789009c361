// softcap on Hopper: where polynomials stand in for tanh, and how that is told of sums of weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "cuda/hopper/fwd/score_cap.hpp"

namespace foveal::cuda {
namespace {

using hopper::CapPolynomial;
using hopper::ScoreCap;

constexpr double kLog2E = 1.4426950408889634;
/// Of a score in natural units, whatever the cap.
constexpr double kMaxError = 8e-6;

ScoreCap score_cap(double scale, double softcap) {
  return hopper::score_cap(static_cast<float>(scale), static_cast<float>(softcap));
}

double exact_score(double x, double scale, double softcap) {
  return softcap * std::tanh(scale * x / softcap);
}

/// The score of q.k = x in natural units, with double arithmetic on the device's coefficients.
template <std::size_t kTerms>
double score(const CapPolynomial<kTerms>& polynomial, double x) {
  double slope = 0;
  for (std::size_t i = kTerms; i > 0; --i) {
    slope = slope * x * x + static_cast<double>(polynomial.terms[i - 1]);
  }
  return slope * x / kLog2E;
}

/// As the device computes it, in fp32.
template <std::size_t kTerms>
double device_score(const CapPolynomial<kTerms>& polynomial, float x) {
  const float square = x * x;
  float slope = polynomial.terms[kTerms - 1];
  for (std::size_t i = kTerms - 1; i > 0; --i) {
    slope = std::fma(slope, square, polynomial.terms[i - 1]);
  }
  return static_cast<double>(slope) * static_cast<double>(x) / kLog2E;
}

/// Roundings of fp32, of which coefficients and results have a few.
double roundings(double value) { return 0x1p-22 * std::fabs(value); }

template <std::size_t kTerms>
void expect_tanh(const CapPolynomial<kTerms>& polynomial, double scale, double softcap) {
  const double limit = static_cast<double>(polynomial.limit);
  double before = 0;
  for (int i = 1; i <= 4000; ++i) {
    const double x = limit * i / 1000;  // to four times the limit
    const double got = score(polynomial, x);
    EXPECT_GT(got, before) << "not monotone at " << x;
    before = got;
    if (i > 1000) continue;  // past the limit
    const double want = exact_score(x, scale, softcap);
    EXPECT_NEAR(got, want, kMaxError + roundings(want));
    const auto fp32 = static_cast<float>(x);
    const double exact = exact_score(static_cast<double>(fp32), scale, softcap);
    EXPECT_NEAR(device_score(polynomial, fp32), exact, kMaxError + 2 * roundings(exact));
    EXPECT_EQ(device_score(polynomial, -fp32), -device_score(polynomial, fp32));
  }
}

TEST(HopperScoreCap, PolynomialsAreTanhUpToTheirLimits) {
  for (const double softcap : {0.5, 3.0, 7.0, 15.0, 30.0, 50.0, 100.0, 1000.0}) {
    for (const double scale : {0.01, 0.0883883, 0.125, 1.0}) {
      SCOPED_TRACE(testing::Message() << "softcap " << softcap << " scale " << scale);
      const ScoreCap cap = score_cap(scale, softcap);
      expect_tanh(cap.quintic, scale, softcap);
      const bool tiny = softcap / scale > 2e4;  // its last coefficient then is below fp32's normals
      if (!tiny) expect_tanh(cap.ninth, scale, softcap);
      EXPECT_TRUE(!tiny || !cap.ninth.is_usable());
      EXPECT_GT(static_cast<double>(cap.quintic.limit) * scale, 0.15 * softcap);
      EXPECT_GT(cap.ninth.limit, cap.quintic.limit);
    }
  }
}

/// A lane's sum of weights e^score: right where it is between the polynomial's bounds.
template <std::size_t kTerms>
void expect_right_sum(const CapPolynomial<kTerms>& polynomial, const std::vector<double>& scores,
                      double scale, double softcap) {
  double got = 0;
  double want = 0;
  for (const double uncapped : scores) {
    got += std::exp(score(polynomial, uncapped / scale));
    want += std::exp(exact_score(uncapped / scale, scale, softcap));
  }
  const bool passes = got >= static_cast<double>(polynomial.min_sum) &&
                      got <= static_cast<double>(polynomial.max_sum);
  if (passes) {
    EXPECT_NEAR(got / want, 1, 2 * kMaxError + roundings(softcap)) << scores[0];
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  if (largest > 1.001 * static_cast<double>(polynomial.limit) * scale) {
    EXPECT_FALSE(passes) << largest;
  }
}

template <std::size_t kTerms>
void expect_right_sums(const CapPolynomial<kTerms>& polynomial, double scale, double softcap) {
  if (!polynomial.is_usable()) return;
  const double limit = static_cast<double>(polynomial.limit) * scale;
  for (int i = -100; i <= 100; ++i) {
    for (int j = i; j <= 100; ++j) {  // one score, and all others below it
      std::vector<double> scores(hopper::kMaxLaneKeys, limit * i / 25);
      scores[0] = limit * j / 25;
      expect_right_sum(polynomial, scores, scale, softcap);
    }
  }
}

TEST(HopperScoreCap, SumsTellWhetherPolynomialsHold) {
  constexpr double kScale = 0.125;
  for (const double softcap : {10.0, 15.0, 17.0, 20.0, 30.0, 50.0, 80.0}) {
    SCOPED_TRACE(testing::Message() << "softcap " << softcap);
    const ScoreCap cap = score_cap(kScale, softcap);
    expect_right_sums(cap.quintic, kScale, softcap);
    expect_right_sums(cap.ninth, kScale, softcap);
  }
}

TEST(HopperScoreCap, PolynomialsPassCommonScores) {
  for (const double softcap : {20.0, 30.0, 50.0, 1000.0}) {
    const ScoreCap cap = score_cap(0.125, softcap);
    EXPECT_TRUE(cap.quintic.is_usable() && cap.ninth.is_usable()) << softcap;
    for (const double sum :
         {hopper::kMaxLaneKeys * std::exp(-1.0), hopper::kMaxLaneKeys * 1.0, std::exp(6.4)}) {
      EXPECT_TRUE(sum > static_cast<double>(cap.quintic.min_sum) &&
                  sum < static_cast<double>(cap.quintic.max_sum))
          << softcap << " " << sum;
    }
  }
  EXPECT_FALSE(score_cap(0.125, 16).quintic.is_usable());
  EXPECT_TRUE(score_cap(0.125, 16).ninth.is_usable());
  EXPECT_FALSE(score_cap(0.125, 7).ninth.is_usable()) << "weights of the lowest scores count";
}

/// The device's formula for any score: the special-function unit is off by 2^-22 of the
/// exponential, and 2^-23 of the reciprocal, to either side.
TEST(HopperScoreCap, TanhByOneExponentialIsOffByARoundingOfTheCap) {
  for (const double softcap : {0.5, 7.0, 50.0}) {
    const ScoreCap cap = score_cap(1.0, softcap);
    for (int i = -2000; i <= 2000; ++i) {
      const auto x = static_cast<float>(softcap * i / 100);
      for (const double side : {-1.0, 1.0}) {
        const double exponent = static_cast<double>(x * cap.double_factor_log2);
        const auto power = static_cast<float>(std::exp2(exponent) * (1 + side * 0x1p-22));
        const double sum = static_cast<double>(power + 1.0f);
        const auto reciprocal = static_cast<float>(1 / sum * (1 - side * 0x1p-23));
        const float got = std::fma(-cap.double_max_log2, reciprocal, cap.max_log2);
        EXPECT_NEAR(static_cast<double>(got) / kLog2E,
                    exact_score(static_cast<double>(x), 1.0, softcap), softcap * 0x1p-21);
      }
    }
  }
}

TEST(HopperScoreCap, NoPolynomialWhereCoefficientsWouldLeaveFp32) {
  for (const ScoreCap& cap : {score_cap(0.0, 30.0), score_cap(1e30, 1e-3),
                              score_cap(std::numeric_limits<double>::quiet_NaN(), 30.0)}) {
    EXPECT_FALSE(cap.quintic.is_usable() || cap.ninth.is_usable());
  }
  const ScoreCap negative = score_cap(-0.125, 30.0);
  EXPECT_NEAR(score(negative.quintic, 8.0), -exact_score(8.0, 0.125, 30.0), kMaxError);
}

}  // namespace
}  // namespace foveal::cuda
