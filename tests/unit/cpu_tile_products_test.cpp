// The products of tiles in every table, fp32 or bf16 pairs, against plain loops in double.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/half.hpp"
#include "cpu/tile_math.hpp"
#include "cpu_tile.hpp"

namespace foveal::cpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Sizes {
  std::int64_t rows, columns, depth;
};
constexpr Sizes kSizes[] = {{1, 1, 1},   {1, 16, 5},  {2, 17, 3},   {3, 31, 64},  {4, 16, 65},
                            {5, 33, 80}, {7, 64, 96}, {64, 64, 64}, {6, 50, 130}, {64, 1, 512}};

/// A tile as an operand of a table.
struct Operand {
  Floats slots;
  std::int64_t ld = 0;
};

/// Every table that the machine has.
class CpuTileProducts : public testing::TestWithParam<const TileMath*> {
 protected:
  [[nodiscard]] static const TileMath& math() { return *GetParam(); }

  /// What a term can be: any fp32, or a bf16.
  static void round_terms(Tile& tile) {
    if (math().slot_terms == 1) return;
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      for (std::int64_t column = 0; column < tile.columns; ++column) {
        tile.at(row, column) = to_float(from_float<BFloat16>(tile.at(row, column)));
      }
    }
  }

  [[nodiscard]] static Tile random_terms(std::int64_t rows, std::int64_t columns,
                                         std::uint64_t seed) {
    Tile tile = random_tile(rows, columns, seed);
    round_terms(tile);
    return tile;
  }

  /// An operand whose terms are the columns.
  [[nodiscard]] static Operand along_columns(const Tile& tile) {
    Operand operand{aligned_floats(tile_floats(tile.rows, math().slots(tile.columns))),
                    tile_ld(math().slots(tile.columns))};
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      void* to = slot_at(static_cast<void*>(operand.slots.get()), row * operand.ld);
      if (math().narrow == nullptr) {
        std::memcpy(to, tile.data.get() + row * tile.ld,
                    static_cast<std::size_t>(round_up(tile.columns, kLane)) * sizeof(float));
      } else {
        math().narrow(tile.data.get() + row * tile.ld, round_up(tile.columns, kLane), to);
      }
    }
    return operand;
  }

  /// An operand whose terms are the rows.
  [[nodiscard]] static Operand along_rows(const Tile& tile) {
    const std::int64_t slot_rows = math().slots(tile.rows);
    Operand operand{aligned_floats(tile_floats(slot_rows, tile.columns)), tile_ld(tile.columns)};
    const std::int64_t columns = round_up(tile.columns, kLane);
    if (math().narrow_pairs != nullptr) {
      math().narrow_pairs(tile.data.get(), tile.ld, tile.rows, columns, operand.slots.get(),
                          operand.ld);
      return operand;
    }
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      std::memcpy(operand.slots.get() + row * operand.ld, tile.data.get() + row * tile.ld,
                  static_cast<std::size_t>(columns) * sizeof(float));
    }
    return operand;
  }

  [[nodiscard]] static Floats packed(const Tile& rows) {
    const std::int64_t depth = math().slots(rows.columns);
    const Operand operand = along_columns(rows);
    Floats packed = aligned_floats(packed_floats(rows.rows, depth));
    math().pack(operand.slots.get(), operand.ld, rows.rows, depth, packed.get());
    return packed;
  }
};

