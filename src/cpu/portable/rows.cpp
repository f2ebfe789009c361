#include <bit>
#include <limits>

#include "cpu/portable/functions.hpp"
#include "cpu/portable/lanes.hpp"

namespace foveal::cpu::portable {
namespace {

/// exp to about 1 ulp: x = n ln 2 + r with |r| <= ln 2 / 2, Taylor's polynomial of degree 7 in r
/// (its remainder is below 6e-9), and 2^n in two factors, so that subnormal results and those next
/// to overflow are right too.
Float4 exp_lanes(Float4 x) {
  constexpr float kRounder = 0x1.8p23f;  // its sum with |n| < 2^22 has n in the low bits
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;  // 355 / 512: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kLowest = -104.0f;  // exp is 0 from here down
  constexpr float kHighest = 89.0f;   // exp is inf from here up
  Float4 bounded = kLowest > x ? broadcast(kLowest) : x;
  bounded = kHighest < bounded ? broadcast(kHighest) : bounded;
  const Float4 shifted = bounded * kLog2E + kRounder;
  const Int4 n = std::bit_cast<Int4>(shifted) - std::bit_cast<std::int32_t>(kRounder);
  const Float4 whole = shifted - kRounder;
  const Float4 r = (bounded - whole * kLn2High) - whole * kLn2Low;
  Float4 tail = r * (1.0f / 5040) + (1.0f / 720);
  tail = tail * r + (1.0f / 120);
  tail = tail * r + (1.0f / 24);
  tail = tail * r + (1.0f / 6);
  tail = tail * r + 0.5f;
  const Float4 value = (tail * r * r + r) + 1.0f;
  const Int4 half = n >> 1;
  const Float4 scale_a = std::bit_cast<Float4>((half + 127) << 23);
  const Float4 scale_b = std::bit_cast<Float4>((n - half + 127) << 23);
  const Float4 result = value * scale_a * scale_b;
  return x == x ? result : x;
}

/// tanh: its odd series near 0, where 1 - 2 / (exp(2x) + 1) would cancel.
Float4 tanh_lanes(Float4 x) {
  constexpr float kSeriesEnd = 0.25f;  // the next term is below 1e-8 of the first
  const Float4 square = x * x;
  Float4 series = square * (62.0f / 2835) - (17.0f / 315);
  series = series * square + (2.0f / 15);
  series = series * square - (1.0f / 3);
  series = series * square * x + x;
  const Float4 quotient = 1.0f - 2.0f / (exp_lanes(2.0f * x) + 1.0f);
  const Int4 near_zero = (x < kSeriesEnd) & (x > -kSeriesEnd);
  return near_zero ? series : quotient;
}

}  // namespace

float row_max(const float* row, std::int64_t count) {
  Float4 largest = broadcast(-std::numeric_limits<float>::infinity());
  for (std::int64_t j = 0; j < count; j += kVector) {
    const Float4 value = load(row + j);
    largest = value > largest ? value : largest;
  }
  return horizontal_max(largest);
}

float exp_sum(float* row, std::int64_t count, float factor, float offset) {
  Float4 sum[2] = {};
  for (std::int64_t j = 0; j < count; j += 2 * kVector) {
    const Float4 first = exp_lanes(load(row + j) * factor - offset);
    const Float4 second = exp_lanes(load(row + j + kVector) * factor - offset);
    store(first, row + j);
    store(second, row + j + kVector);
    sum[0] += first;
    sum[1] += second;
  }
  return horizontal_sum(sum[0] + sum[1]);
}

void scale(float* row, std::int64_t count, float factor) {
  for (std::int64_t j = 0; j < count; j += kVector) store(load(row + j) * factor, row + j);
}

void cap(float* row, std::int64_t count, float softcap) {
  for (std::int64_t j = 0; j < count; j += kVector) {
    store(tanh_lanes(load(row + j) / softcap) * softcap, row + j);
  }
}

void score_gradients(const float* p, float delta, float* ds, std::int64_t count) {
  for (std::int64_t j = 0; j < count; j += kVector) {
    store(load(p + j) * (load(ds + j) - delta), ds + j);
  }
}

float dot(const float* a, const float* b, std::int64_t count) {
  Float4 sum[2] = {};
  std::int64_t j = 0;
  for (; j + 2 * kVector <= count; j += 2 * kVector) {
    sum[0] += load(a + j) * load(b + j);
    sum[1] += load(a + j + kVector) * load(b + j + kVector);
  }
  float total = horizontal_sum(sum[0] + sum[1]);
  for (; j < count; ++j) total += a[j] * b[j];
  return total;
}

}  // namespace foveal::cpu::portable
