// The arithmetic of tiles against plain loops in double, at odd sizes and special values.
#include "cpu/tile_math.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
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

struct Sizes {
  std::int64_t rows, columns, depth;
};
constexpr Sizes kSizes[] = {{1, 1, 1},   {1, 16, 5},  {2, 17, 3},   {3, 31, 64},  {4, 16, 65},
                            {5, 33, 80}, {7, 64, 96}, {64, 64, 64}, {6, 50, 130}, {64, 1, 512}};

/// Every table that the machine has.
class CpuTileMath : public testing::TestWithParam<const TileMath*> {
 protected:
  [[nodiscard]] static const TileMath& math() { return *GetParam(); }

  [[nodiscard]] static Floats packed(const Tile& rows) {
    Floats operand = aligned_floats(packed_floats(rows.rows, rows.columns));
    math().pack(rows.data.get(), rows.ld, rows.rows, rows.columns, operand.get());
    return operand;
  }

  [[nodiscard]] static float exp_of(float x) {
    Tile row(1, kLane);
    row.at(0, 5) = x;
    math().exp_sum(row.data.get(), kLane, 0.0f);
    return row.at(0, 5);
  }
};

INSTANTIATE_TEST_SUITE_P(Tables, CpuTileMath, testing::ValuesIn(tile_maths()),
                         [](const auto& test) { return std::string(test.param->name); });

/// C against the sum over k of a(row, k) * b(k, column), and `before` where the product adds.
void expect_product(const Tile& c, const Tile& before, const Sizes& sizes,
                    const std::function<double(std::int64_t, std::int64_t)>& a,
                    const std::function<double(std::int64_t, std::int64_t)>& b) {
  for (std::int64_t row = 0; row < sizes.rows; ++row) {
    for (std::int64_t column = 0; column < sizes.columns; ++column) {
      double sum = before.at(row, column);
      double magnitude = std::fabs(sum);
      for (std::int64_t k = 0; k < sizes.depth; ++k) {
        sum += a(row, k) * b(k, column);
        magnitude += std::fabs(a(row, k) * b(k, column));
      }
      ASSERT_NEAR(c.at(row, column), sum, 1e-6 * magnitude)
          << "rows " << sizes.rows << " columns " << sizes.columns << " depth " << sizes.depth
          << " at " << row << ", " << column;
    }
  }
}

/// Rows past `rows` are not touched.
void expect_untouched_below(const Tile& c, std::int64_t rows, float value) {
  for (std::int64_t row = rows; row < round_up<std::int64_t>(c.rows, kLane); ++row) {
    for (std::int64_t column = 0; column < c.columns; ++column) {
      ASSERT_EQ(c.at(row, column), value) << row << ", " << column;
    }
  }
}

void fill_below(Tile& c, std::int64_t rows, float value) {
  for (std::int64_t row = rows; row < round_up<std::int64_t>(c.rows, kLane); ++row) {
    for (std::int64_t column = 0; column < c.columns; ++column) c.at(row, column) = value;
  }
}

TEST_P(CpuTileMath, MultipliesByAPackedTransposed) {
  for (const Sizes& sizes : kSizes) {
    const Tile a = random_tile(sizes.rows, sizes.depth, 1);
    const Tile b = random_tile(sizes.columns, sizes.depth, 2);
    Tile c = random_tile(sizes.rows, sizes.columns, 3);  // overwritten
    fill_below(c, sizes.rows, 7.0f);
    const Floats operand = packed(b);
    math().multiply_packed({.rows = sizes.rows,
                            .columns = sizes.columns,
                            .depth = sizes.depth,
                            .a = a.data.get(),
                            .lda = a.ld,
                            .b = operand.get(),
                            .c = c.data.get(),
                            .ldc = c.ld});
    expect_product(
        c, Tile(sizes.rows, sizes.columns), sizes,
        [&](std::int64_t row, std::int64_t k) { return a.at(row, k); },
        [&](std::int64_t k, std::int64_t column) { return b.at(column, k); });
    expect_untouched_below(c, sizes.rows, 7.0f);
  }
}

TEST_P(CpuTileMath, Accumulates) {
  for (const Sizes& sizes : kSizes) {
    const Tile a = random_tile(sizes.rows, sizes.depth, 1);
    const Tile b = random_tile(sizes.depth, sizes.columns, 2);
    const Tile before = random_tile(sizes.rows, sizes.columns, 3);
    Tile c = random_tile(sizes.rows, sizes.columns, 3);
    fill_below(c, sizes.rows, 7.0f);
    math().accumulate({.rows = sizes.rows,
                       .columns = sizes.columns,
                       .depth = sizes.depth,
                       .a = a.data.get(),
                       .lda = a.ld,
                       .b = b.data.get(),
                       .ldb = b.ld,
                       .c = c.data.get(),
                       .ldc = c.ld});
    expect_product(
        c, before, sizes, [&](std::int64_t row, std::int64_t k) { return a.at(row, k); },
        [&](std::int64_t k, std::int64_t column) { return b.at(k, column); });
    expect_untouched_below(c, sizes.rows, 7.0f);
  }
}

