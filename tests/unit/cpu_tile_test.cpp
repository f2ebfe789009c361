// The arithmetic of tiles against plain loops in double, at odd sizes and special values.
#include "cpu/tile_math.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/half.hpp"
#include "cpu_tile.hpp"

namespace foveal::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Every table that the machine has.
class CpuTileMath : public testing::TestWithParam<const TileMath*> {
 protected:
  [[nodiscard]] static const TileMath& math() { return *GetParam(); }

  [[nodiscard]] static float exp_of(float x) {
    Tile row(1, kLane);
    row.at(0, 5) = x;
    math().exp_sum(row.data.get(), kLane, 1.0f, 0.0f);
    return row.at(0, 5);
  }
};

INSTANTIATE_TEST_SUITE_P(Tables, CpuTileMath, testing::ValuesIn(tile_maths()),
                         [](const auto& test) { return std::string(test.param->name); });

/// To about 1 ulp of the result and of the argument, which is turned into a power of two.
TEST_P(CpuTileMath, ExpIsRight) {
  for (double x = -103.0; x < 88.7; x += 0.00917) {
    const auto argument = static_cast<float>(x);
    const double expected = std::exp(static_cast<double>(argument));
    const double ulp = std::fmax(expected * 0x1p-23 * (1.0 + std::fabs(x)), 0x1p-149);
    ASSERT_NEAR(exp_of(argument), expected, ulp) << argument;
  }
}

TEST_P(CpuTileMath, ExpOfSpecialValues) {
  EXPECT_EQ(exp_of(0.0f), 1.0f);
  EXPECT_EQ(exp_of(-0.0f), 1.0f);
  EXPECT_EQ(exp_of(-kInfinity), 0.0f);
  EXPECT_EQ(exp_of(-1e30f), 0.0f);
  EXPECT_EQ(exp_of(-104.5f), 0.0f);
  EXPECT_EQ(exp_of(89.0f), kInfinity);
  EXPECT_EQ(exp_of(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(exp_of(kNan)));
  EXPECT_TRUE(std::isnan(exp_of(-kNan)));
}

TEST_P(CpuTileMath, ExpSumScalesSubtractsTheOffsetAndAddsUp) {
  Tile row = random_tile(1, 48, 4);
  const Tile before = random_tile(1, 48, 4);
  const float sum = math().exp_sum(row.data.get(), 48, 0.75f, 1.5f);
  double expected = 0;
  for (std::int64_t j = 0; j < 48; ++j) {
    const double weight = std::exp(0.75 * static_cast<double>(before.at(0, j)) - 1.5);
    ASSERT_NEAR(row.at(0, j), weight, 1e-6 * weight) << j;
    expected += weight;
  }
  EXPECT_NEAR(sum, expected, 1e-5);
}

TEST_P(CpuTileMath, RowMaxFindsTheLargestAnywhereAndPassesOverNan) {
  for (std::int64_t place = 0; place < 32; ++place) {
    Tile row = random_tile(1, 32, 5);
    row.at(0, place) = 100.0f;
    row.at(0, (place + 7) % 32) = kNan;
    EXPECT_EQ(math().row_max(row.data.get(), 32), 100.0f) << place;
  }
  Tile row(1, kLane);
  for (std::int64_t j = 0; j < kLane; ++j) row.at(0, j) = j % 2 == 0 ? kNan : -kInfinity;
  EXPECT_EQ(math().row_max(row.data.get(), kLane), -kInfinity);
}

TEST_P(CpuTileMath, CapIsTheScaledTanh) {
  for (const float softcap : {0.5f, 2.0f, 50.0f}) {
    for (double ratio = -12.0; ratio < 12.0; ratio += 0.0173) {
      Tile row(1, kLane);
      row.at(0, 3) = static_cast<float>(ratio * softcap);
      const double expected =
          softcap * std::tanh(static_cast<double>(row.at(0, 3)) / static_cast<double>(softcap));
      math().cap(row.data.get(), kLane, softcap);
      ASSERT_NEAR(row.at(0, 3), expected, 5e-7 * std::fabs(expected)) << ratio << " " << softcap;
    }
  }
  Tile row(1, kLane);
  row.at(0, 0) = kInfinity;
  row.at(0, 1) = -kInfinity;
  row.at(0, 2) = kNan;
  math().cap(row.data.get(), kLane, 3.0f);
  EXPECT_EQ(row.at(0, 0), 3.0f);
  EXPECT_EQ(row.at(0, 1), -3.0f);
  EXPECT_TRUE(std::isnan(row.at(0, 2)));
}

TEST_P(CpuTileMath, ScalesAndDots) {
  for (const std::int64_t count : {1, 3, 8, 15, 16, 77}) {
    Tile a = random_tile(1, count, 6);
    const Tile b = random_tile(1, count, 7);
    double expected = 0;
    for (std::int64_t j = 0; j < count; ++j) {
      expected += static_cast<double>(a.at(0, j)) * static_cast<double>(b.at(0, j));
    }
    EXPECT_NEAR(math().dot(a.data.get(), b.data.get(), count), expected, 1e-5) << count;
    const float last = a.at(0, count - 1);
    math().scale(a.data.get(), round_up<std::int64_t>(count, kLane), 0.5f);
    EXPECT_EQ(a.at(0, count - 1), 0.5f * last);
  }
}

TEST_P(CpuTileMath, ScoreGradientsAreWeightedDifferences) {
  const Tile p = random_tile(1, 48, 8);
  Tile ds = random_tile(1, 48, 9);
  const Tile dp = random_tile(1, 48, 9);
  math().score_gradients(p.data.get(), 0.625f, ds.data.get(), 48);
  for (std::int64_t j = 0; j < 48; ++j) {
    EXPECT_EQ(ds.at(0, j), p.at(0, j) * (dp.at(0, j) - 0.625f)) << j;
  }
}

/// All 65536 patterns from an odd address; NaN to NaN of the same sign, quiet or not.
template <class T>
void expect_loads_every_pattern(void (*load)(const std::byte*, std::int64_t, float*)) {
  constexpr std::int64_t kCount = 65536;
  std::vector<std::byte> memory(2 * kCount + 1);
  for (std::int64_t i = 0; i < kCount; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    std::memcpy(memory.data() + 1 + 2 * i, &bits, sizeof bits);
  }
  const Floats loaded = aligned_floats(kCount);
  load(memory.data() + 1, kCount, loaded.get());
  for (std::int64_t i = 0; i < kCount; ++i) {
    const float expected = to_float(T{static_cast<std::uint16_t>(i)});
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(loaded[i])) << i;
      ASSERT_EQ(std::signbit(loaded[i]), std::signbit(expected)) << i;
    } else {
      ASSERT_EQ(std::memcmp(&loaded[i], &expected, sizeof expected), 0) << i;
    }
  }
}

