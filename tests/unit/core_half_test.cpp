// fp16 and bf16 conversions over all bit patterns, against the compiler's own half type and against
// a search for the nearest value.
#include "core/half.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "support/random.hpp"

namespace foveal::test {
namespace {

#if defined(__FLT16_MAX__)
__extension__ typedef _Float16 CompilerHalf;  // NOLINT(modernize-use-using): __extension__
#define FOVEAL_TEST_COMPILER_HALF 1
#endif

constexpr std::uint32_t kPatterns = 1u << 16;

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

/// The value of a half from its fields, by the standard's own formula.
double half_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 0x1f) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  return exponent == 0 ? sign * std::ldexp(mantissa, -24)
                       : sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(CoreHalf, EveryPatternHasItsValueAndComesBack) {
  for (std::uint32_t pattern = 0; pattern < kPatterns; ++pattern) {
    const Half half{static_cast<std::uint16_t>(pattern)};
    const double expected = half_value(half.bits);
    const float actual = to_float(half);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << pattern;
      ASSERT_TRUE(std::isnan(to_float(from_float<Half>(actual)))) << pattern;
      ASSERT_EQ(std::signbit(actual), (pattern & 0x8000) != 0) << pattern;
      continue;
    }
    ASSERT_EQ(static_cast<double>(actual), expected) << pattern;
    ASSERT_EQ(from_float<Half>(actual).bits, half.bits) << pattern;
  }
}

TEST(CoreHalf, EveryBFloat16PatternHasItsValueAndComesBack) {
  for (std::uint32_t pattern = 0; pattern < kPatterns; ++pattern) {
    const BFloat16 value{static_cast<std::uint16_t>(pattern)};
    const float actual = to_float(value);
    ASSERT_EQ(bits_of(actual), pattern << 16);
    if (std::isnan(actual)) {
      ASSERT_TRUE(std::isnan(to_float(from_float<BFloat16>(actual)))) << pattern;
    } else {
      ASSERT_EQ(from_float<BFloat16>(actual).bits, pattern) << pattern;
    }
  }
}

#if defined(FOVEAL_TEST_COMPILER_HALF)
std::uint16_t compiler_half_bits(float value) {
  return std::bit_cast<std::uint16_t>(static_cast<CompilerHalf>(value));
}

TEST(CoreHalf, EveryPatternWidensAsTheCompilerDoes) {
  for (std::uint32_t pattern = 0; pattern < kPatterns; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const auto expected = static_cast<float>(std::bit_cast<CompilerHalf>(bits));
    const float actual = to_float(Half{bits});
    // A signalling NaN may come out quiet.
    const std::uint32_t ignored = std::isnan(expected) ? 0x00400000u : 0u;
    ASSERT_EQ(bits_of(actual) | ignored, bits_of(expected) | ignored) << pattern;
  }
}

void expect_rounds_as_compiler(float value) {
  const std::uint16_t expected = compiler_half_bits(value);
  const std::uint16_t actual = from_float<Half>(value).bits;
  if (std::isnan(value)) {
    ASSERT_TRUE(std::isnan(half_value(actual))) << bits_of(value);
  } else {
    ASSERT_EQ(actual, expected) << "float bits " << bits_of(value) << " = " << value;
  }
}

TEST(CoreHalf, HalfwayCasesAndTheirNeighboursRoundAsTheCompilerDoes) {
  for (std::uint32_t pattern = 0; pattern < 0x7c00u; ++pattern) {
    const double low = half_value(static_cast<std::uint16_t>(pattern));
    const double high =
        pattern == 0x7bffu ? 65536.0 : half_value(static_cast<std::uint16_t>(pattern + 1));
    const auto halfway = static_cast<float>((low + high) / 2);  // exact: one bit more than a half
    for (const float sign : {1.0f, -1.0f}) {
      expect_rounds_as_compiler(sign * halfway);
      expect_rounds_as_compiler(sign * std::nextafter(halfway, 0.0f));
      expect_rounds_as_compiler(sign * std::nextafter(halfway, 1e30f));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(CoreHalf, RandomFloatsRoundAsTheCompilerDoes) {
  Random random(3);
  for (int repeat = 0; repeat < 2000000; ++repeat) {
    expect_rounds_as_compiler(std::bit_cast<float>(static_cast<std::uint32_t>(random.bits())));
    // Most patterns above are out of fp16's range; these are inside, subnormals included.
    const auto magnitude = static_cast<float>(
        std::ldexp(1 + random.uniform(), static_cast<int>(random.integer(-26, 16))));
    expect_rounds_as_compiler(random.chance(0.5) ? magnitude : -magnitude);
    if (HasFatalFailure()) return;
  }
}
#endif  // FOVEAL_TEST_COMPILER_HALF

/// The nearer of the two bf16 neighbours of a finite float; on a tie the even one.
std::uint16_t nearest_bfloat16(float value) {
  const std::uint32_t below = bits_of(value) >> 16;  // towards zero
  const double low = std::fabs(static_cast<double>(std::bit_cast<float>(below << 16)));
  // One past the largest finite value counts as the power of two that it would be.
  const bool last = (below & 0x7fffu) == 0x7f7fu;
  const double high =
      last ? 0x1p128 : std::fabs(static_cast<double>(std::bit_cast<float>((below + 1) << 16)));
  const double magnitude = std::fabs(static_cast<double>(value));
  const double to_low = magnitude - low;
  const double to_high = high - magnitude;
  const bool up = to_high < to_low || (to_high == to_low && (below & 1u) != 0);
  return static_cast<std::uint16_t>(below + (up ? 1u : 0u));
}

TEST(CoreHalf, BFloat16RoundsToTheNearest) {
  const auto expect_nearest = [](float value) {
    ASSERT_EQ(from_float<BFloat16>(value).bits, nearest_bfloat16(value))
        << "float bits " << bits_of(value) << " = " << value;
  };
  for (std::uint32_t pattern = 0; pattern < kPatterns; ++pattern) {
    if ((pattern & 0x7f80u) == 0x7f80u) continue;  // inf, NaN
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      expect_nearest(std::bit_cast<float>(pattern << 16 | low));
      if (HasFatalFailure()) return;
    }
  }
  Random random(4);
  for (int repeat = 0; repeat < 2000000; ++repeat) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random.bits()));
    if (std::isfinite(value)) expect_nearest(value);
    if (HasFatalFailure()) return;
  }
}

TEST(CoreHalf, NaNStaysNaNWithItsSign) {
  for (const std::uint32_t pattern : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u}) {
    const auto nan = std::bit_cast<float>(pattern);
    for (const float back :
         {to_float(from_float<Half>(nan)), to_float(from_float<BFloat16>(nan))}) {
      EXPECT_TRUE(std::isnan(back)) << pattern;
      EXPECT_EQ(std::signbit(back), (pattern >> 31) != 0) << pattern;
    }
  }
}

TEST(CoreHalf, ConversionsAreConstantExpressions) {
  static_assert(from_float<Half>(1.0f).bits == 0x3c00);
  static_assert(from_float<BFloat16>(1.0f).bits == 0x3f80);
  static_assert(to_float(Half{0xc000}) == -2.0f);
  static_assert(from_float<Half>(65519.0f).bits == 0x7bff);
  static_assert(from_float<Half>(65520.0f).bits == 0x7c00);
}

}  // namespace
}  // namespace foveal::test