TEST_P(CpuTileMath, AccumulatesTransposed) {
  for (const Sizes& sizes : kSizes) {
    const Tile a = random_tile(sizes.depth, sizes.rows, 1);
    const Tile b = random_tile(sizes.depth, sizes.columns, 2);
    const Tile before = random_tile(sizes.rows, sizes.columns, 3);
    Tile c = random_tile(sizes.rows, sizes.columns, 3);
    fill_below(c, sizes.rows, 7.0f);
    math().accumulate_transposed({.rows = sizes.rows,
                                  .columns = sizes.columns,
                                  .depth = sizes.depth,
                                  .a = a.data.get(),
                                  .lda = a.ld,
                                  .b = b.data.get(),
                                  .ldb = b.ld,
                                  .c = c.data.get(),
                                  .ldc = c.ld});
    expect_product(
        c, before, sizes, [&](std::int64_t row, std::int64_t k) { return a.at(k, row); },
        [&](std::int64_t k, std::int64_t column) { return b.at(k, column); });
    expect_untouched_below(c, sizes.rows, 7.0f);
  }
}

TEST_P(CpuTileMath, AnElementDoesNotDependOnItsTile) {
  const Tile a = random_tile(9, 200, 1);
  const Tile b = random_tile(50, 200, 2);
  const Floats operand = packed(b);
  Tile whole(9, 50);
  math().multiply_packed({.rows = 9,
                          .columns = 50,
                          .depth = 200,
                          .a = a.data.get(),
                          .lda = a.ld,
                          .b = operand.get(),
                          .c = whole.data.get(),
                          .ldc = whole.ld});
  for (std::int64_t row = 0; row < 9; ++row) {
    Tile one(1, 50);
    math().multiply_packed({.rows = 1,
                            .columns = 50,
                            .depth = 200,
                            .a = a.data.get() + row * a.ld,
                            .lda = a.ld,
                            .b = operand.get(),
                            .c = one.data.get(),
                            .ldc = one.ld});
    for (std::int64_t column = 0; column < 50; ++column) {
      ASSERT_EQ(one.at(0, column), whole.at(row, column)) << row << ", " << column;
    }
  }
}

/// Row `row` of C += A . B, and of C += At^T . B, as tiles of their own and of fewer columns.
TEST_P(CpuTileMath, ASumDoesNotDependOnItsTile) {
  constexpr Sizes kWhole{29, 80, 200};
  const Tile a = random_tile(kWhole.rows, kWhole.depth, 1);
  Tile transposed(kWhole.depth, kWhole.rows);
  for (std::int64_t row = 0; row < kWhole.rows; ++row) {
    for (std::int64_t k = 0; k < kWhole.depth; ++k) transposed.at(k, row) = a.at(row, k);
  }
  const Tile b = random_tile(kWhole.depth, kWhole.columns, 2);
  const auto product = [&](const Tile& left, std::int64_t offset, std::int64_t rows,
                           std::int64_t columns, Tile& c) {
    return TileProduct{.rows = rows,
                       .columns = columns,
                       .depth = kWhole.depth,
                       .a = left.data.get() + offset,
                       .lda = left.ld,
                       .b = b.data.get(),
                       .ldb = b.ld,
                       .c = c.data.get(),
                       .ldc = c.ld};
  };
  Tile whole = random_tile(kWhole.rows, kWhole.columns, 3);
  Tile whole_transposed = random_tile(kWhole.rows, kWhole.columns, 3);
  math().accumulate(product(a, 0, kWhole.rows, kWhole.columns, whole));
  math().accumulate_transposed(
      product(transposed, 0, kWhole.rows, kWhole.columns, whole_transposed));
  const Tile before = random_tile(kWhole.rows, kWhole.columns, 3);
  for (std::int64_t row = 0; row < kWhole.rows; ++row) {
    const std::int64_t columns = 16 * (1 + row % 5);
    Tile one(1, columns);
    Tile one_transposed(1, columns);
    for (std::int64_t column = 0; column < columns; ++column) {
      one.at(0, column) = one_transposed.at(0, column) = before.at(row, column);
    }
    math().accumulate(product(a, row * a.ld, 1, columns, one));
    math().accumulate_transposed(product(transposed, row, 1, columns, one_transposed));
    for (std::int64_t column = 0; column < columns; ++column) {
      ASSERT_EQ(one.at(0, column), whole.at(row, column)) << row << ", " << column;
      ASSERT_EQ(one_transposed.at(0, column), whole_transposed.at(row, column))
          << row << ", " << column;
    }
  }
}

TEST_P(CpuTileMath, NanInOneRowStaysInIt) {
  Tile a = random_tile(5, 20, 1);
  a.at(2, 3) = kNan;
  const Tile b = random_tile(20, 20, 2);
  const Floats operand = packed(b);
  Tile c(5, 20);
  math().multiply_packed({.rows = 5,
                          .columns = 20,
                          .depth = 20,
                          .a = a.data.get(),
                          .lda = a.ld,
                          .b = operand.get(),
                          .c = c.data.get(),
                          .ldc = c.ld});
  for (std::int64_t row = 0; row < 5; ++row) {
    for (std::int64_t column = 0; column < 20; ++column) {
      EXPECT_EQ(std::isnan(c.at(row, column)), row == 2) << row << ", " << column;
    }
  }
}