INSTANTIATE_TEST_SUITE_P(Tables, CpuTileProducts, testing::ValuesIn(tile_maths()),
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

TEST_P(CpuTileProducts, MultipliesByAPackedTransposed) {
  for (const Sizes& sizes : kSizes) {
    const Tile a = random_terms(sizes.rows, sizes.depth, 1);
    const Tile b = random_terms(sizes.columns, sizes.depth, 2);
    Tile c = random_tile(sizes.rows, sizes.columns, 3);  // overwritten
    fill_below(c, sizes.rows, 7.0f);
    const Operand left = along_columns(a);
    const Floats right = packed(b);
    math().multiply_packed({.rows = sizes.rows,
                            .columns = sizes.columns,
                            .depth = math().slots(sizes.depth),
                            .a = left.slots.get(),
                            .lda = left.ld,
                            .b = right.get(),
                            .c = c.data.get(),
                            .ldc = c.ld});
    expect_product(
        c, Tile(sizes.rows, sizes.columns), sizes,
        [&](std::int64_t row, std::int64_t k) { return a.at(row, k); },
        [&](std::int64_t k, std::int64_t column) { return b.at(column, k); });
    expect_untouched_below(c, sizes.rows, 7.0f);
  }
}

TEST_P(CpuTileProducts, Accumulates) {
  for (const Sizes& sizes : kSizes) {
    const Tile a = random_terms(sizes.rows, sizes.depth, 1);
    const Tile b = random_terms(sizes.depth, sizes.columns, 2);
    const Tile before = random_tile(sizes.rows, sizes.columns, 3);
    Tile c = random_tile(sizes.rows, sizes.columns, 3);
    fill_below(c, sizes.rows, 7.0f);
    const Operand left = along_columns(a);
    const Operand right = along_rows(b);
    math().accumulate({.rows = sizes.rows,
                       .columns = sizes.columns,
                       .depth = math().slots(sizes.depth),
                       .a = left.slots.get(),
                       .lda = left.ld,
                       .b = right.slots.get(),
                       .ldb = right.ld,
                       .c = c.data.get(),
                       .ldc = c.ld});
    expect_product(
        c, before, sizes, [&](std::int64_t row, std::int64_t k) { return a.at(row, k); },
        [&](std::int64_t k, std::int64_t column) { return b.at(k, column); });
    expect_untouched_below(c, sizes.rows, 7.0f);
  }
}

TEST_P(CpuTileProducts, AccumulatesTransposed) {
  for (const Sizes& sizes : kSizes) {
    const Tile a = random_terms(sizes.depth, sizes.rows, 1);
    const Tile b = random_terms(sizes.depth, sizes.columns, 2);
    const Tile before = random_tile(sizes.rows, sizes.columns, 3);
    Tile c = random_tile(sizes.rows, sizes.columns, 3);
    fill_below(c, sizes.rows, 7.0f);
    const Operand left = along_rows(a);
    const Operand right = along_rows(b);
    math().accumulate_transposed({.rows = sizes.rows,
                                  .columns = sizes.columns,
                                  .depth = math().slots(sizes.depth),
                                  .a = left.slots.get(),
                                  .lda = left.ld,
                                  .b = right.slots.get(),
                                  .ldb = right.ld,
                                  .c = c.data.get(),
                                  .ldc = c.ld});
    expect_product(
        c, before, sizes, [&](std::int64_t row, std::int64_t k) { return a.at(k, row); },
        [&](std::int64_t k, std::int64_t column) { return b.at(k, column); });
    expect_untouched_below(c, sizes.rows, 7.0f);
  }
}

TEST_P(CpuTileProducts, AnElementDoesNotDependOnItsTile) {
  const Tile a = random_terms(29, 200, 1);
  const Tile b = random_terms(50, 200, 2);
  const Operand left = along_columns(a);
  const Floats right = packed(b);
  TileProduct product{.rows = 29,
                      .columns = 50,
                      .depth = math().slots(200),
                      .a = left.slots.get(),
                      .lda = left.ld,
                      .b = right.get()};
  Tile whole(29, 50);
  product.c = whole.data.get();
  product.ldc = whole.ld;
  math().multiply_packed(product);
  for (std::int64_t row = 0; row < 29; ++row) {
    Tile one(1, 50);
    product.rows = 1;
    product.a = slot_at(static_cast<const void*>(left.slots.get()), row * left.ld);
    product.c = one.data.get();
    math().multiply_packed(product);
    for (std::int64_t column = 0; column < 50; ++column) {
      ASSERT_EQ(one.at(0, column), whole.at(row, column)) << row << ", " << column;
    }
  }
}

/// Row `row` of C += A . B, and of C += At^T . B, as tiles of their own and of fewer columns.
TEST_P(CpuTileProducts, ASumDoesNotDependOnItsTile) {
  constexpr Sizes kWhole{29, 80, 200};
  const Tile a = random_terms(kWhole.rows, kWhole.depth, 1);
  Tile transposed(kWhole.depth, kWhole.rows);
  for (std::int64_t row = 0; row < kWhole.rows; ++row) {
    for (std::int64_t k = 0; k < kWhole.depth; ++k) transposed.at(k, row) = a.at(row, k);
  }
  const Operand left = along_columns(a);
  const Operand left_transposed = along_rows(transposed);
  const Operand right = along_rows(random_terms(kWhole.depth, kWhole.columns, 2));
  const auto product = [&](const Operand& operand, std::int64_t offset, std::int64_t rows,
                           std::int64_t columns, Tile& c) {
    return TileProduct{.rows = rows,
                       .columns = columns,
                       .depth = math().slots(kWhole.depth),
                       .a = slot_at(static_cast<const void*>(operand.slots.get()), offset),
                       .lda = operand.ld,
                       .b = right.slots.get(),
                       .ldb = right.ld,
                       .c = c.data.get(),
                       .ldc = c.ld};
  };
  Tile whole = random_tile(kWhole.rows, kWhole.columns, 3);
  Tile whole_transposed = random_tile(kWhole.rows, kWhole.columns, 3);
  math().accumulate(product(left, 0, kWhole.rows, kWhole.columns, whole));
  math().accumulate_transposed(
      product(left_transposed, 0, kWhole.rows, kWhole.columns, whole_transposed));
  const Tile before = random_tile(kWhole.rows, kWhole.columns, 3);
  for (std::int64_t row = 0; row < kWhole.rows; ++row) {
    const std::int64_t columns = 16 * (1 + row % 5);
    Tile one(1, columns);
    Tile one_transposed(1, columns);
    for (std::int64_t column = 0; column < columns; ++column) {
      one.at(0, column) = one_transposed.at(0, column) = before.at(row, column);
    }
    math().accumulate(product(left, row * left.ld, 1, columns, one));
    math().accumulate_transposed(product(left_transposed, row, 1, columns, one_transposed));
    for (std::int64_t column = 0; column < columns; ++column) {
      ASSERT_EQ(one.at(0, column), whole.at(row, column)) << row << ", " << column;
      ASSERT_EQ(one_transposed.at(0, column), whole_transposed.at(row, column))
          << row << ", " << column;
    }
  }
}

/// Terms whose weight is 0 may be left out at both ends of one running sum, at the first end in
/// whole steps.
TEST_P(CpuTileProducts, LeavingOutZerosChangesNoBit) {
  const std::int64_t depth = kDepthRun;
  Tile a = random_terms(5, depth, 1);
  for (std::int64_t row = 0; row < 5; ++row) {
    for (std::int64_t k = 0; k < depth; ++k) {
      if (k < 42 || k >= depth - 22) a.at(row, k) = 0.0f;
    }
  }
  const Operand left = along_columns(a);
  const Operand right = along_rows(random_terms(depth, 32, 2));
  Tile whole = random_tile(5, 32, 3);
  Tile trimmed = random_tile(5, 32, 3);
  TileProduct product{.rows = 5,
                      .columns = 32,
                      .depth = math().slots(depth),
                      .a = left.slots.get(),
                      .lda = left.ld,
                      .b = right.slots.get(),
                      .ldb = right.ld,
                      .c = whole.data.get(),
                      .ldc = whole.ld};
  math().accumulate(product);
  const std::int64_t zeros = 42 / math().slot_terms;
  const std::int64_t skipped = zeros - zeros % math().depth_step;
  product.a = slot_at(product.a, skipped);
  product.b = slot_at(product.b, skipped * right.ld);
  product.depth = math().slots(depth - 22) - skipped;
  product.c = trimmed.data.get();
  math().accumulate(product);
  for (std::int64_t row = 0; row < 5; ++row) {
    for (std::int64_t column = 0; column < 32; ++column) {
      ASSERT_EQ(trimmed.at(row, column), whole.at(row, column)) << row << ", " << column;
    }
  }
}

TEST_P(CpuTileProducts, NanInOneRowStaysInIt) {
  Tile a = random_terms(5, 20, 1);
  a.at(2, 3) = kNan;
  const Operand left = along_columns(a);
  const Floats right = packed(random_terms(20, 20, 2));
  Tile c(5, 20);
  math().multiply_packed({.rows = 5,
                          .columns = 20,
                          .depth = math().slots(20),
                          .a = left.slots.get(),
                          .lda = left.ld,
                          .b = right.get(),
                          .c = c.data.get(),
                          .ldc = c.ld});
  for (std::int64_t row = 0; row < 5; ++row) {
    for (std::int64_t column = 0; column < 20; ++column) {
      EXPECT_EQ(std::isnan(c.at(row, column)), row == 2) << row << ", " << column;
    }
  }
}

/// The halves of a slot: an element and its neighbour along the terms.
TEST_P(CpuTileProducts, PairsAreNeighboursAlongTheTerms) {
  if (math().slot_terms == 1) {
    EXPECT_EQ(math().pair_rows, nullptr);
    EXPECT_EQ(math().narrow, nullptr);
    EXPECT_EQ(math().narrow_pairs, nullptr);
    return;
  }
  const Tile tile = random_terms(7, 48, 4);
  const Operand rows = along_columns(tile);
  const Operand narrowed = along_rows(tile);
  Operand paired{aligned_floats(tile_floats(4, 48)), tile_ld(48)};
  math().pair_rows(rows.slots.get(), rows.ld, 7, 48, paired.slots.get(), paired.ld);
  const auto half = [](const Operand& operand, std::int64_t row, std::int64_t index) {
    BFloat16 element;
    const auto* bytes = static_cast<const std::byte*>(
        slot_at(static_cast<const void*>(operand.slots.get()), row * operand.ld));
    std::memcpy(&element, bytes + index * 2, sizeof element);
    return to_float(element);
  };
  for (std::int64_t row = 0; row < 8; ++row) {
    for (std::int64_t column = 0; column < 48; ++column) {
      const float expected = row < 7 ? tile.at(row, column) : 0.0f;
      if (row < 7) {
        EXPECT_EQ(half(rows, row, column), expected);
      }
      EXPECT_EQ(half(paired, row / 2, 2 * column + row % 2), expected) << row << ", " << column;
      EXPECT_EQ(half(narrowed, row / 2, 2 * column + row % 2), expected) << row << ", " << column;
    }
  }
}

/// Rows of elements of type T at odd addresses, in no order, and the same as a tile.
template <class T>
struct ScatteredRows {
  static constexpr std::int64_t kOffset = 6;  ///< bytes from the addresses given to the rows

  ScatteredRows(std::int64_t count, std::int64_t columns, std::uint64_t seed)
      : tile(random_tile(count, columns, seed)),
        memory(static_cast<std::size_t>(count * columns) * sizeof(T) + 1 + kOffset) {
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int64_t place = (j * 7 + 3) % count;
      std::byte* row = memory.data() + 1 + place * columns * static_cast<std::int64_t>(sizeof(T));
      for (std::int64_t d = 0; d < columns; ++d) {
        const T element = from_float<T>(tile.at(j, d));
        std::memcpy(row + kOffset + d * static_cast<std::int64_t>(sizeof(T)), &element,
                    sizeof element);
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
            .offset = kOffset,
            .ahead = rows.data(),
            .num_ahead = tile.rows / 2};
  }

  Tile tile;
  std::vector<std::byte> memory;
  std::vector<const std::byte*> rows;
};

class CpuMemoryProducts : public CpuTileProducts {
 protected:
  /// Both products with rows in memory, against plain loops and against one row and key at a time.
  /// Depth: elements of a row; columns: rows in memory.
  template <class T>
  static void expect_products(DType dtype, const Sizes& sizes) {
    const ScatteredRows<T> keys(sizes.columns, sizes.depth, 2);
    const Tile q = random_terms(sizes.rows, sizes.depth, 1);
    const Operand left = along_columns(q);
    Tile scores(sizes.rows, sizes.columns);
    math().multiply_memory({sizes.rows, left.slots.get(), left.ld, scores.data.get(), scores.ld},
                           keys.operand(dtype));
    expect_product(
        scores, Tile(sizes.rows, sizes.columns), sizes,
        [&](std::int64_t row, std::int64_t k) { return q.at(row, k); },
        [&](std::int64_t k, std::int64_t column) { return keys.tile.at(column, k); });

    const Tile factors = random_terms(sizes.rows, sizes.columns, 3);
    const Operand weights = along_columns(factors);
    Tile sums = random_tile(sizes.rows, sizes.depth, 4);
    math().accumulate_memory(
        {sizes.rows, weights.slots.get(), weights.ld, sums.data.get(), sums.ld},
        keys.operand(dtype));
    expect_product(
        sums, random_tile(sizes.rows, sizes.depth, 4), {sizes.rows, sizes.depth, sizes.columns},
        [&](std::int64_t row, std::int64_t k) { return factors.at(row, k); },
        [&](std::int64_t k, std::int64_t column) { return keys.tile.at(k, column); });

    // In two calls, the first for 32 keys, the bits are the same.
    Tile parts = random_tile(sizes.rows, sizes.depth, 4);
    for (std::int64_t j = 0; j < sizes.columns; j += j == 0 ? 32 : sizes.columns) {
      MemoryRows some = keys.operand(dtype);
      some.rows += j;
      some.count = j == 0 ? std::min<std::int64_t>(32, sizes.columns) : sizes.columns - j;
      const void* from = math().term_at(weights.slots.get(), j);
      math().accumulate_memory({sizes.rows, from, weights.ld, parts.data.get(), parts.ld}, some);
    }
    for (std::int64_t row = 0; row < sizes.rows; ++row) {
      for (std::int64_t d = 0; d < sizes.depth; ++d) ASSERT_EQ(parts.at(row, d), sums.at(row, d));
    }

    for (std::int64_t row = 0; row < sizes.rows; ++row) {
      const void* weights_row =
          slot_at(static_cast<const void*>(weights.slots.get()), row * weights.ld);
      Tile one = random_tile(sizes.rows, sizes.depth, 4);
      math().accumulate_memory({1, weights_row, weights.ld, one.data.get() + row * one.ld, one.ld},
                               keys.operand(dtype));
      for (std::int64_t d = 0; d < sizes.depth; ++d) ASSERT_EQ(one.at(row, d), sums.at(row, d));
      for (std::int64_t j = 0; j < sizes.columns; ++j) {
        MemoryRows key = keys.operand(dtype);
        key.rows += j;
        key.count = 1;
        const void* q_row = slot_at(static_cast<const void*>(left.slots.get()), row * left.ld);
        Tile score(1, 1);
        math().multiply_memory({1, q_row, left.ld, score.data.get(), score.ld}, key);
        ASSERT_EQ(score.at(0, 0), scores.at(row, j)) << row << ", " << j;
        ASSERT_EQ(score.data[1], 0.0f) << "nothing is written past the last key";
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Tables, CpuMemoryProducts, testing::ValuesIn(tile_maths()),
                         [](const auto& test) { return std::string(test.param->name); });

TEST_P(CpuMemoryProducts, MultipliesRowsInMemory) {
  constexpr Sizes kMemorySizes[] = {{1, 1, 16},  {1, 64, 128}, {3, 17, 64},
                                    {4, 64, 80}, {8, 33, 512}, {5, 9, 48}};
  for (const Sizes& sizes : kMemorySizes) {
    expect_products<BFloat16>(DType::kBFloat16, sizes);
    if (math().slot_terms > 1) continue;  // rows are what the other operand is
    expect_products<Half>(DType::kFloat16, sizes);
    expect_products<float>(DType::kFloat32, sizes);
  }
}

}  // namespace
}  // namespace foveal::cpu
