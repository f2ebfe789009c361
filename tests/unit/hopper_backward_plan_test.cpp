// What hopper_bwd tells the planner: what it refuses and why, its workspace, and that every tile of
// keys and every element of dq's sums has one place.
#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "algorithm/block_range.hpp"
#include "algorithm/mask.hpp"
#include "core/integer.hpp"
#include "cuda/hopper/bwd/config.hpp"
#include "plan/kernel_table.hpp"
#include "unit/hopper_backward_problem.hpp"

namespace foveal::test {
namespace {

namespace bwd = cuda::hopper::bwd;

AttentionProblem dense_problem(std::int64_t seqlen, std::int64_t headdim = 128,
                               DType dtype = DType::kBFloat16) {
  return dense_backward(seqlen, headdim, dtype);
}

AttentionProblem packed_problem(std::int64_t total, std::int64_t batch) {
  return packed_backward(total, batch, 128);
}

std::string refusal(const AttentionProblem& p, const DeviceInfo& gpu = gpu_of(90)) {
  const Status status = bwd::supports(p, make_geometry(p), gpu);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  return status.message();
}

planner::KernelConfig configure(const AttentionProblem& p) {
  return bwd::configure(p, make_geometry(p), gpu_of(90));
}

TEST(HopperBackwardPlan, RunsOnHopperAlone) {
  const DeviceInfo cpu;
  EXPECT_EQ(cuda::kHopperBackward.usable(cpu).code(), StatusCode::kUnsupported);
  EXPECT_EQ(cuda::kHopperBackward.usable(gpu_of(80)).message(),
            "hopper_bwd runs on GPUs of sm_90 alone; a GPU is sm_80");
  EXPECT_EQ(cuda::kHopperBackward.usable(gpu_of(120)).code(), StatusCode::kUnsupported);
  EXPECT_TRUE(cuda::kHopperBackward.usable(gpu_of(90)));
}

TEST(HopperBackwardPlan, TakesHeadsUpTo256) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (std::int64_t headdim = 8; headdim <= 256; headdim += 8) {
      const AttentionProblem p = dense_problem(100, headdim, dtype);
      ASSERT_TRUE(bwd::supports(p, make_geometry(p), gpu_of(90))) << headdim;
      ASSERT_GE(bwd::backward_tile(make_geometry(p)).d, headdim);
    }
  }
  EXPECT_EQ(refusal(dense_problem(100, 264)), "headdim 264: hopper_bwd takes at most 256");
}

TEST(HopperBackwardPlan, TakesSoftcapWithAnyHead) {
  for (const std::int64_t headdim : {64, 128, 192, 256}) {
    AttentionProblem p = dense_problem(100, headdim);
    p.softcap = 30;
    EXPECT_TRUE(bwd::supports(p, make_geometry(p), gpu_of(90))) << headdim;
  }
}

TEST(HopperBackwardPlan, RefusesOtherTypes) {
  EXPECT_EQ(refusal(dense_problem(64, 64, DType::kFloat32)),
            "q is fp32: hopper_bwd takes fp16 and bf16");
  AttentionProblem p = dense_problem(64);
  p.out.dtype = p.dout.dtype = DType::kFloat32;
  EXPECT_EQ(refusal(p), "dout is fp32: hopper_bwd takes q's bf16");
}

TEST(HopperBackwardPlan, RefusesWhatItDoesNotCompute) {
  const auto with = [](const auto& change) {
    AttentionProblem p = dense_problem(64);
    change(p);
    return refusal(p);
  };
  EXPECT_EQ(with([](AttentionProblem& p) { p.dq = {}; }),
            "dq is not wanted: hopper_bwd computes it in any case");
  EXPECT_EQ(with([](AttentionProblem& p) {
              p.bias = TensorSpec::contiguous(DType::kBFloat16, {1, 1, 64, 64});
            }),
            "hopper_bwd takes no bias");
  EXPECT_EQ(with([](AttentionProblem& p) {
              p.alibi_slopes = TensorSpec::contiguous(DType::kFloat32, {4});
            }),
            "hopper_bwd takes no alibi_slopes");
  EXPECT_EQ(with([](AttentionProblem& p) { p.dropout_p = 0.1f; }), "hopper_bwd takes no dropout");
}

