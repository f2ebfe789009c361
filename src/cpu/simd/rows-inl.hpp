// Rows of scores: maximum, exponential, tanh, scaling, dot product.

#if defined(FOVEAL_CPU_SIMD_ROWS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEAL_CPU_SIMD_ROWS_INL_HPP
#undef FOVEAL_CPU_SIMD_ROWS_INL_HPP
#else
#define FOVEAL_CPU_SIMD_ROWS_INL_HPP
#endif

#include <bit>
#include <limits>

#include "cpu/simd/lanes-inl.hpp"
#include "cpu/tile_math.hpp"

HWY_BEFORE_NAMESPACE();
namespace foveal::cpu::simd::HWY_NAMESPACE {
namespace {

/// The larger one; `value` only where it isn't NaN. hn::Max leaves open what a NaN gives.
HWY_INLINE Floats larger(Floats value, Floats largest) {
  return hn::IfThenElse(hn::Gt(value, largest), value, largest);
}

/// exp to about 1 ulp: x = n ln 2 + r with |r| <= ln 2 / 2, Taylor's polynomial of degree 7 in r
/// (its remainder is below 6e-9), and 2^n in two factors, so that subnormal results and those next
/// to overflow are right too. Comparisons are false for NaN, which therefore passes through.
HWY_INLINE Floats exp_lanes(Floats x) {
  constexpr float kRounder = 0x1.8p23f;  // its sum with |n| < 2^22 has n in the low bits
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;  // 355 / 512: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kLowest = -104.0f;  // exp is 0 from here down
  constexpr float kHighest = 89.0f;   // exp is inf from here up
  const IntTag di;
  Floats bounded = hn::IfThenElse(hn::Lt(x, broadcast(kLowest)), broadcast(kLowest), x);
  bounded = hn::IfThenElse(hn::Gt(bounded, broadcast(kHighest)), broadcast(kHighest), bounded);
  const Floats shifted = hn::MulAdd(bounded, broadcast(kLog2E), broadcast(kRounder));
  const auto n =
      hn::Sub(hn::BitCast(di, shifted), hn::Set(di, std::bit_cast<std::int32_t>(kRounder)));
  const Floats whole = hn::Sub(shifted, broadcast(kRounder));
  const Floats high = hn::NegMulAdd(whole, broadcast(kLn2High), bounded);
  const Floats r = hn::NegMulAdd(whole, broadcast(kLn2Low), high);
  Floats tail = hn::MulAdd(r, broadcast(1.0f / 5040), broadcast(1.0f / 720));
  tail = hn::MulAdd(tail, r, broadcast(1.0f / 120));
  tail = hn::MulAdd(tail, r, broadcast(1.0f / 24));
  tail = hn::MulAdd(tail, r, broadcast(1.0f / 6));
  tail = hn::MulAdd(tail, r, broadcast(0.5f));
  const Floats value = hn::Add(hn::MulAdd(hn::Mul(tail, r), r, r), broadcast(1.0f));
  const auto half = hn::ShiftRight<1>(n);
  const auto bias = hn::Set(di, 127);
  const auto scale_a = hn::ShiftLeft<23>(hn::Add(half, bias));
  const auto scale_b = hn::ShiftLeft<23>(hn::Add(hn::Sub(n, half), bias));
  return hn::Mul(hn::Mul(value, hn::BitCast(FloatTag(), scale_a)),
                 hn::BitCast(FloatTag(), scale_b));
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

float exp_sum(float* row, std::int64_t count, float offset) {
  const Floats subtracted = broadcast(offset);
  Floats sum[kLaneVectors];
  for (Floats& vector : sum) vector = hn::Zero(FloatTag());
  for (std::int64_t j = 0; j < count; j += kLane) {
#pragma GCC unroll 4
    for (std::int64_t v = 0; v < kLaneVectors; ++v) {
      float* at = row + j + v * kVector;
      const Floats weight = exp_lanes(hn::Sub(load(at), subtracted));
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
