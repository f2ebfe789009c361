// Every mask of small lengths and windows against the definition, pair by pair.
#include "algorithm/mask.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "unit/brute_mask.hpp"

namespace foveal::test {
namespace {

using algorithm::Mask;
using algorithm::Range;

constexpr std::int64_t kMaxSeqlen = 9;
constexpr std::int64_t kMaxWindow = 9;

TEST(AlgorithmMask, VisibleIsTheDefinition) {
  for_each_mask(kMaxSeqlen, kMaxWindow, [](const BruteMask& brute) {
    const Mask mask = brute.mask();
    for (std::int64_t i = 0; i < brute.seqlen_q; ++i) {
      for (std::int64_t j = 0; j < brute.seqlen_k; ++j) {
        ASSERT_EQ(mask.visible(i, j), brute.visible(i, j)) << brute << " i " << i << " j " << j;
      }
      ASSERT_FALSE(mask.visible(i, -1)) << brute << " i " << i;
      ASSERT_FALSE(mask.visible(i, brute.seqlen_k)) << brute << " i " << i;
    }
  });
}

TEST(AlgorithmMask, KeysOfARowAndRowsOfAKeyAreExact) {
  for_each_mask(kMaxSeqlen, kMaxWindow, [](const BruteMask& brute) {
    const Mask mask = brute.mask();
    for (std::int64_t i = 0; i < brute.seqlen_q; ++i) {
      const Members keys = members(brute.seqlen_k, [&](auto j) { return brute.visible(i, j); });
      ASSERT_TRUE(keys.contiguous);
      ASSERT_EQ(mask.keys_of_row(i), keys.range) << brute << " row " << i;
    }
    for (std::int64_t j = 0; j < brute.seqlen_k; ++j) {
      const Members rows = members(brute.seqlen_q, [&](auto i) { return brute.visible(i, j); });
      ASSERT_TRUE(rows.contiguous);
      ASSERT_EQ(mask.rows_of_key(j), rows.range) << brute << " key " << j;
    }
  });
}

/// Calls `visitor` with every range of [0, end), the empty ones included.
template <class Visitor>
void for_each_range(std::int64_t end, Visitor visitor) {
  for (std::int64_t min = 0; min <= end; ++min) {
    for (std::int64_t max = min; max <= end; ++max) visitor(Range{min, max});
  }
}

template <class Predicate>
bool any_of(Range range, Predicate predicate) {
  for (std::int64_t i = range.min; i < range.max; ++i) {
    if (predicate(i)) return true;
  }
  return false;
}

TEST(AlgorithmMask, KeysOfRowsAreTheUnionAndKeysOfEveryRowTheIntersection) {
  for_each_mask(kMaxSeqlen, kMaxWindow, [](const BruteMask& brute) {
    const Mask mask = brute.mask();
    for_each_range(brute.seqlen_q, [&](Range rows) {
      const auto seen = [&](std::int64_t j) {
        return any_of(rows, [&](auto i) { return brute.visible(i, j); });
      };
      const auto missed = [&](std::int64_t j) {
        return any_of(rows, [&](auto i) { return !brute.visible(i, j); });
      };
      const Members some = members(brute.seqlen_k, seen);
      ASSERT_TRUE(some.contiguous) << brute << " rows " << rows;
      ASSERT_EQ(mask.keys_of_rows(rows), some.range) << brute << " rows " << rows;
      const Members every =
          members(brute.seqlen_k, [&](auto j) { return !rows.empty() && !missed(j); });
      ASSERT_TRUE(every.contiguous) << brute << " rows " << rows;
      ASSERT_EQ(mask.keys_of_every_row(rows), every.range) << brute << " rows " << rows;
    });
  });
}

TEST(AlgorithmMask, RowsOfKeysAreTheUnionAndRowsOfEveryKeyTheIntersection) {
  for_each_mask(kMaxSeqlen, kMaxWindow, [](const BruteMask& brute) {
    const Mask mask = brute.mask();
    for_each_range(brute.seqlen_k, [&](Range keys) {
      const auto seeing = [&](std::int64_t i) {
        return any_of(keys, [&](auto j) { return brute.visible(i, j); });
      };
      const auto missing = [&](std::int64_t i) {
        return any_of(keys, [&](auto j) { return !brute.visible(i, j); });
      };
      const Members some = members(brute.seqlen_q, seeing);
      ASSERT_TRUE(some.contiguous) << brute << " keys " << keys;
      ASSERT_EQ(mask.rows_of_keys(keys), some.range) << brute << " keys " << keys;
      const Members every =
          members(brute.seqlen_q, [&](auto i) { return !keys.empty() && !missing(i); });
      ASSERT_TRUE(every.contiguous) << brute << " keys " << keys;
      ASSERT_EQ(mask.rows_of_every_key(keys), every.range) << brute << " keys " << keys;
    });
  });
}

TEST(AlgorithmMask, RangesThatLeaveTheSequenceAreCutToIt) {
  const Mask mask = BruteMask{.seqlen_q = 5, .seqlen_k = 7, .causal = true}.mask();
  EXPECT_EQ(mask.keys_of_rows({3, 64}), (Range{0, 7}));
  EXPECT_EQ(mask.keys_of_rows({5, 64}), (Range{0, 0}));
  EXPECT_EQ(mask.rows_of_keys({6, 64}), (Range{4, 5}));
  EXPECT_EQ(mask.rows_of_keys({7, 64}), (Range{0, 0}));
}

TEST(AlgorithmMask, HugeWindowsAreNoWindows) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  const BruteMask open{.seqlen_q = 4, .seqlen_k = 6};
  const BruteMask huge{
      .seqlen_q = 4, .seqlen_k = 6, .window_size_left = kHuge, .window_size_right = kHuge};
  EXPECT_EQ(huge.mask(), open.mask());
  EXPECT_EQ(huge.mask().keys_of_row(0), (Range{0, 6}));
  // Lengths near 2^31 and an unbounded window stay inside 64 bits.
  constexpr std::int64_t kLong = std::numeric_limits<std::int32_t>::max();
  const Mask long_mask = BruteMask{.seqlen_q = kLong, .seqlen_k = 1}.mask();
  EXPECT_EQ(long_mask.keys_of_row(0), (Range{0, 1}));
  EXPECT_EQ(long_mask.rows_of_key(0), (Range{0, kLong}));
}

TEST(AlgorithmMask, CausalForbidsWhatAWindowToTheRightAllows) {
  const BruteMask brute{.seqlen_q = 3, .seqlen_k = 3, .window_size_right = 2, .causal = true};
  EXPECT_EQ(brute.mask().keys_of_row(0), (Range{0, 1}));
}

}  // namespace
}  // namespace foveal::test
