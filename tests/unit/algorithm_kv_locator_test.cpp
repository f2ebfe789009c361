// Offsets of keys against the index arithmetic of each layout.
#include "algorithm/kv_locator.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>

namespace foveal::test {
namespace {

using algorithm::kv_locator;
using algorithm::KvLayout;
using algorithm::KvLocator;

TEST(AlgorithmKvLocator, DenseCacheRow) {
  const KvLayout layout{.page_stride = 1000, .row_stride = 50, .head_stride = 7, .dim_stride = 1};
  for (const std::int64_t cache_row : {0, 4}) {
    for (const std::int64_t head : {0, 3}) {
      for (const std::int64_t leftpad : {0, 2}) {
        const KvLocator locator = kv_locator(layout, /*b=*/1, cache_row, head, leftpad);
        for (std::int64_t j = 0; j < 9; ++j) {
          EXPECT_EQ(locator.row_offset(j), cache_row * 1000 + (leftpad + j) * 50 + head * 7);
          EXPECT_EQ(locator.contiguous_rows(j, 5), 5);
        }
      }
    }
  }
}

TEST(AlgorithmKvLocator, PackedRowsCountFromTheDocument) {
  const KvLayout layout{.page_stride = 0, .row_stride = -24, .head_stride = 8, .dim_stride = 1};
  const KvLocator locator = kv_locator(layout, /*b=*/2, /*cache_row=*/2, /*head_k=*/1,
                                       /*first_row=*/10);
  EXPECT_EQ(locator.row_offset(0), -240 + 8);
  EXPECT_EQ(locator.row_offset(3), -312 + 8);
}

TEST(AlgorithmKvLocator, PagedRowsFollowTheTable) {
  // Two sequences, three columns, the table itself transposed in memory.
  constexpr std::int64_t kBatch = 2;
  constexpr std::int64_t kColumns = 3;
  const std::array<std::int32_t, kBatch * kColumns> table{5, 1, 0, 4, 2, 3};
  for (std::int64_t page_size = 1; page_size <= 5; ++page_size) {
    const KvLayout layout{.page_stride = 10000,
                          .row_stride = 100,
                          .head_stride = 10,
                          .dim_stride = 1,
                          .block_table = table.data(),
                          .block_table_batch_stride = 1,
                          .block_table_page_stride = kBatch,
                          .page_size = page_size,
                          .num_pages = 6};
    for (std::int64_t b = 0; b < kBatch; ++b) {
      for (std::int64_t leftpad = 0; leftpad < kColumns * page_size; ++leftpad) {
        const KvLocator locator = kv_locator(layout, b, /*cache_row=*/b, /*head_k=*/2, leftpad);
        const std::int64_t num_keys = kColumns * page_size - leftpad;
        for (std::int64_t j = 0; j < num_keys; ++j) {
          const std::int64_t token = leftpad + j;
          const std::int64_t page = table[static_cast<std::size_t>(token / page_size * kBatch + b)];
          ASSERT_EQ(locator.row_offset(j), page * 10000 + token % page_size * 100 + 20)
              << "page_size " << page_size << " b " << b << " leftpad " << leftpad << " j " << j;

          const std::int64_t run = locator.contiguous_rows(j, num_keys - j);
          ASSERT_GE(run, 1);
          for (std::int64_t step = 1; step < run; ++step) {
            ASSERT_EQ(locator.row_offset(j + step), locator.row_offset(j) + step * 100);
          }
          const bool ends_page = (token + run) % page_size == 0;
          ASSERT_TRUE(ends_page || run == num_keys - j) << "a run that stops inside a page";
        }
      }
    }
  }
}

TEST(AlgorithmKvLocator, WildPageNumbersStayInsideTheCache) {
  const std::array<std::int32_t, 4> table{-1, 6, std::numeric_limits<std::int32_t>::max(),
                                          std::numeric_limits<std::int32_t>::min()};
  const KvLayout layout{.page_stride = 16,
                        .row_stride = 1,
                        .block_table = table.data(),
                        .block_table_batch_stride = 4,
                        .page_size = 16,
                        .num_pages = 6};
  const KvLocator locator = kv_locator(layout, 0, 0, 0, 0);
  for (std::int64_t j = 0; j < 64; ++j) {
    EXPECT_GE(locator.row_offset(j), 0);
    EXPECT_LT(locator.row_offset(j), 6 * 16);
  }
}

}  // namespace
}  // namespace foveal::test
