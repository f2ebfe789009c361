// A block's shared memory where heads are wider than 128, and the types of one instance.
#pragma once

#include <cstdint>

#include "cuda/hopper/bwd/shared_memory.cuh"
#include "cuda/hopper/bwd/tile_config.hpp"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/opaque.cuh"
#include "cuda/ptx/remote_arrive.cuh"
#include "cuda/tile/element.cuh"

namespace foveal::cuda::hopper::bwd {

/// What the consumer of scores needs to know of a tile of rows.
struct RowsInfo {
  int first_row;
  bool masked;    ///< Not all of it sees all keys.
  bool unseeing;  ///< Rows meet no key: they may hold anything.
};

template <class Config, DType kDType>
struct WideShape {
  static constexpr BackwardTile kTile = Config::tile;
  using Element = ElementOf<kDType>;
  static constexpr int kBlocks = kTile.blocks;
  static constexpr int kQStages = kTile.q_stages;
  static constexpr int kDoutStages = kTile.dout_stages;
  static constexpr int kDqBuffers = kTile.dq_buffers;
  static constexpr int kParts = kTile.num_parts();
  static constexpr int kDqConsumers = kTile.num_dq_consumers();
  static constexpr PanelLayout kQLayout = kTile.q_layout();
  static constexpr PanelLayout kKLayout = kTile.k_layout();
  static constexpr PanelLayout kPartLayout = kTile.part_layout();
  static constexpr PanelLayout kScoresLayout = kTile.scores_layout();

  /// Whose keys k_part[part] has: those of the other block, after the block's own where it has
  /// them.
  FOVEAL_DEVICE static int block_of_part(int part, int rank) {
    return part + 1 < kParts ? rank : 1 - rank;
  }

  /// Operands are (rows, columns) in swizzled panels. Barriers are named after what they announce.
  struct alignas(1024) SharedMemory {
    unsigned char k[kKLayout.bytes()];
    unsigned char v[kKLayout.bytes()];
    unsigned char q[kQStages][kQLayout.bytes()];
    unsigned char dout[kDoutStages][kQLayout.bytes()];
    unsigned char k_part[kParts][kPartLayout.bytes()];
    unsigned char p[kScoresLayout.bytes()];
    unsigned char ds[kBlocks][kScoresLayout.bytes()];  ///< The block's own; the other block's.
    float dq[kDqConsumers][kDqBuffers][kTile.piece_floats()];
    float lse[kDoutStages][kTile.m];    ///< In log2 units.
    float delta[kDoutStages][kTile.m];  ///< delta - dlse
    std::uint64_t k_full, v_full, part_full;
    std::uint64_t q_full[kQStages], q_empty[kQStages];  ///< And what is to be known of the rows.
    std::uint64_t dout_full[kDoutStages], dout_empty[kDoutStages];  ///< And lse and delta.
    std::uint64_t p_full, p_empty;
    std::uint64_t ds_full, ds_empty;
    std::uint64_t other_ds_full, other_ds_empty;
    std::uint64_t scores_started;  ///< Of the next step.
    std::uint64_t dq_full[kDqConsumers][kDqBuffers], dq_empty[kDqConsumers][kDqBuffers];
    std::uint64_t dq_added, turn_passed;  ///< In turn: the step's dq; the turn after it.
    std::uint64_t ticket_full;
    std::uint32_t ticket;  ///< Of the cluster, where its other block took it.
    RowsInfo rows[kQStages];
    BlockWork work;
  };
  static_assert(sizeof(SharedMemory) <= kTile.shared_bytes());
};

/// An operand's address, of which nothing is kept from use to use: registers are scarcer than
/// instructions.
FOVEAL_DEVICE std::uint32_t place_of(const unsigned char* operand) {
  return static_cast<std::uint32_t>(ptx::opaque(static_cast<int>(ptx::shared_address(operand))));
}

/// One arrival a warp, at a barrier of every block of the cluster: for what its products have read.
template <int kBlocks>
FOVEAL_DEVICE void arrive_in_cluster(std::uint64_t& barrier) {
  if (threadIdx.x % 32 != 0) return;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    ptx::mbarrier_arrive_remote(ptx::mapa(address_of(barrier), block));
  }
}

}  // namespace foveal::cuda::hopper::bwd
