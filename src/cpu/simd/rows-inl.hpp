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
#else
HWY_INLINE Floats larger(Floats value, Floats largest) {
  return hn::IfThenElse(hn::Gt(value, largest), value, largest);
}
#endif

/// A number as the nearest whole one and what is left; powers of two beyond fp32's are clamped.
struct WholeAndRest {
  Floats whole;
  Floats rest;
};

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

/// Of an infinity nothing is left.
HWY_INLINE WholeAndRest split_whole(Floats x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {Floats{_mm512_roundscale_ps(x.raw, kNearest)}, Floats{_mm512_reduce_ps(x.raw, kNearest)}};
}

/// value * 2^n, to nearest even, subnormals and overflow included.
HWY_INLINE Floats scale_by_power(Floats value, Floats n) {
  return Floats{_mm512_scalef_ps(value.raw, n.raw)};
}

#else

/// Comparisons are false for NaN, which passes.
HWY_INLINE WholeAndRest split_whole(Floats x) {
  constexpr float kLowest = -151.0f;            // 2^x is 0 from here down
  constexpr float kHighest = 129.0f;            // 2^x is inf from here up
  const Floats rounder = broadcast(0x1.8p23f);  // its sum with |x| < 2^22 is whole
  Floats bounded = hn::IfThenElse(hn::Lt(x, broadcast(kLowest)), broadcast(kLowest), x);
  bounded = hn::IfThenElse(hn::Gt(bounded, broadcast(kHighest)), broadcast(kHighest), bounded);
  const Floats whole = hn::Sub(hn::Add(bounded, rounder), rounder);
  return {whole, hn::Sub(bounded, whole)};
}

/// In two factors, so that subnormal results and those next to overflow are right too.
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

#endif

constexpr float kLog2E = 1.44269504f;

/// 2^x to about 1 ulp: a whole power, and of the rest r, |r| <= 1/2, 1 + r P(r), where P is fitted
/// to 2e-9 relative error (minimax, by reweighted least squares). NaN passes through.
HWY_INLINE Floats exp2_lanes(Floats x) {
  const Floats one = broadcast(1.0f);
  const WholeAndRest parts = split_whole(x);
  const Floats r = parts.rest;
  Floats p = hn::MulAdd(r, broadcast(0.000153533314f), broadcast(0.00133989134f));
  p = hn::MulAdd(p, r, broadcast(0.00961843785f));
  p = hn::MulAdd(p, r, broadcast(0.0555033237f));
  p = hn::MulAdd(p, r, broadcast(0.240226477f));
  p = hn::MulAdd(p, r, broadcast(0.693147182f));
  p = hn::MulAdd(p, r, one);
  return scale_by_power(p, parts.whole);
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
  const Floats exponential = exp2_lanes(hn::Mul(x, broadcast(2 * kLog2E)));
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
  const Floats factors = broadcast(factor * kLog2E);
  const Floats subtracted = broadcast(offset * kLog2E);
  Floats sum[kLaneVectors];
  for (Floats& vector : sum) vector = hn::Zero(FloatTag());
  for (std::int64_t j = 0; j < count; j += kLane) {
#pragma GCC unroll 4
    for (std::int64_t v = 0; v < kLaneVectors; ++v) {
      float* at = row + j + v * kVector;
      const Floats weight = exp2_lanes(hn::MulSub(load(at), factors, subtracted));
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
