// The tiles of hopper_wide_fwd, and what each takes of a multiprocessor.
#pragma once

#include "core/host_device.hpp"
#include "cuda/hopper/fwd/tile_config.hpp"
#include "cuda/tile/swizzled_panels.hpp"

namespace foveal::cuda::hopper::wide_fwd {

/// Blocks of a cluster. They share a tile: each has half of every key block's scores and half of
/// out's columns.
inline constexpr int kClusterSize = 2;

inline constexpr int kSlotBytes = 8 << 10;

struct WideTile {
  int d = 0;      ///< Columns of k and v; narrower heads are padded by the copy engine.
  int slots = 0;  ///< Of the ring through which k and v go.
  int m = 128;    ///< Query rows: 64 a consumer warpgroup.
  int n = 128;    ///< Keys of a block, of both halves.

  /// Keys whose scores a block of threads has.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int keys() const { return n / kClusterSize; }
  /// Columns of out that it has.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int columns() const { return d / kClusterSize; }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int num_consumers() const {
    return m / kWarpgroupRows;
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int num_threads() const {
    return (num_consumers() + 1) * kWarpgroupThreads;
  }
  /// Registers a thread after setmaxnreg, of the 504 that the launch gives three warpgroups.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int producer_registers() const { return 40; }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int consumer_registers() const { return 232; }

  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr PanelLayout q_layout() const { return {m, d}; }
  /// What a slot holds of k: a panel.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr PanelLayout k_layout() const { return {keys(), 64}; }
  /// What a slot holds of v: the rows of one step of a product.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr PanelLayout v_layout() const {
    return {16, columns()};
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int k_slots() const { return d / 64; }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int v_slots() const { return n / 16; }
  /// Operands, what the partner's warps send, barriers and what is told of a tile.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int shared_bytes() const {
    const int mail = 4 * num_consumers() * (16 * keys() * 2 + 256);
    return q_layout().bytes() + slots * kSlotBytes + mail + 1024;
  }
  /// A consumer starts all products with v before it frees their slots.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr bool is_possible() const {
    const int registers = producer_registers() + num_consumers() * consumer_registers();
    return d % 64 == 0 && d > 256 && d <= 512 && slots >= v_slots() && registers <= 504 &&
           k_layout().bytes() <= kSlotBytes && v_layout().bytes() <= kSlotBytes &&
           shared_bytes() <= 227 * 1024;
  }
  bool operator==(const WideTile&) const = default;
};

struct WideHdim320 {
  static constexpr WideTile tile{.d = 320, .slots = 16};
};
struct WideHdim384 {
  static constexpr WideTile tile{.d = 384, .slots = 14};
};
struct WideHdim448 {
  static constexpr WideTile tile{.d = 448, .slots = 12};
};
struct WideHdim512 {
  static constexpr WideTile tile{.d = 512, .slots = 10};
};
static_assert(WideHdim320::tile.is_possible() && WideHdim384::tile.is_possible() &&
              WideHdim448::tile.is_possible() && WideHdim512::tile.is_possible());

}  // namespace foveal::cuda::hopper::wide_fwd