TEST(HopperBackwardPlan, RefusesStridesThatTheCopyEngineCannotTake) {
  AttentionProblem p = dense_problem(64);
  p.k.strides[1] += 4;
  EXPECT_NE(
      refusal(p).find("hopper_bwd takes adjacent elements and other strides that are positive "
                      "multiples of 8"),
      std::string::npos);
  p = dense_problem(64);
  p.dout.strides[3] = 2;
  EXPECT_EQ(refusal(p).substr(0, 5), "dout ");
  p = dense_problem(64);
  p.q.strides[0] = 0;
  EXPECT_EQ(refusal(p).substr(0, 2), "q ");
}

TEST(HopperBackwardPlan, RefusesLessSharedMemoryThanATileNeeds) {
  DeviceInfo gpu = gpu_of(90);
  gpu.smem_per_block_bytes = 99 << 10;
  EXPECT_NE(
      refusal(dense_problem(64), gpu).find("bytes of shared memory a block; there are 101376"),
      std::string::npos);
}

TEST(HopperBackwardPlan, RefusesMoreRowsOrTilesThanItCounts) {
  AttentionProblem p = dense_problem(64);
  p.q = TensorSpec::strided(DType::kBFloat16, {1 << 10, 1 << 20, 4, 128}, {8, 8, 8, 1});
  EXPECT_EQ(refusal(p), "1073741824 rows of q or k: hopper_bwd takes at most 536870912");
  p.q = TensorSpec::strided(DType::kBFloat16, {1 << 10, 1 << 18, 1 << 12, 128}, {8, 8, 8, 1});
  EXPECT_EQ(refusal(p), "hopper_bwd takes at most 1073741824 tiles over all heads");
}

TEST(HopperBackwardPlan, WorkspaceIsFp32SumsOfDqAndTwoNumbersARow) {
  const planner::KernelConfig config = configure(dense_problem(4096));
  EXPECT_EQ(config.workspace.at(0).bytes, 2 * 4096 * 4 * 8);
  EXPECT_EQ(config.workspace.at(1).bytes, 0);
  EXPECT_EQ(config.workspace.at(2).bytes, 0);
  EXPECT_EQ(config.workspace.at(3).bytes, 16 + 2 * (4096 / 64) * 4 * 8) << "tickets, additions";
  EXPECT_EQ(config.workspace.at(4).bytes, std::int64_t{2} * 4096 * 4 * 128 * 4);
  EXPECT_EQ(configure(dense_problem(4096, 192)).workspace.at(3).bytes, 16) << "tickets";
}

TEST(HopperBackwardPlan, DeterministicCountsTurnsOfEveryTileOfDq) {
  const auto counters = [](std::int64_t headdim) {
    AttentionProblem p = dense_problem(4096, headdim);
    p.deterministic = true;
    EXPECT_TRUE(bwd::supports(p, make_geometry(p), gpu_of(90))) << headdim;
    return configure(p).workspace.at(3).bytes;
  };
  const std::int64_t tiles = 2 * (4096 / 64) * 4;
  EXPECT_EQ(counters(128), 16 + 8 * tiles * 2) << "beside the additions";
  EXPECT_EQ(counters(192), 16 + 8 * tiles * 2) << "of each block of a cluster";
  EXPECT_EQ(counters(256), 16 + 8 * tiles * 4) << "and of two consumers in each";
}

TEST(HopperBackwardPlan, AsManyBlocksAsMultiprocessors) {
  EXPECT_EQ(configure(dense_problem(64)).num_blocks, 4) << "one a tile of keys and head";
  EXPECT_EQ(configure(dense_problem(8192)).num_blocks, gpu_of(90).num_sms);
}

// A launch whose pointers turn out to be unaligned is portable_bwd's, in the same workspace.
TEST(HopperBackwardPlan, WorkspaceHasRoomForPortableBackward) {
  const auto device = device_from_name("sm_90");
  ASSERT_TRUE(device);
  std::vector<AttentionProblem> problems = {packed_problem(1000, 7), packed_problem(3, 40)};
  for (const std::int64_t headdim : {8, 64, 72, 128, 136, 192, 256}) {
    for (const std::int64_t seqlen : {1, 63, 64, 1000}) {
      problems.push_back(dense_problem(seqlen, headdim));
    }
  }
  for (const AttentionProblem& p : problems) {
    const planner::KernelConfig portable =
        cuda::kPortableBackward.configure(p, make_geometry(p), *device);
    const planner::KernelConfig config = configure(p);
    EXPECT_GE(config.workspace_bytes(), portable.workspace_bytes());
    ASSERT_EQ(config.stand_in.size(), 1u);
    EXPECT_EQ(config.stand_in.front().workspace_bytes(), portable.workspace_bytes());
  }
}

