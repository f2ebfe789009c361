// In which order hopper_bwd takes tiles of keys and adds to dq: every tile comes once, after all
// that it waits for, and sections are as large as the L2 cache and the blocks want them.
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "algorithm/block_range.hpp"
#include "algorithm/mask.hpp"
#include "core/integer.hpp"
#include "cuda/hopper/bwd/config.hpp"
#include "unit/hopper_backward_problem.hpp"

namespace foveal::test {
namespace {

namespace bwd = cuda::hopper::bwd;

/// Asserts that every tile comes once, and those of a pair in the direction that each names.
void expect_every_tile_once(const bwd::KeyTileOrder& order) {
  std::vector<std::int32_t> count(static_cast<std::size_t>(order.pairs), 0);
  for (std::uint32_t index = 0; index < static_cast<std::uint32_t>(order.pairs * order.blocks);
       ++index) {
    const bwd::KeyTilePlace tile = bwd::key_tile_place(order, index);
    const std::int32_t before = count.at(static_cast<std::size_t>(tile.pair))++;
    ASSERT_EQ(tile.block, tile.falling ? order.blocks - 1 - before : before);
  }
  for (const std::int32_t of_pair : count) EXPECT_EQ(of_pair, order.blocks);
}

/// Of the pairs 0, 1, ...: whether their tiles fall.
std::vector<bool> falling_pairs(const bwd::KeyTileOrder& order) {
  std::vector<bool> falling(static_cast<std::size_t>(order.pairs));
  for (std::uint32_t index = 0; index < static_cast<std::uint32_t>(order.pairs * order.blocks);
       ++index) {
    const bwd::KeyTilePlace tile = bwd::key_tile_place(order, index);
    falling.at(static_cast<std::size_t>(tile.pair)) = tile.falling;
  }
  return falling;
}

// A tile that waits for its turn then waits for one that came before it.
TEST(HopperBackwardOrder, EveryTileOfKeysComesOnceInTheOrderOfItsPair) {
  for (const std::int32_t section : {1, 3, 5, 8}) {
    for (const std::int32_t falling : {0, 1, 4, 7}) {
      const bwd::KeyTileOrder order{.blocks = 6,
                                    .pairs = 8,
                                    .section = section,
                                    .falling_pairs = falling,
                                    .falling_section = 9 - section};
      expect_every_tile_once(order);
      for (std::int32_t pair = 0; pair < order.pairs; ++pair) {
        ASSERT_EQ(falling_pairs(order).at(static_cast<std::size_t>(pair)), pair < falling);
      }
    }
    expect_every_tile_once({.blocks = 6, .pairs = 8, .section = section, .alternates = true});
  }
}

// A rising section begins well where tiles end one after the other, as those of a falling one do.
TEST(HopperBackwardOrder, SectionsThatAlternateEndRisingAndBeginFalling) {
  struct Alternating {
    std::int32_t section;
    std::vector<bool> falling;  ///< Of each of six pairs.
  };
  for (const Alternating& c : {Alternating{1, {true, false, true, false, true, false}},
                               Alternating{2, {true, true, true, true, false, false}},
                               Alternating{3, {true, true, true, false, false, false}},
                               Alternating{4, {true, true, true, true, false, false}}}) {
    EXPECT_EQ(falling_pairs({.blocks = 5, .pairs = 6, .section = c.section, .alternates = true}),
              c.falling)
        << c.section;
  }
}

// A tile's turn to add to a tile of rows is the number of tiles before it that add there as well;
// together they are what the conversion waits for.
TEST(HopperBackwardOrder, TurnsCountTheTilesThatAddBefore) {
  std::mt19937 random(11);
  const auto draw = [&](std::int32_t max) { return std::uniform_int_distribution{0, max}(random); };
  constexpr auto kUnbounded = algorithm::kUnboundedOf<std::int32_t>;
  for (int round = 0; round < 6000; ++round) {
    const bwd::BackwardTile tile =
        round % 2 == 0 ? bwd::BackwardHdim128::tile : bwd::BackwardHdim64::tile;
    const bool falling = round % 4 < 2;
    const std::int32_t left = draw(2) == 0 ? kUnbounded : draw(400);
    const std::int32_t right = draw(2) == 0 ? kUnbounded : draw(1) * draw(200);
    const algorithm::BasicMask<std::int32_t> mask{draw(900), draw(900), {left, right}};
    const algorithm::Mask wide{mask.seqlen_q, mask.seqlen_k, {left, right}};
    const std::int32_t leftpad = draw(1) * draw(300);
    std::vector<std::int32_t> added(static_cast<std::size_t>(mask.seqlen_q / tile.m + 1), 0);
    const std::int32_t blocks = ceil_div(mask.seqlen_k + leftpad, tile.n);
    for (std::int32_t place = 0; place < blocks; ++place) {
      const std::int32_t block = falling ? blocks - 1 - place : place;
      const bwd::DqTurns turns = bwd::dq_turns(tile, mask, leftpad, block, falling);
      const std::int64_t first = block * tile.n - leftpad;
      const algorithm::BlockRange rows = algorithm::m_block_range(
          wide, algorithm::intersect({first, first + tile.n}, {0, mask.seqlen_k}), tile.m);
      for (std::int64_t m = rows.visit.min; m < rows.visit.max; ++m) {
        const auto m_block = static_cast<std::int32_t>(m);
        ASSERT_EQ(bwd::dq_turn(tile, turns, falling ? 1 : -1, m_block * tile.m),
                  added.at(static_cast<std::size_t>(m))++)
            << (falling ? "falling, " : "rising, ") << mask.seqlen_q << " x " << mask.seqlen_k
            << ", window " << left << ", " << right << ", leftpad " << leftpad << ", tile " << block
            << ", rows from " << m_block * tile.m;
      }
    }
    for (std::int32_t m_block = 0; m_block * tile.m < mask.seqlen_q; ++m_block) {
      ASSERT_EQ(bwd::dq_additions(tile, mask, leftpad, m_block * tile.m),
                added.at(static_cast<std::size_t>(m_block)))
          << mask.seqlen_q << " x " << mask.seqlen_k << ", window " << left << ", " << right
          << ", leftpad " << leftpad << ", rows from " << m_block * tile.m;
    }
  }
}

// The heads of a section end together: a short last section would leave multiprocessors idle.
TEST(HopperBackwardOrder, SectionsAreAlike) {
  for (const std::int64_t nheads : {1, 7, 32, 33}) {
    for (const bool deterministic : {false, true}) {
      AttentionProblem p = dense_backward(4096, 128, DType::kBFloat16);
      for (TensorSpec* spec : {&p.q, &p.k, &p.v, &p.out, &p.dout, &p.dq, &p.dk, &p.dv}) {
        *spec = TensorSpec::contiguous(DType::kBFloat16, {1, 4096, nheads, 128});
      }
      const bwd::KeyTileOrder order = bwd::key_tile_order(make_geometry(p), deterministic);
      const auto expect_alike = [&](std::int64_t pairs, std::int64_t section) {
        const std::int64_t last = pairs - (pairs - 1) / section * section;
        EXPECT_GE(last + (pairs - 1) / section, section) << nheads;
      };
      if (order.falling_pairs > 0) expect_alike(order.falling_pairs, order.falling_section);
      expect_alike(nheads - order.falling_pairs, order.section);
    }
  }
}

struct OrderCase {
  std::int64_t seqlen = 4096;
  std::int64_t headdim = 128;
  std::int64_t nheads_q = 32;
  std::int64_t nheads_k = 32;
  std::int64_t batch = 1;
  std::int64_t seqlen_k = 0;  ///< 0: as seqlen.
  bool causal = true;
  std::int64_t window_right = -1;
  std::int64_t window_left = -1;
  bool packed_q = false;  ///< Documents of seqlen.
  bool packed_k = false;
  std::int64_t documents = 4;
};

AttentionProblem problem_of(const OrderCase& c) {
  AttentionProblem p = dense_backward(c.seqlen, c.headdim, DType::kBFloat16);
  p.causal = c.causal;
  p.window_size_right = c.window_right;
  p.window_size_left = c.window_left;
  const std::int64_t seqlen_k = c.seqlen_k > 0 ? c.seqlen_k : c.seqlen;
  const std::int64_t batch = c.packed_q || c.packed_k ? c.documents : c.batch;
  const auto shape = [&](bool packed, std::int64_t rows, std::int64_t heads) {
    if (packed) {
      return TensorSpec::contiguous(DType::kBFloat16, {batch * rows, heads, c.headdim});
    }
    return TensorSpec::contiguous(DType::kBFloat16, {batch, rows, heads, c.headdim});
  };
  for (TensorSpec* spec : {&p.q, &p.out, &p.dout, &p.dq}) {
    *spec = shape(c.packed_q, c.seqlen, c.nheads_q);
  }
  for (TensorSpec* spec : {&p.k, &p.v, &p.dk, &p.dv}) {
    *spec = shape(c.packed_k, seqlen_k, c.nheads_k);
  }
  if (c.packed_q) {
    p.cu_seqlens_q = TensorSpec::contiguous(DType::kInt32, {batch + 1});
    p.max_seqlen_q = c.seqlen;
  }
  if (c.packed_k) {
    p.cu_seqlens_k = TensorSpec::contiguous(DType::kInt32, {batch + 1});
    p.max_seqlen_k = seqlen_k;
  }
  return p;
}

bwd::KeyTileOrder order_of(const OrderCase& c, bool deterministic) {
  return bwd::key_tile_order(make_geometry(problem_of(c)), deterministic);
}

// A launch has a ticket for every tile, whatever is packed.
TEST(HopperBackwardOrder, TheOrderHasEveryTileOfKeys) {
  for (const OrderCase& c :
       {OrderCase{}, OrderCase{.seqlen = 4097, .batch = 3},
        OrderCase{.nheads_q = 12, .nheads_k = 3, .packed_q = true, .packed_k = true},
        OrderCase{.packed_q = true}, OrderCase{.seqlen = 100, .packed_k = true}}) {
    for (const bool deterministic : {false, true}) {
      const AttentionGeometry geometry = make_geometry(problem_of(c));
      const bwd::KeyTileOrder order = bwd::key_tile_order(geometry, deterministic);
      EXPECT_EQ(order.blocks * order.pairs, bwd::key_tiles(geometry) * geometry.nheads_k);
    }
  }
}

// As many as the L2 cache holds, but tiles enough for all blocks, and sections that are alike.
TEST(HopperBackwardOrder, SectionsFillTheCacheAndTheBlocks) {
  const auto section = [](const OrderCase& c) { return order_of(c, false).section; };
  EXPECT_EQ(section({.seqlen = 4096, .nheads_k = 8}), 8);
  EXPECT_EQ(section({.seqlen = 8192, .nheads_k = 8}), 4);
  EXPECT_EQ(section({.seqlen = 16384, .nheads_k = 8}), 2);
  EXPECT_EQ(section({.nheads_k = 8, .packed_q = true, .packed_k = true}), 8) << "documents";
  EXPECT_EQ(section({.nheads_q = 36, .nheads_k = 9}), 9) << "five and four would be few";
  EXPECT_EQ(section({.nheads_q = 68, .nheads_k = 17}), 9) << "what nothing divides";
  EXPECT_EQ(section({.headdim = 192, .nheads_q = 16, .nheads_k = 8}), 2) << "three would fit";
  EXPECT_EQ(section({.headdim = 256, .nheads_q = 16, .nheads_k = 8}), 2);
  EXPECT_EQ(section({.seqlen = 1 << 20, .headdim = 256, .nheads_q = 16, .nheads_k = 8}), 1);
  EXPECT_EQ(section({.seqlen = 64, .nheads_q = 8, .nheads_k = 8, .causal = false}), 8);
}

struct FallingCase {
  OrderCase shape;
  std::int32_t rising;
  std::int32_t falling_section;
};

// As many rise as give all blocks work twice over, where that leaves half to fall.
TEST(HopperBackwardOrder, TilesOfCausalHeadsWithoutGroupsFall) {
  for (const FallingCase& c :
       {FallingCase{.shape = {.headdim = 64}, .rising = 8, .falling_section = 8},
        FallingCase{.shape = {.seqlen = 16384, .headdim = 64}, .rising = 2, .falling_section = 3},
        FallingCase{.shape = {}, .rising = 8, .falling_section = 4},
        FallingCase{.shape = {.seqlen = 8192, .headdim = 96}, .rising = 4, .falling_section = 2},
        FallingCase{.shape = {.seqlen = 16384}, .rising = 2, .falling_section = 1},
        FallingCase{
            .shape = {.packed_q = true, .packed_k = true}, .rising = 8, .falling_section = 4},
        FallingCase{.shape = {.batch = 2}, .rising = 8, .falling_section = 4}}) {
    for (const bool deterministic : {false, true}) {
      const bwd::KeyTileOrder order = order_of(c.shape, deterministic);
      EXPECT_TRUE(order.by_rows);
      EXPECT_EQ(order.falling_pairs, order.pairs - c.rising) << c.shape.seqlen;
      EXPECT_EQ(order.section, c.rising) << c.shape.seqlen;
      EXPECT_EQ(order.falling_section, c.falling_section) << c.shape.seqlen;
    }
  }
  const auto falling = [](const OrderCase& c, bool deterministic) {
    return order_of(c, deterministic).falling_pairs;
  };
  EXPECT_EQ(falling({.nheads_q = 1, .nheads_k = 1}, true), 0);
  EXPECT_EQ(falling({.nheads_q = 2, .nheads_k = 2}, true), 1);
  EXPECT_EQ(falling({.nheads_q = 3, .nheads_k = 3}, true), 2);
  EXPECT_EQ(falling({.nheads_q = 12, .nheads_k = 12}, true), 6);
  EXPECT_EQ(falling({.nheads_k = 8}, true), 0) << "groups";
  EXPECT_EQ(falling({.headdim = 256}, true), 0) << "wide";
}

// Where nobody waits for a turn, only a mask that later tiles of keys see less of is a reason.
TEST(HopperBackwardOrder, WithoutTurnsTilesFallForTheSakeOfTheCache) {
  const auto falling = [](const OrderCase& c) { return order_of(c, false).falling_pairs; };
  EXPECT_EQ(falling({.nheads_q = 16, .nheads_k = 16}), 0) << "most would rise";
  EXPECT_EQ(falling({.causal = false}), 0);
  EXPECT_EQ(falling({.causal = false, .window_right = 4095}), 0) << "hides nothing";
  EXPECT_EQ(falling({.causal = false, .window_right = 1000}), 24);
  EXPECT_EQ(falling({.seqlen = 8192, .seqlen_k = 4096}), 24) << "more rows than keys";
  EXPECT_EQ(falling({.seqlen = 128, .seqlen_k = 4096}), 0) << "most keys begin with the first row";
  EXPECT_FALSE(order_of({.causal = false}, false).by_rows);
  EXPECT_EQ(order_of({.causal = false}, true).falling_pairs, 24);
}

TEST(HopperBackwardOrder, TilesThatAddInTurnAreOfManyHeads) {
  OrderCase wide{.headdim = 256, .nheads_q = 16, .nheads_k = 8, .causal = false};
  const OrderCase long_wide{.seqlen = 16384, .headdim = 256, .nheads_q = 16, .nheads_k = 8};
  EXPECT_EQ(order_of(wide, true).section, 8);
  EXPECT_EQ(order_of(long_wide, true).section, 4);
  EXPECT_EQ(order_of(long_wide, false).section, 1);
  wide.packed_q = wide.packed_k = true;
  wide.causal = true;
  EXPECT_EQ(order_of(wide, true).section, 8) << "documents";
  EXPECT_EQ(order_of({.headdim = 256, .nheads_q = 2, .nheads_k = 2}, true).section, 2);
}

// While a head's rows of two sections fit into the cache, those of a causal mask alternate, if all
// sections then are of one size.
TEST(HopperBackwardOrder, SectionsOfGroupsAndWideHeadsAlternate) {
  struct Alternating {
    OrderCase shape;
    std::int32_t section = 0;  ///< 0: they don't.
  };
  for (const Alternating& c :
       {Alternating{{.headdim = 256, .nheads_q = 16, .nheads_k = 8}, 2},
        Alternating{{.headdim = 256, .nheads_q = 16, .nheads_k = 16}, 2},
        Alternating{{.headdim = 256, .nheads_q = 14, .nheads_k = 7}},
        Alternating{{.headdim = 256, .nheads_q = 2, .nheads_k = 2}},
        Alternating{{.seqlen = 8192, .headdim = 256, .nheads_q = 16, .nheads_k = 8}, 1},
        Alternating{{.seqlen = 8192, .headdim = 256, .nheads_q = 5, .nheads_k = 5}, 1},
        Alternating{{.seqlen = 16384, .headdim = 256, .nheads_q = 16, .nheads_k = 8}},
        Alternating{{.headdim = 192, .nheads_q = 14, .nheads_k = 7, .batch = 2}, 2},
        Alternating{{.nheads_k = 8}, 4},
        Alternating{{.nheads_q = 36, .nheads_k = 12}, 4},
        Alternating{{.nheads_q = 26, .nheads_k = 13}},
        Alternating{{.seqlen = 2048, .nheads_k = 8}},
        Alternating{{.seqlen = 2048, .nheads_k = 16}, 8},
        Alternating{{.seqlen = 8192, .nheads_k = 8}, 2},
        Alternating{{.seqlen = 8192, .nheads_q = 28, .nheads_k = 7}},
        Alternating{{.seqlen = 16384, .nheads_k = 8}, 1},
        Alternating{{.seqlen = 32768, .nheads_k = 8}},
        Alternating{{.seqlen = 8192, .headdim = 64, .nheads_k = 8}, 4},
        Alternating{{.seqlen = 4096, .nheads_k = 8, .packed_k = true, .documents = 1}, 4},
        Alternating{{.nheads_k = 8, .packed_q = true, .packed_k = true}},
        Alternating{{.nheads_k = 8, .packed_q = true}, 4},
        Alternating{{.nheads_k = 8, .seqlen_k = 8192}},
        Alternating{{.seqlen = 5120, .nheads_k = 8, .seqlen_k = 4096}, 4},
        Alternating{{.nheads_k = 8, .causal = false}},
        Alternating{{.nheads_k = 8, .causal = false, .window_right = 100}, 4},
        Alternating{{.nheads_k = 8, .causal = false, .window_right = 4095}},
        Alternating{{.nheads_k = 8, .window_left = 4000}},
        Alternating{{.nheads_k = 8, .window_left = 4095}, 4}}) {
    const bwd::KeyTileOrder order = order_of(c.shape, true);
    EXPECT_EQ(order.alternates ? order.section : 0, c.section)
        << c.shape.seqlen << ", headdim " << c.shape.headdim << ", KV heads " << c.shape.nheads_k;
    EXPECT_EQ(order.by_rows, !order.alternates);
    EXPECT_EQ(order.falling_pairs, 0);
    EXPECT_FALSE(order_of(c.shape, false).alternates);
  }
}

// Every tile of rows is converted once, those of falling tiles of keys from the first on.
TEST(HopperBackwardOrder, TheConversionTakesEveryTileOfRowsOnce) {
  constexpr std::int32_t kBlocks = 7;
  for (const bool alternates : {false, true}) {
    for (const bool by_rows : {false, true}) {
      if (alternates && by_rows) continue;
      for (const bool packed : {false, true}) {
        for (const std::int32_t group : {1, 3}) {
          const bwd::KeyTileOrder keys{.blocks = 5,
                                       .pairs = 6,
                                       .section = 2,
                                       .falling_pairs = alternates ? 0 : 4,
                                       .falling_section = 3,
                                       .alternates = alternates,
                                       .by_rows = by_rows};
          const std::int32_t pairs = keys.pairs * group;
          const bwd::KeyTileOrder rows = bwd::row_tile_order(keys, kBlocks, pairs, group, true);
          EXPECT_EQ(rows.falling_pairs, keys.falling_pairs * group);
          EXPECT_EQ(bwd::row_tile_order(keys, kBlocks, pairs, group, false).falling_pairs, 0);
          std::vector<std::int32_t> count(static_cast<std::size_t>(pairs), 0);
          for (std::uint32_t index = 0; index < static_cast<std::uint32_t>(pairs * kBlocks);
               ++index) {
            const bwd::KeyTilePlace place = bwd::row_tile_place(rows, packed, index);
            ASSERT_FALSE(alternates && place.falling);
            const std::int32_t before = count.at(static_cast<std::size_t>(place.pair))++;
            // Lists have each sequence's last tile of rows first.
            const bool rising = packed ? !place.falling : place.falling == by_rows;
            ASSERT_EQ(place.block, rising ? before : kBlocks - 1 - before);
          }
          for (const std::int32_t of_pair : count) EXPECT_EQ(of_pair, kBlocks);
        }
      }
    }
  }
}

}  // namespace
}  // namespace foveal::test
