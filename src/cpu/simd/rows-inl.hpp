// Rows of scores: maximum, exponential, tanh, scaling, dot product.

#if defined(FOVEAL_CPU_SIMD_ROWS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEAL_CPU_SIMD_ROWS_INL_HPP
#undef FOVEAL_CPU_SIMD_ROWS_INL_HPP
#else
#define FOVEAL_CPU_SIMD_ROWS_INL_HPP
#endif

#include <limits>

#include "cpu/simd/lanes-inl.hpp"
#include "cpu/tile_math.hpp"

HWY_BEFORE_NAMESPACE();
namespace foveal::cpu::simd::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

/// The larger one; `value` only where it isn't NaN. hn::Max leaves open what a NaN gives; the
/// instruction gives its second operand.
HWY_INLINE Floats larger(Floats value, Floats largest) {
  return Floats{_mm512_max_ps(value.raw, largest.raw)};
}

/// 2^n of whole n times value, to nearest even, subnormals and overflow included.
HWY_INLINE Floats scale_by_power(Floats value, Floats n) {
  return Floats{_mm512_scalef_ps(value.raw, n.raw)};
}

/// Nearest whole number.
HWY_INLINE Floats round_to_whole(Floats x) {
  return Floats{_mm512_roundscale_ps(x.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

/// Within [lowest, highest]; NaN stays.
HWY_INLINE Floats bound(Floats x, Floats lowest, Floats highest) {
  return Floats{_mm512_min_ps(highest.raw, _mm512_max_ps(lowest.raw, x.raw))};
}

#else

HWY_INLINE Floats larger(Floats value, Floats largest) {
  return hn::IfThenElse(hn::Gt(value, largest), value, largest);
}

HWY_INLINE Floats scale_by_power(Floats value, Floats n) {
  const IntTag di;
  const auto whole = hn::ConvertTo(di, n);
  const auto half = hn::ShiftRight<1>(whole);
  const auto bias = hn::Set(di, 127);
  const auto scale_a = hn::ShiftLeft<23>(hn::Add(half, bias));
  const auto scale_b = hn::ShiftLeft<23>(hn::Add(hn::Sub(whole, half), bias));
  return hn::Mul(hn::Mul(value, hn::BitCast(FloatTag(), scale_a)),
                 hn::BitCast(FloatTag(), scale_b));
}

/// For |x| < 2^22: the sum has the whole number in its low bits.
HWY_INLINE Floats round_to_whole(Floats x) {
  const Floats rounder = broadcast(0x1.8p23f);
  return hn::Sub(hn::Add(x, rounder), rounder);
}

HWY_INLINE Floats bound(Floats x, Floats lowest, Floats highest) {
  const Floats above = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);
  return hn::IfThenElse(hn::Gt(above, highest), highest, above);
}

#endif

/// exp to about 1 ulp: x = n ln 2 + r with |r| <= ln 2 / 2, and 1 + r + r^2 P(r), where P is fitted
/// to 3e-9 relative error of exp (minimax over the interval, by reweighted least squares). NaN
/// passes through.
HWY_INLINE Floats exp_lanes(Floats x) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;  // 355 / 512: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kLowest = -104.0f;  // exp is 0 from here down
  constexpr float kHighest = 89.0f;   // exp is inf from here up
  const Floats one = broadcast(1.0f);
  const Floats bounded = bound(x, broadcast(kLowest), broadcast(kHighest));
  const Floats n = round_to_whole(hn::Mul(bounded, broadcast(kLog2E)));
  const Floats high = hn::NegMulAdd(n, broadcast(kLn2High), bounded);
  const Floats r = hn::NegMulAdd(n, broadcast(kLn2Low), high);
  Floats p = hn::MulAdd(r, broadcast(0.00138145394f), broadcast(0.00836874545f));
  p = hn::MulAdd(p, r, broadcast(0.041668389f));
  p = hn::MulAdd(p, r, broadcast(0.166665211f));
  p = hn::MulAdd(p, r, broadcast(0.49999994f));
  p = hn::MulAdd(p, r, one);
  p = hn::MulAdd(p, r, one);
  return scale_by_power(p, n);
}

/// tanh: below 5/8 x + x^3 P(x^2), where P is fitted to 1e-8 relative error of tanh (minimax over
/// [0, 25/64], by reweighted least squares); above, 1 - 2 / (exp(2x) + 1), which cancels no more
/// than one bit there.
HWY_INLINE Floats tanh_lanes(Floats x) {
  constexpr float kPolynomialEnd = 0.625f;
  const Floats one = broadcast(1.0f);
  const Floats square = hn::Mul(x, x);
  Floats p = hn::MulAdd(square, broadcast(-0.00570947304f), broadcast(0.0206436422f));
  p = hn::MulAdd(p, square, broadcast(-0.053741347f));
  p = hn::MulAdd(p, square, broadcast(0.133314654f));
  p = hn::MulAdd(p, square, broadcast(-0.333332837f));
  const Floats near_zero = hn::MulAdd(hn::Mul(p, square), x, x);
  const Floats exponential = exp_lanes(hn::Add(x, x));
  const Floats quotient = hn::Sub(one, hn::Div(broadcast(2.0f), hn::Add(exponential, one)));
  return hn::IfThenElse(hn::Lt(hn::Abs(x), broadcast(kPolynomialEnd)), near_zero, quotient);
}

float row_max(const float* row, std::int64_t count) {
  Floats largest[kLaneVectors];
  for (Floats& vector : largest) vector = broadcast(-std::numeric_limits<float>::infinity());
  for (std::int64_t j = 0; j < count; j += kLane) {
#pragma GCC unroll 4
    for (std::int64_t v = 0; v < kLaneVectors; ++v) {
      largest[v] = larger(load(row + j + v * kVector), largest[v]);
    }
  }
  for (std::int64_t v = 1; v < kLaneVectors; ++v) largest[0] = larger(largest[v], largest[0]);
  return hn::GetLane(hn::MaxOfLanes(FloatTag(), largest[0]));
}

float exp_sum(float* row, std::int64_t count, float factor, float offset) {
  const Floats factors = broadcast(factor);
  const Floats subtracted = broadcast(offset);
  Floats sum[kLaneVectors];
  for (Floats& vector : sum) vector = hn::Zero(FloatTag());
  for (std::int64_t j = 0; j < count; j += kLane) {
#pragma GCC unroll 4
    for (std::int64_t v = 0; v < kLaneVectors; ++v) {
      float* at = row + j + v * kVector;
      const Floats weight = exp_lanes(hn::MulSub(load(at), factors, subtracted));
      store(weight, at);
      sum[v] = hn::Add(sum[v], weight);
    }
  }
  for (std::int64_t v = 1; v < kLaneVectors; ++v) sum[0] = hn::Add(sum[0], sum[v]);
  return horizontal_sum(sum[0]);
}

void scale(float* row, std::int64_t count, float factor) {
  const Floats factors = broadcast(factor);
  for (std::int64_t j = 0; j < count; j += kVector) store(hn::Mul(load(row + j), factors), row + j);
}

void cap(float* row, std::int64_t count, float softcap) {
  const Floats caps = broadcast(softcap);
  for (std::int64_t j = 0; j < count; j += kVector) {
    store(hn::Mul(tanh_lanes(hn::Div(load(row + j), caps)), caps), row + j);
  }
}

void score_gradients(const float* p, float delta, float* ds, std::int64_t count) {
  const Floats subtracted = broadcast(delta);
  for (std::int64_t j = 0; j < count; j += kVector) {
    store(hn::Mul(load(p + j), hn::Sub(load(ds + j), subtracted)), ds + j);
  }
}

float dot(const float* a, const float* b, std::int64_t count) {
  constexpr int kSums = 4;
  Floats sum[kSums];
  for (Floats& vector : sum) vector = hn::Zero(FloatTag());
  std::int64_t j = 0;
  for (; j + kSums * kVector <= count; j += kSums * kVector) {
#pragma GCC unroll 4
    for (int s = 0; s < kSums; ++s) {
      sum[s] = hn::MulAdd(load(a + j + s * kVector), load(b + j + s * kVector), sum[s]);
    }
  }
  for (; j + kVector <= count; j += kVector) {
    sum[0] = hn::MulAdd(load(a + j), load(b + j), sum[0]);
  }
  float total = horizontal_sum(hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3])));
  for (; j < count; ++j) total += a[j] * b[j];
  return total;
}

}  // namespace
}  // namespace foveal::cpu::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
