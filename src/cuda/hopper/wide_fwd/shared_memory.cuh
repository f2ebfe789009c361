// A block's shared memory, and the types of one instance.
#pragma once

#include <cstdint>

#include "cuda/hopper/fwd/shared_memory.cuh"
#include "cuda/hopper/wide_fwd/tile_config.hpp"

namespace foveal::cuda::hopper::wide_fwd {

/// What a consumer warp is sent by the partner: the warp of the same number in the other block.
/// Lanes write to lanes of the same number, whose rows are theirs.
struct Mail {
  uint4 weights[4][32];  ///< Left factors of 16 keys a step.
  float2 maxima[32];     ///< Of the lanes' own scores.
};

/// The warp that loads k may be two blocks ahead of those that load v, and three where a tile
/// begins; their barriers must not come round meanwhile.
inline constexpr int kIssuedBarriers = 4;

template <class Config, DType kDType>
struct WideShape {
  static constexpr WideTile kTile = Config::tile;
  using Element = ElementOf<kDType>;
  static constexpr int kSlots = kTile.slots;
  static constexpr int kWarps = 4 * kTile.num_consumers();
  static constexpr PanelLayout kQLayout = kTile.q_layout();
  static constexpr PanelLayout kKLayout = kTile.k_layout();
  static constexpr PanelLayout kVLayout = kTile.v_layout();
  static_assert(sizeof(Mail::weights) == 16 * kTile.keys() * sizeof(Element));

  /// Operands are (rows, columns) in swizzled panels. Barriers are named after what they announce.
  struct alignas(1024) SharedMemory {
    unsigned char q[kQLayout.bytes()];
    unsigned char ring[kSlots][kSlotBytes];
    Mail mail[kWarps];
    std::uint64_t q_full[kTile.k_slots()], q_empty;
    std::uint64_t full[kSlots], empty[kSlots];
    std::uint64_t k_issued[kIssuedBarriers];                    ///< By block of k in turn.
    std::uint64_t v_issued;                                     ///< Of a tile.
    std::uint64_t weights_here[kWarps], weights_taken[kWarps];  ///< Taken by the partner.
    std::uint64_t maxima_here[kWarps];
    std::uint64_t work_full[kWorkSlots], work_empty[kWorkSlots];
    std::uint64_t next_wanted;
    std::uint64_t index_here, index_taken;  ///< In the second block, in the first.
    std::int32_t index;
    WorkTile work[kWorkSlots];
  };
  static_assert(sizeof(SharedMemory) == kTile.shared_bytes());
};

/// A place in the ring, and the parity of its round: of waits for "full" by whoever reads and,
/// inverted, of waits for "empty" by whoever writes.
template <int kSlots>
struct RingWalk {
  int slot = 0;
  std::uint32_t parity = 0;

  FOVEAL_DEVICE void advance() {
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

}  // namespace foveal::cuda::hopper::wide_fwd
