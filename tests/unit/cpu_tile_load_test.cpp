// Rows between memory and tiles, and what happens to a tile's scores: any strides and alignment,
// pages, zeros for what nobody sees, bias, mask and dropout.
#include "cpu/tile_load.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "algorithm/dropout.hpp"
#include "cpu/score_tile.hpp"
#include "cpu_tile.hpp"

namespace foveal::cpu {
namespace {

using algorithm::KvLayout;
using algorithm::KvLocator;
using algorithm::Range;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// 0, 1, 2, ...
std::vector<float> counting(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  return values;
}

TEST(CpuTileLoad, LoadsAndStoresAnyStrideAndAlignment) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
    for (const std::int64_t stride : {1, 3, 0, -2}) {
      std::vector<std::byte> memory(512, std::byte{0});
      std::byte* base = memory.data() + 201;  // odd address, room on both sides
      for (std::int64_t i = -20; i <= 30; ++i) {
        store_scalar(dtype, base, i, static_cast<float>(i));
      }
      Tile row(1, 16);
      for (std::int64_t j = 0; j < 16; ++j) row.at(0, j) = kNan;
      RowLoader{&portable_tile_math(), base, dtype, stride, 10}.load(2, row.data.get());
      for (std::int64_t j = 0; j < 16; ++j) {
        const std::int64_t expected = j < 10 ? 2 + j * stride : 0;
        EXPECT_EQ(row.at(0, j), static_cast<float>(expected)) << stride << " " << j;
      }
      if (stride == 0) continue;  // no layout for a result
      std::vector<std::byte> stored(512, std::byte{0x5a});
      std::byte* to = stored.data() + 201;
      RowStorer{&portable_tile_math(), to, dtype, stride, 10}.store(row.data.get(), 2);
      for (std::int64_t j = 0; j < 10; ++j) {
        EXPECT_EQ(load_scalar(dtype, to, 2 + j * stride), row.at(0, j)) << stride << " " << j;
      }
    }
  }
}

TEST(CpuTileLoad, QueryRowsOfAGroupAreInterleaved) {
  // [2 batches, 3 rows, 4 heads, 2]: KV head 1 has the query heads 2 and 3.
  const std::vector<float> q = counting(2 * 3 * 4 * 2);
  const RowLoader loader{&portable_tile_math(), q.data(), DType::kFloat32, 1, 2};
  const QueryTile rows{.b = 1, .q_begin = 0, .head_k = 1, .group = 2, .packed = {1, 5}};
  Tile tile(4, 2);
  load_query_rows(loader, {24, 8, 2, 1}, rows, tile.data.get(), tile.ld);
  const float firsts[] = {24 + 0 * 8 + 3 * 2, 24 + 1 * 8 + 2 * 2, 24 + 1 * 8 + 3 * 2,
                          24 + 2 * 8 + 2 * 2};
  for (std::int64_t row = 0; row < 4; ++row) {
    EXPECT_EQ(tile.at(row, 0), firsts[row]) << row;
    EXPECT_EQ(tile.at(row, 1), firsts[row] + 1) << row;
  }
}

TEST(CpuTileLoad, UnseenKeysAreZeroAndNotRead) {
  std::vector<float> k = counting(12 * 3);
  for (const std::size_t row : {4, 5, 9, 10, 11}) {
    for (std::size_t d = 0; d < 3; ++d) k[3 * row + d] = kNan;
  }
  KvLayout layout;
  layout.row_stride = 3;
  const KvLocator locator = algorithm::kv_locator(layout, 0, 0, 0, /*first_row=*/1);
  const RowLoader loader{&portable_tile_math(), k.data(), DType::kFloat32, 1, 3};
  Tile tile(16, 3);
  for (std::int64_t row = 0; row < 16; ++row) tile.at(row, 0) = kNan;
  // Keys 3..10 are rows 4..11; seen are the keys 5..7, rows 6..8.
  load_key_rows(loader, locator, {3, 11}, {5, 8}, tile.data.get(), tile.ld);
  for (std::int64_t row = 0; row < 16; ++row) {
    const bool seen = row >= 2 && row < 5;
    EXPECT_EQ(tile.at(row, 0), seen ? static_cast<float>(3 * (row + 4)) : 0.0f) << row;
  }
  load_key_rows(loader, locator, {3, 11}, {0, 0}, tile.data.get(), tile.ld);
  for (std::int64_t row = 0; row < 16; ++row) EXPECT_EQ(tile.at(row, 0), 0.0f) << row;
}