TEST(HopperBackwardPlan, EveryElementOfDqHasAPlaceOfItsOwn) {
  for (const bwd::BackwardTile& tile :
       {bwd::BackwardHdim64::tile, bwd::BackwardHdim96::tile, bwd::BackwardHdim128::tile,
        bwd::BackwardHdim192::tile, bwd::BackwardHdim256::tile}) {
    std::vector<int> elements(static_cast<std::size_t>(tile.dq_floats()), 0);
    for (int row = 0; row < tile.m; ++row) {
      for (int column = 0; column < tile.d; ++column) {
        ++elements.at(static_cast<std::size_t>(bwd::dq_place(tile, row, column)));
      }
    }
    for (const int count : elements) ASSERT_EQ(count, 1);
  }
}

// Narrow heads: the copy engine adds a consumer's piece at once.
TEST(HopperBackwardPlan, PiecesOfNarrowDqLieOneAfterTheOther) {
  for (const bwd::BackwardTile& tile :
       {bwd::BackwardHdim64::tile, bwd::BackwardHdim96::tile, bwd::BackwardHdim128::tile}) {
    int floats = 0;
    for (int piece = 0; piece < tile.num_consumers(); ++piece) {
      EXPECT_EQ(floats, piece * bwd::kPieceFloats) << tile.d;
      floats += tile.dq_piece_floats(piece);
      const int row = piece / tile.dq_column_pieces() * bwd::kGroupRows;
      const int column = piece % tile.dq_column_pieces() * 64;
      EXPECT_EQ(bwd::dq_place(tile, row, column), piece * bwd::kPieceFloats) << tile.d;
    }
    EXPECT_EQ(floats, tile.dq_floats()) << tile.d;
  }
}

TEST(HopperBackwardPlan, HeadsTakeTheNarrowestTile) {
  for (const std::int64_t headdim : {8, 64, 72, 96, 104, 128, 136, 192, 200, 256}) {
    const std::int64_t width = bwd::backward_tile(make_geometry(dense_problem(64, headdim))).d;
    EXPECT_GE(width, headdim);
    EXPECT_LT(width - headdim, headdim <= 128 && headdim > 64 ? 32 : 64) << headdim;
  }
}

// Wide heads: the copy engine adds the columns of one consumer of one block piece by piece.
TEST(HopperBackwardPlan, PiecesOfDqLieOneAfterTheOther) {
  for (const bwd::BackwardTile& tile : {bwd::BackwardHdim192::tile, bwd::BackwardHdim256::tile}) {
    for (int row = 0; row < tile.m; ++row) {
      for (int column = 0; column < tile.d; ++column) {
        ASSERT_EQ(bwd::dq_place(tile, row, column) / tile.piece_floats(),
                  column / bwd::kPieceColumns);
      }
    }
    EXPECT_EQ(tile.dv_dq_columns() % bwd::kPieceColumns, 0);
    EXPECT_EQ(tile.blocks * (tile.dv_dq_columns() + tile.dk_dq_columns()), tile.d);
  }
}

TEST(HopperBackwardPlan, WideHeadsTakeClustersThatShareTheKeys) {
  for (const std::int64_t headdim : {136, 192, 200, 256}) {
    const AttentionProblem p = dense_problem(1000, headdim);
    const bwd::BackwardTile& tile = bwd::backward_tile(make_geometry(p));
    EXPECT_TRUE(tile.is_wide());
    EXPECT_EQ(tile.d, headdim > 192 ? 256 : 192);
    EXPECT_EQ(tile.blocks * tile.k_layout().rows, tile.n);
    EXPECT_EQ(tile.blocks * tile.q_box_rows(), tile.m);
    EXPECT_EQ(configure(p).num_threads, 512);
    EXPECT_EQ(bwd::key_tiles(make_geometry(p)), 2 * 8) << "of 128 keys, 2 sequences";
  }
}

