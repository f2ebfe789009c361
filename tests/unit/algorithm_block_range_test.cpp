// Visited and full blocks of every small mask against a look at each of their pairs.
#include "algorithm/block_range.hpp"

#include <gtest/gtest.h>

#include <cstdint>

#include "unit/brute_mask.hpp"

namespace foveal::test {
namespace {

using algorithm::BlockRange;
using algorithm::Range;

constexpr std::int64_t kMaxSeqlen = 9;
constexpr std::int64_t kMaxWindow = 9;
constexpr std::int64_t kMaxTile = 4;

/// How many pairs of a tile are visible, of how many.
struct TileCount {
  std::int64_t visible = 0;
  std::int64_t all = 0;
};

template <class Visible>
TileCount count_tile(Range rows, Range columns, Visible visible) {
  TileCount count;
  for (std::int64_t i = rows.min; i < rows.max; ++i) {
    for (std::int64_t j = columns.min; j < columns.max; ++j) {
      ++count.all;
      if (visible(i, j)) ++count.visible;
    }
  }
  return count;
}

/// Compares a range of blocks along the columns with what each block holds. `columns_end` bounds
/// the sequence: a block that reaches past it is never full.
template <class Visible>
void expect_blocks(const BlockRange& range, Range rows, std::int64_t columns_end, std::int64_t tile,
                   Visible visible) {
  const std::int64_t num_blocks = ceil_div(columns_end, tile) + 1;
  const auto block_count = [&](std::int64_t block) {
    return count_tile(rows, Range{block * tile, (block + 1) * tile}, visible);
  };
  const Members visit =
      members(num_blocks, [&](auto block) { return block_count(block).visible > 0; });
  const Members full = members(num_blocks, [&](auto block) {
    const TileCount count = block_count(block);
    return count.all > 0 && count.visible == count.all;
  });
  ASSERT_TRUE(visit.contiguous && full.contiguous);
  ASSERT_EQ(range.visit, visit.range);
  ASSERT_EQ(range.full, full.range);
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    ASSERT_EQ(range.needs_mask(block), !full.range.contains(block));
  }
}

TEST(AlgorithmBlockRange, KeyBlocksOfQueryBlocksAreExact) {
  for_each_mask(kMaxSeqlen, kMaxWindow, [](const BruteMask& brute) {
    for (std::int64_t tile_m = 1; tile_m <= kMaxTile; ++tile_m) {
      for (std::int64_t begin = 0; begin < brute.seqlen_q; begin += tile_m) {
        const Range rows{begin, min_of(begin + tile_m, brute.seqlen_q)};
        for (std::int64_t tile_n = 1; tile_n <= kMaxTile; ++tile_n) {
          expect_blocks(algorithm::n_block_range(brute.mask(), rows, tile_n), rows, brute.seqlen_k,
                        tile_n, [&](auto i, auto j) { return brute.visible(i, j); });
          if (::testing::Test::HasFatalFailure()) {
            FAIL() << brute << " rows " << rows << " tile.n " << tile_n;
          }
        }
      }
    }
  });
}

TEST(AlgorithmBlockRange, QueryBlocksOfKeyBlocksAreExact) {
  for_each_mask(kMaxSeqlen, kMaxWindow, [](const BruteMask& brute) {
    for (std::int64_t tile_n = 1; tile_n <= kMaxTile; ++tile_n) {
      for (std::int64_t begin = 0; begin < brute.seqlen_k; begin += tile_n) {
        const Range keys{begin, min_of(begin + tile_n, brute.seqlen_k)};
        for (std::int64_t tile_m = 1; tile_m <= kMaxTile; ++tile_m) {
          expect_blocks(algorithm::m_block_range(brute.mask(), keys, tile_m), keys, brute.seqlen_q,
                        tile_m, [&](auto j, auto i) { return brute.visible(i, j); });
          if (::testing::Test::HasFatalFailure()) {
            FAIL() << brute << " keys " << keys << " tile.m " << tile_m;
          }
        }
      }
    }
  });
}

// A kernel may hand over a whole tile although the sequence ends inside it. Blocks that it visits
// stay exact; calling fewer of them full only costs the mask.
TEST(AlgorithmBlockRange, RowsPastTheEndNeitherVisitMoreNorSkipAMask) {
  for_each_mask(5, 3, [](const BruteMask& brute) {
    for (std::int64_t begin = 0; begin <= brute.seqlen_q; ++begin) {
      const Range whole{begin, begin + 4};
      const Range inside{begin, max_of(begin, min_of(begin + 4, brute.seqlen_q))};
      for (std::int64_t tile_n = 1; tile_n <= kMaxTile; ++tile_n) {
        const BlockRange range = algorithm::n_block_range(brute.mask(), whole, tile_n);
        const BlockRange exact = algorithm::n_block_range(brute.mask(), inside, tile_n);
        ASSERT_EQ(range.visit, exact.visit) << brute << " rows " << whole << " tile " << tile_n;
        ASSERT_EQ(algorithm::intersect(range.full, exact.full), range.full)
            << brute << " rows " << whole << " tile " << tile_n;
      }
    }
  });
}

TEST(AlgorithmBlockRange, PackedRowsMapToTheQueryRowsOfTheirHeads) {
  for (std::int64_t group = 1; group <= 5; ++group) {
    for (std::int64_t min = 0; min <= 12; ++min) {
      for (std::int64_t max = min; max <= 12; ++max) {
        const Members rows = members(13, [&](std::int64_t i) {
          for (std::int64_t r = min; r < max; ++r) {
            if (r / group == i) return true;
          }
          return false;
        });
        ASSERT_TRUE(rows.contiguous);
        ASSERT_EQ(algorithm::query_rows({min, max}, group), rows.range)
            << "packed [" << min << ", " << max << ") group " << group;
      }
    }
  }
}

TEST(AlgorithmBlockRange, SplitsPartitionTheBlocksEvenly) {
  for (std::int64_t min = 0; min <= 3; ++min) {
    for (std::int64_t max = min; max <= 15; ++max) {
      for (std::int64_t num_splits = 1; num_splits <= 17; ++num_splits) {
        const Range blocks{min, max};
        std::int64_t next = min;
        std::int64_t smallest = blocks.size();
        std::int64_t largest = 0;
        for (std::int64_t split = 0; split < num_splits; ++split) {
          const Range part = algorithm::split_blocks(blocks, split, num_splits);
          smallest = min_of(smallest, part.size());
          largest = max_of(largest, part.size());
          if (part.empty()) continue;
          ASSERT_EQ(part.min, next) << blocks << " split " << split << " of " << num_splits;
          next = part.max;
        }
        ASSERT_EQ(next, max) << blocks << " in " << num_splits;
        ASSERT_LE(largest - smallest, 1) << blocks << " in " << num_splits;
      }
    }
  }
}

}  // namespace
}  // namespace foveal::test
