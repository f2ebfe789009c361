// A block's shared memory, and the types of one instance.
#pragma once

#include <cstdint>

#include "cuda/hopper/bwd/tile_config.hpp"
#include "cuda/portable/bwd/held_tile.cuh"
#include "cuda/ptx/copy_async.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/tile/element.cuh"

namespace foveal::cuda::hopper::bwd {

using cuda::bwd::IntRange;

/// A tile of keys and the tiles of rows that meet them, those of one query head of the group after
/// those of another.
struct BlockWork {
  cuda::bwd::HeldTile tile;
  cuda::bwd::StreamedBlocks blocks;
  IntRange rows;                ///< That meet any key: no others are read.
  std::int32_t count;           ///< Tiles of a head.
  std::int32_t heads;           ///< Query heads of the group.
  std::int32_t steps;           ///< Of all of them.
  std::int32_t start;           ///< The first of a head's tiles to come, from visit.min on.
  std::int32_t first_head;      ///< Query head.
  std::int32_t first_row_tile;  ///< The sequence's first among dq's sums.
  DqTurns turns;
  std::int8_t row_step;  ///< 1: rows come rising; -1: falling.
  bool none;             ///< Nothing is left to do.
  bool by_rows;          ///< As KeyTileOrder has it.
  std::uint32_t parity;  ///< Of k_full and v_full, and which tile holds k, where there are steps.
  algorithm::BasicMask<std::int32_t> mask;

  /// Rows that see key `j` of the sequence, none where there is no such key.
  FOVEAL_DEVICE algorithm::BasicRange<std::int32_t> rows_of_key(int j) const {
    if (j < 0 || j >= mask.seqlen_k) return {};
    return mask.rows_of_key(j);
  }
};

/// What a consumer needs to know of a tile of rows.
struct Step {
  enum Flag : std::uint32_t {
    kMasked = 1,    ///< Not all of it sees all keys.
    kUnseeing = 2,  ///< Rows meet no key: they may hold anything.
    kLast = 4,      ///< Of a tile of keys.
  };
  int first_row;
  std::uint32_t flags;
};

/// Where a step's rows lie in a ring of kStages, and the parity of their round: of waits for "full"
/// by whoever reads and, inverted, of waits for "empty" by whoever writes.
template <int kStages>
struct RingPlace {
  int stage = 0;
  std::uint32_t parity = 0;

  /// Of the step of that number, where a division costs nothing.
  FOVEAL_DEVICE static RingPlace of_step(unsigned step) {
    static_assert((kStages & (kStages - 1)) == 0);
    return {static_cast<int>(step % kStages), step / kStages % 2};
  }
  FOVEAL_DEVICE int before() const { return stage == 0 ? kStages - 1 : stage - 1; }
  FOVEAL_DEVICE RingPlace next() const {
    const bool wraps = stage + 1 == kStages;
    return {wraps ? 0 : stage + 1, parity ^ static_cast<std::uint32_t>(wraps)};
  }
};

/// What the loading thread keeps from one tile of keys to the next, while it has few registers.
template <int kQStages, int kDoutStages>
struct Loading {
  RingPlace<kQStages> q;
  RingPlace<kDoutStages> dout;
  std::uint32_t taken = 0;  ///< Tiles of keys.
  std::uint32_t parity = 0;
};

template <class Config, DType kDType>
struct GradientShape {
  static constexpr BackwardTile kTile = Config::tile;
  using Element = ElementOf<kDType>;
  static constexpr int kQStages = kTile.q_stages;
  static constexpr int kDoutStages = kTile.dout_stages;
  static constexpr PanelLayout kQLayout = kTile.q_layout();
  static constexpr PanelLayout kKLayout = kTile.k_layout();
  static constexpr PanelLayout kDsLayout = kTile.ds_layout();
  static constexpr int kConsumers = kTile.num_consumers();

  /// Operands are (rows, columns) in swizzled panels. Barriers are named after what they announce.
  struct alignas(1024) SharedMemory {
    unsigned char kv[2][kKLayout.bytes()];  ///< k is that of BlockWork::parity, v the other.
    unsigned char q[kQStages][kQLayout.bytes()];
    unsigned char dout[kDoutStages][kQLayout.bytes()];
    unsigned char ds[2][kDsLayout.bytes()];
    float dq[kConsumers][kTile.dq_piece_floats()];
    float lse[kDoutStages][kTile.m];    ///< In log2 units.
    float delta[kDoutStages][kTile.m];  ///< delta - dlse
    std::uint64_t k_full, v_full;
    std::uint64_t q_full[kQStages], q_empty[kQStages];  ///< And the step.
    std::uint64_t dout_full[kDoutStages],
        dout_empty[kDoutStages];                                 ///< And the rows' lse and delta.
    std::uint64_t ds_full[2], ds_empty[2];                       ///< Of even and odd steps.
    std::uint64_t dq_full[2][kConsumers], dq_empty[kConsumers];  ///< Full: of even and odd steps.
    std::uint64_t dq_begun[2];                                   ///< Of even and odd steps.
    Step step[kQStages];
    BlockWork work[2];
    Loading<kTile.q_stages, kTile.dout_stages> loading;
    std::uint64_t work_full[2], work_empty[2];
    std::uint64_t k_empty, v_empty;
  };
  static_assert(sizeof(SharedMemory) <= kTile.shared_bytes());
};

/// The tiles of rows in the order in which they stream past: head after head, each from work.start
/// round to it, or, by rows, tile after tile, each for all heads, from work.start on.
struct RowTiles {
  int head;
  int block;

  FOVEAL_DEVICE explicit RowTiles(const BlockWork& work)
      : head(work.first_head), block(work.blocks.visit.min + work.start) {}

  FOVEAL_DEVICE void advance(const BlockWork& work) {
    if (work.by_rows) {
      if (++head < work.first_head + work.heads) return;
      head = work.first_head;
      block += work.row_step;
    } else {
      block += work.row_step;
      if (block == work.blocks.visit.max) block = work.blocks.visit.min;
      if (block < work.blocks.visit.min) block = work.blocks.visit.max - 1;
      if (block == work.blocks.visit.min + work.start) ++head;
    }
  }
};

template <class T>
FOVEAL_DEVICE std::uint32_t address_of(const T& variable) {
  return ptx::shared_address(&variable);
}

/// One arrival a warp.
FOVEAL_DEVICE void arrive_once(std::uint64_t& barrier) {
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(address_of(barrier));
}
/// One a thread: for what each has read or written itself, lse and delta or the step.
FOVEAL_DEVICE void arrive_each(std::uint64_t& barrier) {
  ptx::mbarrier_arrive(address_of(barrier));
}

/// A lane that is the same for all threads of a warp to the compiler too.
FOVEAL_DEVICE int uniform(int value) { return __shfl_sync(~0u, value, 0); }

}  // namespace foveal::cuda::hopper::bwd