TEST(HopperBackwardPlan, PackedSequencesDoNotShareTilesOfDq) {
  std::mt19937 random(7);
  const AttentionProblem p = packed_problem(5000, 30);
  const AttentionGeometry geometry = make_geometry(p);
  const bwd::BackwardTile& tile = bwd::backward_tile(geometry);
  for (int round = 0; round < 100; ++round) {
    std::int32_t begin = 0;
    std::int32_t end_tile = 0;
    for (std::int32_t b = 0; b < 30; ++b) {
      const auto left = static_cast<std::int32_t>(geometry.total_q) - begin;
      const std::int32_t rows = b == 29 ? left : std::uniform_int_distribution{0, left / 4}(random);
      const std::int32_t first = bwd::packed_row_tile(tile, begin, b);
      ASSERT_GE(first, end_tile);
      end_tile = first + (rows + tile.m - 1) / tile.m;
      begin += rows;
    }
    ASSERT_LE(end_tile, bwd::row_tiles(geometry));
  }
}

// A tile that waits for its turn then waits for one that came before it.
TEST(HopperBackwardPlan, EveryTileOfKeysComesOnceInTheOrderOfItsPair) {
  constexpr std::int32_t kBlocks = 6;
  constexpr std::int32_t kPairs = 8;
  for (const std::int32_t section : {1, 3, 5, 8}) {
    for (const std::int32_t falling_pairs : {-1, 0, 1, 4, 7}) {
      const bwd::KeyTileOrder order{.blocks = kBlocks,
                                    .pairs = kPairs,
                                    .section = section,
                                    .falling_pairs = max_of(falling_pairs, 0),
                                    .falling_section = 9 - section,
                                    .alternates = falling_pairs < 0};
      std::vector<std::int32_t> count(kPairs, 0);
      for (std::uint32_t index = 0; index < kPairs * kBlocks; ++index) {
        const bwd::KeyTilePlace tile = bwd::key_tile_place(order, index);
        const std::int32_t before = count.at(static_cast<std::size_t>(tile.pair))++;
        ASSERT_TRUE(order.alternates || tile.falling == (tile.pair < falling_pairs));
        ASSERT_EQ(tile.block, tile.falling ? kBlocks - 1 - before : before);
      }
      for (const std::int32_t of_pair : count) EXPECT_EQ(of_pair, kBlocks);
    }
  }
}

// A rising section begins well where tiles end one after the other, as those of a falling one do.
TEST(HopperBackwardPlan, SectionsThatAlternateEndRisingAndBeginFalling) {
  struct Alternating {
    std::int32_t section;
    std::vector<bool> falling;  ///< Of each of six pairs.
  };
  for (const Alternating& c : {Alternating{1, {true, false, true, false, true, false}},
                               Alternating{2, {true, true, true, true, false, false}},
                               Alternating{3, {true, true, true, false, false, false}},
                               Alternating{4, {true, true, true, true, false, false}}}) {
    const bwd::KeyTileOrder order{
        .blocks = 5, .pairs = 6, .section = c.section, .alternates = true};
    for (std::uint32_t index = 0; index < 30; ++index) {
      const bwd::KeyTilePlace tile = bwd::key_tile_place(order, index);
      ASSERT_EQ(tile.falling, c.falling.at(static_cast<std::size_t>(tile.pair))) << c.section;
    }
  }
}

