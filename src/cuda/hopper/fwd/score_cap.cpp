#include "cuda/hopper/fwd/score_cap.hpp"

#include <array>
#include <cmath>
#include <cstddef>

#include "core/integer.hpp"

namespace foveal::cuda::hopper {
namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr double kPi = 3.141592653589793;

/// Of a score by a polynomial, absolute, in natural units; and of the sum of a lane's weights,
/// relative, by scores that are too low for it.
constexpr double kMaxError = 8e-6;
/// Beyond it tanh / z is no longer smooth enough for a few terms.
constexpr double kMaxLimit = 1.0;
/// A sum that a lane's weights reach unless most scores are well below 0: without it a polynomial
/// is not worth a try.
constexpr double kCommonSum = kMaxLaneKeys / 4.0;

/// tanh(z) = terms[0] z + terms[1] z^3 + ..., up to |z| = limit.
template <std::size_t kTerms>
struct TanhPolynomial {
  double limit;
  std::array<double, kTerms> terms{};

  double operator()(double z) const {
    double slope = 0;
    for (std::size_t i = kTerms; i > 0; --i) slope = slope * z * z + terms[i - 1];
    return slope * z;
  }
};

/// The error of the best odd polynomial up to z = 1: the first term of tanh's series that it has
/// not, over that of Chebyshev's polynomial of the same degree.
template <std::size_t kTerms>
constexpr double kErrorAt1 = 0;
template <>
constexpr double kErrorAt1<3> = 17.0 / 315 / 64;
template <>
constexpr double kErrorAt1<5> = 1382.0 / 155925 / 1024;

/// Interpolates tanh(z) / z in u = z^2, at the zeros of Chebyshev's polynomial: Newton's divided
/// differences, then powers of u.
template <std::size_t kTerms>
TanhPolynomial<kTerms> fit_tanh(double limit) {
  TanhPolynomial<kTerms> polynomial{limit, {}};
  std::array<double, kTerms> u;
  std::array<double, kTerms> newton;
  for (std::size_t i = 0; i < kTerms; ++i) {
    const double z = limit * std::cos(static_cast<double>(2 * i + 1) * kPi / (4 * kTerms + 2));
    u[i] = z * z;
    newton[i] = std::tanh(z) / z;
  }
  for (std::size_t order = 1; order < kTerms; ++order) {
    for (std::size_t i = kTerms - 1; i >= order; --i) {
      newton[i] = (newton[i] - newton[i - 1]) / (u[i] - u[i - order]);
    }
  }
  std::array<double, kTerms>& terms = polynomial.terms;
  for (std::size_t i = kTerms; i > 0; --i) {  // terms = terms (u - u_i) + newton_i
    for (std::size_t power = kTerms - 1; power > 0; --power) {
      terms[power] = terms[power - 1] - terms[power] * u[i - 1];
    }
    terms[0] = newton[i - 1] - terms[0] * u[i - 1];
  }
  return polynomial;
}

/// How far a weight e^score may be off where the score is below -softcap * tanh(limit). The
/// polynomial is below tanh there, and ever farther.
template <std::size_t kTerms>
double missed_weight(const TanhPolynomial<kTerms>& polynomial, double softcap) {
  constexpr std::array kShares = {1.0, 1.1, 1.2, 1.35, 1.5, 1.7, 2.0, 2.4, 3.0, 4.0};
  double missed = 0;
  for (std::size_t i = 0; i < kShares.size(); ++i) {
    const double weight = std::exp(-softcap * std::tanh(kShares[i] * polynomial.limit));
    double gap = 1;
    if (i + 1 < kShares.size()) {
      const double end = kShares[i + 1] * polynomial.limit;
      gap = min_of(1.0, softcap * (polynomial(end) - std::tanh(end)));
    }
    missed = max_of(missed, weight * gap);
  }
  return missed;
}

template <std::size_t kTerms>
CapPolynomial<kTerms> cap_polynomial(double scale, double softcap) {
  const double limit = min_of(
      kMaxLimit, std::pow(kMaxError / (softcap * kErrorAt1<kTerms>), 1.0 / (2 * kTerms + 1)));
  const TanhPolynomial<kTerms> tanh = fit_tanh<kTerms>(limit);
  const double factor = scale / softcap;
  CapPolynomial<kTerms> polynomial;
  polynomial.limit = static_cast<float>(limit / std::fabs(factor));
  double power = scale * kLog2E;
  bool exact = true;
  for (std::size_t i = 0; i < kTerms; ++i, power *= factor * factor) {
    polynomial.terms[i] = static_cast<float>(tanh.terms[i] * power);
    exact = exact && std::isnormal(polynomial.terms[i]);
  }
  const double min_sum = kMaxLaneKeys / kMaxError * missed_weight(tanh, softcap);
  if (!exact || !(min_sum <= kCommonSum)) return polynomial;
  polynomial.min_sum = static_cast<float>(min_sum);
  polynomial.max_sum = static_cast<float>(min_of(0x1p126, std::exp(softcap * tanh(limit))));
  return polynomial;
}

}  // namespace

ScoreCap score_cap(float softmax_scale, float softcap) {
  ScoreCap cap;
  cap.max_log2 = static_cast<float>(kLog2E * softcap);
  cap.double_max_log2 = 2 * cap.max_log2;
  cap.double_factor_log2 = static_cast<float>(2 * kLog2E * softmax_scale / softcap);
  cap.quintic = cap_polynomial<3>(softmax_scale, softcap);
  cap.ninth = cap_polynomial<5>(softmax_scale, softcap);
  return cap;
}

}  // namespace foveal::cuda::hopper