/// Rows of elements of type T at odd addresses, in no order, and the same as a tile.
template <class T>
struct ScatteredRows {
  ScatteredRows(std::int64_t count, std::int64_t columns, std::uint64_t seed)
      : tile(random_tile(count, columns, seed)),
        memory(static_cast<std::size_t>(count * columns) * sizeof(T) + 1) {
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int64_t place = (j * 7 + 3) % count;
      std::byte* row = memory.data() + 1 + place * columns * static_cast<std::int64_t>(sizeof(T));
      for (std::int64_t d = 0; d < columns; ++d) {
        const T element = from_float<T>(tile.at(j, d));
        std::memcpy(row + d * static_cast<std::int64_t>(sizeof(T)), &element, sizeof element);
        tile.at(j, d) = to_float(element);
      }
      rows.push_back(row);
    }
  }

  [[nodiscard]] MemoryRows operand(DType dtype) const {
    return {.rows = rows.data(),
            .count = tile.rows,
            .columns = tile.columns,
            .dtype = dtype,
            .ahead = rows.data(),
            .num_ahead = tile.rows};
  }

  Tile tile;
  std::vector<std::byte> memory;
  std::vector<const std::byte*> rows;
};

constexpr Sizes kMemorySizes[] = {{1, 1, 16}, {1, 64, 128}, {3, 17, 64}, {4, 64, 80}, {8, 33, 512}};

/// Both products with rows in memory, against plain loops and against one row and key at a time.
template <class T>
void expect_memory_products(const TileMath& math, DType dtype) {
  for (const Sizes& sizes : kMemorySizes) {  // depth: elements of a row; columns: rows in memory
    const ScatteredRows<T> keys(sizes.columns, sizes.depth, 2);
    const Tile q = random_tile(sizes.rows, sizes.depth, 1);
    Tile scores(sizes.rows, sizes.columns);
    math.multiply_memory({sizes.rows, q.data.get(), q.ld, scores.data.get(), scores.ld},
                         keys.operand(dtype));
    expect_product(
        scores, Tile(sizes.rows, sizes.columns), sizes,
        [&](std::int64_t row, std::int64_t k) { return q.at(row, k); },
        [&](std::int64_t k, std::int64_t column) { return keys.tile.at(column, k); });

    const Tile weights = random_tile(sizes.rows, sizes.columns, 3);
    const Tile before = random_tile(sizes.rows, sizes.depth, 4);
    Tile sums = random_tile(sizes.rows, sizes.depth, 4);
    math.accumulate_memory({sizes.rows, weights.data.get(), weights.ld, sums.data.get(), sums.ld},
                           keys.operand(dtype));
    expect_product(
        sums, before, {sizes.rows, sizes.depth, sizes.columns},
        [&](std::int64_t row, std::int64_t k) { return weights.at(row, k); },
        [&](std::int64_t k, std::int64_t column) { return keys.tile.at(k, column); });

    for (std::int64_t row = 0; row < sizes.rows; ++row) {
      Tile one = random_tile(sizes.rows, sizes.depth, 4);
      math.accumulate_memory({1, weights.data.get() + row * weights.ld, weights.ld,
                              one.data.get() + row * one.ld, one.ld},
                             keys.operand(dtype));
      for (std::int64_t d = 0; d < sizes.depth; ++d) ASSERT_EQ(one.at(row, d), sums.at(row, d));
      for (std::int64_t j = 0; j < sizes.columns; ++j) {
        MemoryRows key = keys.operand(dtype);
        key.rows += j;
        key.count = 1;
        Tile score(1, 1);
        math.multiply_memory({1, q.data.get() + row * q.ld, q.ld, score.data.get(), score.ld}, key);
        ASSERT_EQ(score.at(0, 0), scores.at(row, j)) << row << ", " << j;
        ASSERT_EQ(score.data[1], 0.0f) << "nothing is written past the last key";
      }
    }
  }
}

TEST_P(CpuTileMath, MultipliesRowsInMemory) {
  expect_memory_products<Half>(math(), DType::kFloat16);
  expect_memory_products<BFloat16>(math(), DType::kBFloat16);
  expect_memory_products<float>(math(), DType::kFloat32);
}

TEST_P(CpuTileMath, ExpIsRightToOneUlp) {
  for (double x = -103.0; x < 88.7; x += 0.00917) {
    const auto argument = static_cast<float>(x);
    const double expected = std::exp(static_cast<double>(argument));
    const double ulp = std::fmax(expected * 0x1p-23, 0x1p-149);
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

TEST_P(CpuTileMath, ExpSumSubtractsTheOffsetAndAddsUp) {
  Tile row = random_tile(1, 48, 4);
  const Tile before = random_tile(1, 48, 4);
  const float sum = math().exp_sum(row.data.get(), 48, 1.5f);
  double expected = 0;
  for (std::int64_t j = 0; j < 48; ++j) {
    const double weight = std::exp(static_cast<double>(before.at(0, j) - 1.5f));
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