TEST(CpuTileLoad, KeysOfPagesInAnyOrder) {
  const std::vector<float> k = counting(5 * 4);  // 5 pages of 4 rows of 1
  const std::int32_t table[] = {3, 0, 4};
  KvLayout layout;
  layout.page_stride = 4;
  layout.row_stride = 1;
  layout.block_table = table;
  layout.page_size = 4;
  layout.num_pages = 5;
  const KvLocator locator = algorithm::kv_locator(layout, 0, 0, 0, /*first_row=*/2);
  const RowLoader loader{&portable_tile_math(), k.data(), DType::kFloat32, 1, 1};
  Tile tile(16, 1);
  const KeyRows rows{loader, locator, {0, 9}, {0, 9}};
  const KeyRows ahead{loader, locator, {9, 10}, {0, 10}};
  load_key_rows(rows, ahead, tile.data.get(), tile.ld);
  const float expected[] = {14, 15, 0, 1, 2, 3, 16, 17, 18};
  for (std::int64_t row = 0; row < 9; ++row) EXPECT_EQ(tile.at(row, 0), expected[row]) << row;
}

/// Two query heads on one KV head, 3 rows, keys 4..13 of 14, causal: row i sees keys up to 11 + i.
ScoreTile causal_tile() {
  return {.rows = {.b = 1, .q_begin = 0, .head_k = 0, .group = 2, .packed = {0, 6}},
          .mask = {3, 14, {algorithm::kUnbounded, 0}},
          .keys = {4, 14}};
}

TEST(CpuScoreTile, ScalesCapsBiasesAndMasks) {
  ScoreOptions options;
  options.math = &portable_tile_math();
  options.softmax_scale = 0.25f;
  options.softcap = 1.5f;
  const std::vector<float> bias = counting(2 * 2 * 3 * 14);
  options.bias = bias.data();
  options.bias_dtype = DType::kFloat32;
  options.bias_strides = {84, 42, 14, 1};
  const float slopes[] = {9, 9, 0.5f, 0.125f};
  options.alibi_slopes = slopes;
  options.alibi_batch_stride = 2;
  options.alibi_head_stride = 1;

  const ScoreTile tile = causal_tile();
  Tile scores = random_tile(6, 16, 9);
  const Tile products = random_tile(6, 16, 9);
  scale_and_cap(options, tile, scores.data.get(), scores.ld);
  bias_and_mask(options, tile, /*needs_mask=*/true, scores.data.get(), scores.ld);
  for (std::int64_t r = 0; r < 6; ++r) {
    const std::int64_t i = r / 2, h = r % 2;
    for (std::int64_t column = 0; column < 16; ++column) {
      const std::int64_t j = 4 + column;
      if (j > 11 + i) {
        EXPECT_EQ(scores.at(r, column), -kInfinity) << r << " " << j;
        continue;
      }
      const double capped = 1.5 * std::tanh(0.25 * products.at(r, column) / 1.5);
      const double slope = h == 0 ? 0.5 : 0.125;
      const double expected = capped + static_cast<double>(84 + h * 42 + i * 14 + j) -
                              slope * std::abs(static_cast<double>(i + 11 - j));
      EXPECT_NEAR(scores.at(r, column), expected, 1e-4) << r << " " << j;
    }
  }
}

TEST(CpuScoreTile, BoolMaskHidesWhereItIsZero) {
  ScoreOptions options;
  options.math = &portable_tile_math();
  const std::uint8_t mask[14] = {0, 0, 0, 0, 1, 0, 2, 255, 0, 1, 1, 0, 1, 1};
  options.bias = mask;
  options.bias_dtype = DType::kBool;
  options.bias_strides = {0, 0, 0, 1};
  const ScoreTile tile = causal_tile();
  Tile scores = random_tile(6, 16, 9);
  bias_and_mask(options, tile, /*needs_mask=*/false, scores.data.get(), scores.ld);
  for (std::int64_t column = 0; column < 16; ++column) {
    const bool visible = column < 10 && mask[4 + column] != 0;
    EXPECT_EQ(scores.at(5, column) != -kInfinity, visible) << column;
  }
}

TEST(CpuScoreTile, DropoutFactorsAreTheMasksOfTheContract) {
  ScoreOptions options;
  options.nheads_q = 2;
  options.dropout = algorithm::make_dropout(0.3f, 42, 7);
  const ScoreTile tile = causal_tile();
  const Floats factors = aligned_floats(16);
  int kept = 0;
  for (std::int64_t r = 0; r < 6; ++r) {
    dropout_factors(options, tile, r, factors.get());
    for (std::int64_t column = 0; column < 10; ++column) {
      const bool keeps =
          algorithm::dropout_keeps(options.dropout, 1 * 2 + r % 2, r / 2, 4 + column);
      EXPECT_EQ(factors[column], keeps ? options.dropout.keep_scale : 0.0f) << r << " " << column;
      kept += keeps;
    }
  }
  EXPECT_GT(kept, 25);
  EXPECT_LT(kept, 58);
}

}  // namespace
}  // namespace foveal::cpu