// A tile's turn to add to a tile of rows is the number of tiles before it that add there as well;
// together they are what the conversion waits for.
TEST(HopperBackwardPlan, TurnsCountTheTilesThatAddBefore) {
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
TEST(HopperBackwardPlan, SectionsAreAlike) {
  for (const std::int64_t nheads : {1, 7, 32, 33}) {
    for (const bool deterministic : {false, true}) {
      AttentionProblem p = dense_problem(4096);
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
  bool packed_q = false;  ///< Four documents of seqlen.
  bool packed_k = false;
};

AttentionProblem problem_of(const OrderCase& c) {
  AttentionProblem p = dense_problem(c.seqlen, c.headdim);
  p.causal = c.causal;
  p.window_size_right = c.window_right;
  const std::int64_t seqlen_k = c.seqlen_k > 0 ? c.seqlen_k : c.seqlen;
  const std::int64_t batch = c.packed_q || c.packed_k ? 4 : c.batch;
  const auto shape = [&](bool packed, std::int64_t rows, std::int64_t heads) {
    if (packed) return TensorSpec::contiguous(DType::kBFloat16, {4 * rows, heads, c.headdim});
    return TensorSpec::contiguous(DType::kBFloat16, {batch, rows, heads, c.headdim});
  };
  for (TensorSpec* spec : {&p.q, &p.out, &p.dout, &p.dq}) {
    *spec = shape(c.packed_q, c.seqlen, c.nheads_q);
  }
  for (TensorSpec* spec : {&p.k, &p.v, &p.dk, &p.dv}) {
    *spec = shape(c.packed_k, seqlen_k, c.nheads_k);
  }
  if (c.packed_q) {
    p.cu_seqlens_q = TensorSpec::contiguous(DType::kInt32, {5});
    p.max_seqlen_q = c.seqlen;
  }
  if (c.packed_k) {
    p.cu_seqlens_k = TensorSpec::contiguous(DType::kInt32, {5});
    p.max_seqlen_k = seqlen_k;
  }
  return p;
}

bwd::KeyTileOrder order_of(const OrderCase& c, bool deterministic) {
  return bwd::key_tile_order(make_geometry(problem_of(c)), deterministic);
}

// A launch has a ticket for every tile, whatever is packed.
TEST(HopperBackwardPlan, TheOrderHasEveryTileOfKeys) {
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
TEST(HopperBackwardPlan, SectionsFillTheCacheAndTheBlocks) {
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
TEST(HopperBackwardPlan, TilesOfCausalHeadsWithoutGroupsFall) {
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
TEST(HopperBackwardPlan, WithoutTurnsTilesFallForTheSakeOfTheCache) {
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

TEST(HopperBackwardPlan, TilesThatAddInTurnAreOfManyHeads) {
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

// While a head's rows of two sections fit into the cache, those of a causal mask alternate.
TEST(HopperBackwardPlan, SectionsOfGroupsAndWideHeadsAlternate) {
  struct Alternating {
    OrderCase shape;
    std::int32_t section;  ///< 0: they don't.
  };
  for (const Alternating& c :
       {Alternating{{.headdim = 256, .nheads_q = 16, .nheads_k = 8}, 2},
        Alternating{{.headdim = 256, .nheads_q = 16, .nheads_k = 16}, 2},
        Alternating{{.seqlen = 8192, .headdim = 256, .nheads_q = 16, .nheads_k = 8}, 1},
        Alternating{{.seqlen = 16384, .headdim = 256, .nheads_q = 16, .nheads_k = 8}, 0},
        Alternating{{.headdim = 192, .nheads_q = 16, .nheads_k = 8, .batch = 2}, 2},
        Alternating{{.nheads_k = 8}, 4}, Alternating{{.seqlen = 8192, .nheads_k = 8}, 2},
        Alternating{{.seqlen = 2048, .nheads_k = 8}, 0},
        Alternating{{.seqlen = 2048, .nheads_k = 16}, 8},
        Alternating{{.nheads_k = 8, .packed_q = true, .packed_k = true}, 0},
        Alternating{{.nheads_k = 8, .causal = false}, 0}}) {
    const bwd::KeyTileOrder order = order_of(c.shape, true);
    EXPECT_EQ(order.alternates ? order.section : 0, c.section)
        << c.shape.seqlen << ", headdim " << c.shape.headdim;
    EXPECT_EQ(order.by_rows, !order.alternates);
    EXPECT_EQ(order.falling_pairs, 0);
    EXPECT_FALSE(order_of(c.shape, false).alternates);
  }
}

// Every tile of rows is converted once, those of falling tiles of keys from the first on.
TEST(HopperBackwardPlan, TheConversionTakesEveryTileOfRowsOnce) {
  constexpr std::int32_t kBlocks = 7;
  const bwd::KeyTileOrder keys{.blocks = 5,
                               .pairs = 6,
                               .section = 2,
                               .falling_pairs = 4,
                               .falling_section = 3,
                               .alternates = true};
  for (const bool by_rows : {false, true}) {
    for (const bool packed : {false, true}) {
      for (const std::int32_t group : {1, 3}) {
        bwd::KeyTileOrder from = keys;
        from.by_rows = by_rows;
        const std::int32_t pairs = keys.pairs * group;
        const bwd::KeyTileOrder rows = bwd::row_tile_order(from, kBlocks, pairs, group, true);
        EXPECT_EQ(rows.falling_pairs, keys.falling_pairs * group);
        EXPECT_FALSE(rows.alternates);
        EXPECT_EQ(bwd::row_tile_order(from, kBlocks, pairs, group, false).falling_pairs, 0);
        std::vector<std::int32_t> count(static_cast<std::size_t>(pairs), 0);
        for (std::uint32_t index = 0; index < static_cast<std::uint32_t>(pairs * kBlocks);
             ++index) {
          const bwd::KeyTilePlace place = bwd::row_tile_place(rows, packed, index);
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

}  // namespace
}  // namespace foveal::test
