// A block's shared memory, and the types of one instance.
#pragma once

#include <cstdint>

#include "algorithm/mask.hpp"
#include "cuda/hopper/fwd/tile_config.hpp"
#include "cuda/ptx/copy_async.cuh"
#include "cuda/tile/element.cuh"

namespace foveal::cuda::hopper {

using algorithm::BasicMask;

/// Which rows, head and keys a tile has. Rows count within the sequence.
struct WorkTile {
  bool found;  ///< False: there are no more tiles.
  std::int32_t b;
  std::int32_t head;
  std::int32_t q_begin;  ///< Row 0 of the sequence in q.
  std::int32_t k_begin;  ///< Key 0 of the sequence in its cache row or in the packed tensor.
  BasicMask<std::int32_t> mask;
  std::int32_t row_min;
  std::int32_t row_max;  ///< Rows that are stored, those past seqused_q included.
  std::int32_t n_min;    ///< Key blocks.
  std::int32_t n_max;
  std::int32_t full_min;  ///< Key blocks [full_min, full_max) need no mask.
  std::int32_t full_max;
};

/// The rows of a tile that one consumer attends, and the key blocks that they see; none where they
/// see no key.
struct WorkRows {
  std::int32_t row_min;
  std::int32_t row_max;
  std::int32_t n_min;
  std::int32_t n_max;
  std::int32_t full_min;
  std::int32_t full_max;
};

/// Tiles that the producer may be ahead of the consumers.
inline constexpr int kWorkSlots = 2;

template <class Config, DType kDType>
struct ForwardShape {
  static constexpr ForwardTile kTile = Config::tile;
  using Element = ElementOf<kDType>;
  static constexpr int kStages = kTile.num_stages;
  static constexpr int kConsumers = kTile.num_consumers();
  static constexpr PanelLayout kQLayout = kTile.q_layout();
  static constexpr PanelLayout kKLayout = kTile.k_layout();

  /// Operands are (rows, columns) in swizzled panels. Barriers are named after what they announce.
  struct alignas(1024) SharedMemory {
    unsigned char q[kQLayout.bytes()];
    unsigned char k[kStages][kKLayout.bytes()];
    unsigned char v[kStages][kKLayout.bytes()];
    std::uint64_t q_full[kConsumers], q_empty[kConsumers];
    std::uint64_t k_full[kStages], k_empty[kStages];
    std::uint64_t v_full[kStages], v_empty[kStages];
    std::uint64_t work_full[kWorkSlots], work_empty[kWorkSlots];
    std::uint64_t next_wanted;
    WorkTile work[kWorkSlots];
    WorkRows rows[kWorkSlots][kConsumers];
  };
  static_assert(sizeof(SharedMemory) == kTile.shared_bytes());
};

/// The count of what has gone through a ring of kSlots: where the next is, and the parity of its
/// round, of waits for "full" by whoever reads and, inverted, of waits for "empty" by whoever
/// writes.
template <int kSlots>
struct RingPlace {
  static_assert((kSlots & (kSlots - 1)) == 0, "a bit tells the round");
  std::uint32_t count = 0;

  FOVEAL_DEVICE int slot() const { return static_cast<int>(count % kSlots); }
  FOVEAL_DEVICE std::uint32_t parity() const { return count / kSlots % 2; }
  FOVEAL_DEVICE void advance() { ++count; }
  FOVEAL_DEVICE RingPlace before() const { return {count - 1}; }
};

template <class T>
FOVEAL_DEVICE std::uint32_t address_of(const T& variable) {
  return ptx::shared_address(&variable);
}

}  // namespace foveal::cuda::hopper
