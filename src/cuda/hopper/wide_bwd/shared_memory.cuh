// A block's shared memory, and the types of one instance.
#pragma once

#include <cstdint>

#include "cuda/hopper/wide_bwd/args.hpp"
#include "cuda/hopper/wide_bwd/halves.hpp"
#include "cuda/portable/bwd/held_tile.cuh"
#include "cuda/ptx/copy_async.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/tile/element.cuh"

namespace foveal::cuda::hopper::wide_bwd {

using cuda::bwd::IntRange;

/// What a cluster does: its held tile and the streamed tiles that meet it, those of one query head
/// of the group after those of another where keys are held.
struct TileWork {
  cuda::bwd::HeldTile tile;
  cuda::bwd::StreamedBlocks blocks;
  IntRange readable;        ///< Streamed rows that meet anything: no others are read.
  std::int32_t steps;       ///< Streamed tiles, of all heads.
  std::int32_t first_head;  ///< That streams past.

  FOVEAL_DEVICE bool has_unreadable(int first) const {
    return first < readable.min || first + kTileRows > readable.max;
  }
};

/// The streamed tiles in their order.
struct StreamedTiles {
  int head;
  int block;

  FOVEAL_DEVICE explicit StreamedTiles(const TileWork& work)
      : head(work.first_head), block(work.blocks.visit.min) {}

  FOVEAL_DEVICE int first() const { return block * kTileRows; }
  FOVEAL_DEVICE void advance(const TileWork& work) {
    if (++block == work.blocks.visit.max) {
      block = work.blocks.visit.min;
      ++head;
    }
  }
};

template <class Config, DType kDType, Side kHeldSide>
struct WideShape {
  static constexpr WideTile kTile = Config::tile;
  static constexpr Side kSide = kHeldSide;
  static constexpr WidePlan kPlan = kTile.plan(kSide);
  using Element = ElementOf<kDType>;
  static constexpr DType kElementType = kDType;
  static constexpr int kStages = kPlan.stages();
  static constexpr PanelLayout kHalf = kTile.half_layout();
  static constexpr int kSums = WideTile::num_sums(kSide);
  /// Halves of the held tile in shared memory; the others leave it for registers: first the
  /// columns of the block's own half.
  static constexpr int kHeldHalves = 2 - kPlan.held_in_registers;

  FOVEAL_DEVICE static constexpr HalfRules halves() { return {kTile.plan(kSide), kSide}; }

  /// Operands are (rows, columns) in swizzled panels; weights and gradients of scores lie as the
  /// threads that computed them hold them. Barriers are named after what they announce.
  struct alignas(1024) SharedMemory {
    unsigned char halves[kStages + kHeldHalves][kHalf.bytes()];  ///< Streamed ones, held ones.
    float4 weights_in[8][kGroupThreads];                         ///< Block 1: from block 0.
    uint4 weights[kSums == 2 ? 4 : 1][kSums == 2 ? kGroupThreads : 1];  ///< For the sum of weights.
    uint4 gradients[4][kGroupThreads];  ///< Of scores, for theirs; in block 0 from block 1.
    IntRange seen[kTileRows];           ///< Streamed rows that a held row meets.
    float stats[2][kTileRows];          ///< Streamed rows' lse (block 0) or delta (block 1).
    float lse[2][kTileRows];            ///< Streamed rows', for block 1 of capped scores.
    std::uint64_t held_full;
    std::uint64_t streamed_full[kStages], streamed_empty[kStages];
    std::uint64_t weights_in_full;   ///< Block 1.
    std::uint64_t weights_in_empty;  ///< Block 0: block 1 has read them.
    std::uint64_t weights_full, weights_empty;
    std::uint64_t gradients_full;
    std::uint64_t gradients_empty;  ///< Block 1: both blocks have read them.
    TileWork work;

    FOVEAL_DEVICE unsigned char* streamed(int stage) { return halves[stage]; }
    /// Where the columns of the block's own half of the held tile arrive, and where the others.
    FOVEAL_DEVICE unsigned char* held_own() {
      return halves[kHeldHalves == 2 ? kStages + 1 : kStages - 1];
    }
    FOVEAL_DEVICE unsigned char* held_other() {
      return halves[kHeldHalves == 0 ? kStages - 2 : kStages];
    }
  };
  static_assert(sizeof(SharedMemory) <= kTile.shared_bytes(kSide));
};

template <class T>
FOVEAL_DEVICE std::uint32_t address_of(const T& variable) {
  return ptx::shared_address(&variable);
}

/// Of the calling lane, for what it has itself read or written: a warp arrives kLanes times. One
/// arrival after __syncwarp would order as much, but racecheck does not follow that.
FOVEAL_DEVICE void arrive(std::uint64_t& barrier) { ptx::mbarrier_arrive(address_of(barrier)); }

/// `arrivals` of the warp's first lane: its products have read a streamed half.
FOVEAL_DEVICE void arrive_after_products(std::uint64_t& barrier, int arrivals) {
  if (threadIdx.x % kLanes == 0) ptx::mbarrier_arrive(address_of(barrier), arrivals);
}

/// A lane that is the same for all threads of a warp to the compiler too.
FOVEAL_DEVICE int uniform(int value) { return __shfl_sync(~0u, value, 0); }

}  // namespace foveal::cuda::hopper::wide_bwd
