// How decode blocks share a list of granules: every granule has one owner, and all blocks agree on
// where the parts of a unit lie.
#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/portable/decode/shares.hpp"

namespace foveal::cuda::decode {
namespace {

TEST(DecodeShares, BeginWhereSixtyFourBitsSay) {
  for (const int total : {1, 7, 264, 1000, 65535, 65536, 1 << 28, 1342177280, 2147483647}) {
    for (const int blocks : {1, 2, 3, 33, 131, 264, 1000, 65535}) {
      if (blocks > total) continue;
      const Shares shares(total, blocks);
      EXPECT_EQ(shares.begin(0), 0);
      EXPECT_EQ(shares.begin(blocks), total);
      for (int block = 0; block < blocks; ++block) {
        ASSERT_EQ(shares.begin(block), std::int64_t{total} * block / blocks)
            << total << " granules, " << blocks << " blocks, block " << block;
        ASSERT_LT(shares.begin(block), shares.begin(block + 1));
      }
    }
  }
}

TEST(DecodeShares, AGranuleIsItsOwners) {
  for (const int total : {1, 7, 264, 1000, 4097, 2147483646}) {
    for (const int blocks : {1, 2, 3, 33, 264, 999}) {
      if (blocks > total) continue;
      const Shares shares(total, blocks);
      for (int block = 0; block < blocks; ++block) {
        ASSERT_EQ(shares.owner(shares.begin(block)), block);
        ASSERT_EQ(shares.owner(shares.begin(block + 1) - 1), block);
      }
    }
  }
}

struct Unit {
  int begin;
  int size;
};

/// Units of the given sizes, one after the other.
std::vector<Unit> units_of(const std::vector<int>& sizes) {
  std::vector<Unit> units;
  int begin = 0;
  for (const int size : sizes) {
    units.push_back({begin, size});
    begin += size;
  }
  return units;
}

std::vector<std::vector<int>> lists_of_sizes() {
  std::vector<std::vector<int>> lists = {
      {5}, {7, 7, 7, 7}, {1000, 7, 7}, {7, 7, 1000}, {1, 1, 1, 1}};
  std::uint32_t random = 1;
  for (int i = 0; i < 40; ++i) {
    std::vector<int> sizes;
    for (int unit = 0; unit < 20; ++unit) {
      random = random * 1664525u + 1013904223u;
      sizes.push_back(1 + static_cast<int>((random >> 16) % (unit % 5 == 0 ? 300u : 9u)));
    }
    lists.push_back(sizes);
  }
  return lists;
}

/// What each block leaves of a unit that it does not have whole, and what the block with the unit's
/// last granule looks for.
TEST(DecodeShares, BlocksLeaveTheirPartsWhereTheMergeLooks) {
  for (const std::vector<int>& sizes : lists_of_sizes()) {
    const std::vector<Unit> units = units_of(sizes);
    const int total = units.back().begin + units.back().size;
    for (const int most : {1, 2, 3, 8, 33, 264}) {
      const int blocks = std::min(most, total);
      const Shares shares(total, blocks);
      std::set<std::int64_t> slots;
      for (const Unit& unit : units) {
        const UnitParts parts(shares, /*granules_apart=*/false, unit.begin, unit.size);
        ASSERT_GE(parts.count, 1);
        // The merging block is the last of them, so that a block waits for lower ones alone.
        EXPECT_EQ(parts.first_block + parts.count - 1, shares.owner(unit.begin + unit.size - 1));
        for (int part = 0; part < parts.count; ++part) {
          const int block = parts.first_block + part;
          EXPECT_LT(std::max(shares.begin(block), unit.begin),
                    std::min(shares.begin(block + 1), unit.begin + unit.size));
          if (parts.count == 1) continue;
          EXPECT_TRUE(slots.insert(parts.slot(part)).second) << "two parts in one slot";
          EXPECT_GE(parts.slot(part), 0);
          EXPECT_LT(parts.slot(part), 2 * blocks);
        }
      }
    }
  }
}

TEST(DecodeShares, GranulesApartHaveASlotEach) {
  const Shares shares(100, 7);
  const UnitParts parts(shares, /*granules_apart=*/true, /*unit_begin=*/40, /*unit_size=*/30);
  EXPECT_EQ(parts.count, 30);
  for (int part = 0; part < parts.count; ++part) EXPECT_EQ(parts.slot(part), 40 + part);
}

}  // namespace
}  // namespace foveal::cuda::decode
