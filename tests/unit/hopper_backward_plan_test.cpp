// What hopper_bwd tells the planner: what it refuses and why, its workspace, and that every element
// of dq's sums has one place.
#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

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
  p = dense_problem(64, 256);
  p.q = TensorSpec::strided(DType::kBFloat16, {1 << 10, 1 << 18, 1 << 12, 256}, {8, 8, 8, 1});
  EXPECT_EQ(refusal(p), "hopper_bwd takes at most 536870912 tiles over all heads")
      << "of two blocks";
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
  EXPECT_EQ(counters(128), 16 + 8 * tiles) << "in place of the additions";
  EXPECT_EQ(counters(192), 16 + 8 * tiles * 2) << "of each block of a cluster";
  EXPECT_EQ(counters(256), 16 + 8 * tiles * 2) << "for both of its consumers";
}

// Where memory decides, both move the same bytes, and the table has this kernel first.
TEST(HopperBackwardPlan, ShortDocumentsAndNarrowWindowsAreNotPortables) {
  const auto device = device_from_name("sm_90");
  ASSERT_TRUE(device);
  const auto all_of = [](AttentionProblem p, const TensorSpec& shape) {
    p.q = p.k = p.v = p.out = p.dout = p.dq = p.dk = p.dv = shape;
    p.causal = true;
    return p;
  };
  AttentionProblem documents =
      all_of(packed_problem(2048, 8), TensorSpec::contiguous(DType::kBFloat16, {2048, 32, 128}));
  documents.max_seqlen_q = documents.max_seqlen_k = 256;
  AttentionProblem window =
      all_of(dense_problem(8192), TensorSpec::contiguous(DType::kBFloat16, {1, 8192, 32, 128}));
  window.window_size_left = 127;
  for (const AttentionProblem& p : {documents, window}) {
    const AttentionGeometry geometry = make_geometry(p);
    const auto predicted = [&](const planner::KernelEntry& kernel) {
      return kernel.predict(p, geometry, kernel.configure(p, geometry, *device), *device);
    };
    EXPECT_LE(predicted(cuda::kHopperBackward), predicted(cuda::kPortableBackward)) << to_string(p);
  }
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
      EXPECT_EQ(floats, piece * tile.dq_piece_floats()) << tile.d;
      floats += tile.dq_piece_floats();
      const int row = piece / tile.dq_column_pieces() * bwd::kGroupRows;
      const int column = piece % tile.dq_column_pieces() * tile.dq_piece_columns();
      EXPECT_EQ(bwd::dq_place(tile, row, column), piece * tile.dq_piece_floats()) << tile.d;
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

}  // namespace
}  // namespace foveal::test