TEST_P(CpuTileMath, LoadsEvery16BitPattern) {
  expect_loads_every_pattern<Half>(math().load_fp16);
  expect_loads_every_pattern<BFloat16>(math().load_bf16);
}

/// Every 16-bit value, the midpoints between neighbours and what lies next to those, subnormals and
/// overflow included: rounded to nearest even.
template <class T>
void expect_stores_as_from_float(void (*store)(const float*, std::int64_t, std::byte*)) {
  std::vector<float> values;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = to_float(T{static_cast<std::uint16_t>(bits)});
    const float next = to_float(T{static_cast<std::uint16_t>(bits ^ 1u)});
    const float middle = value + (next - value) / 2;
    values.push_back(value);
    values.push_back(middle);
    values.push_back(std::nextafter(middle, std::numeric_limits<float>::max()));
    values.push_back(std::nextafter(middle, 0.0f));
  }
  const Floats row = aligned_floats(static_cast<std::int64_t>(values.size()));
  std::copy(values.begin(), values.end(), row.get());
  std::vector<std::byte> memory(2 * values.size() + 1);
  store(row.get(), static_cast<std::int64_t>(values.size()), memory.data() + 1);
  for (std::size_t i = 0; i < values.size(); ++i) {
    T stored;
    std::memcpy(&stored, memory.data() + 1 + 2 * i, sizeof stored);
    if (std::isnan(values[i])) {
      ASSERT_TRUE(std::isnan(to_float(stored))) << i;
    } else {
      ASSERT_EQ(stored.bits, from_float<T>(values[i]).bits) << i << ": " << values[i];
    }
  }
}

TEST_P(CpuTileMath, StoresRoundToNearestEven) {
  expect_stores_as_from_float<Half>(math().store_fp16);
  expect_stores_as_from_float<BFloat16>(math().store_bf16);
}

TEST_P(CpuTileMath, ConvertsRaggedCountsAndNothingMore) {
  for (const std::int64_t count : {1, 2, 3, 5, 15}) {
    const Tile row = random_tile(1, 16, 8);
    std::vector<std::byte> memory(64, std::byte{0x5a});
    math().store_fp16(row.data.get(), count, memory.data() + 1);
    EXPECT_EQ(memory[static_cast<std::size_t>(1 + 2 * count)], std::byte{0x5a});
    Tile back(1, 16);
    math().load_fp16(memory.data() + 1, count, back.data.get());
    for (std::int64_t j = 0; j < 16; ++j) {
      const float expected = j < count ? to_float(from_float<Half>(row.at(0, j))) : 0.0f;
      EXPECT_EQ(back.at(0, j), expected) << count << " " << j;
    }
    math().store_bf16(row.data.get(), count, memory.data() + 1);
    math().load_bf16(memory.data() + 1, count, back.data.get());
    for (std::int64_t j = 0; j < count; ++j) {
      EXPECT_EQ(back.at(0, j), to_float(from_float<BFloat16>(row.at(0, j)))) << count << " " << j;
    }
  }
}

TEST(CpuTile, LeadingDimensionsAreOddNumbersOfCacheLines) {
  for (std::int64_t columns = 1; columns <= 512; ++columns) {
    EXPECT_GE(tile_ld(columns), round_up(columns, kLane));
    EXPECT_EQ(tile_ld(columns) / kLane % 2, 1) << columns;
    EXPECT_EQ(tile_ld(columns) % kLane, 0) << columns;
  }
}

}  // namespace
}  // namespace foveal::cpu
