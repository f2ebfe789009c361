// The tiles of hopper_fwd, and what each takes of a multiprocessor.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/tile/swizzled_panels.hpp"

namespace foveal::cuda::hopper {

/// Warps of a warpgroup, and the query rows of one wgmma.
inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWarpgroupRows = 64;

struct ForwardTile {
  int m = 0;           ///< Query rows: 64 a consumer warpgroup.
  int n = 0;           ///< Keys of a block.
  int d = 0;           ///< Columns of k and v; narrower heads are padded by the copy engine.
  int num_stages = 2;  ///< Blocks of k, and of v, in shared memory.
  bool q_in_registers = false;
  bool in_turn = false;  ///< Consumers begin their products one after the other.
  /// Scores are scaled, and capped where there is a softcap, before the softmax; else the scale is
  /// taken into its exponent.
  bool capped = false;

  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int num_consumers() const {
    return m / kWarpgroupRows;
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int num_threads() const {
    return (num_consumers() + 1) * kWarpgroupThreads;
  }
  /// Registers a thread after setmaxnreg. 512 x 128: what a multiprocessor has over threads.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int producer_registers() const {
    return num_consumers() == 2 ? 40 : 32;
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int consumer_registers() const {
    return num_consumers() == 2 ? 232 : 160;
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr PanelLayout q_layout() const { return {m, d}; }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr PanelLayout k_layout() const { return {n, d}; }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int operand_bytes() const {
    return q_layout().bytes() + 2 * num_stages * k_layout().bytes();
  }
  /// The operands, barriers and what is told of a tile.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int shared_bytes() const {
    return operand_bytes() + 1024;
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr bool is_possible() const {
    const int registers = producer_registers() + num_consumers() * consumer_registers();
    return m % kWarpgroupRows == 0 && (num_consumers() == 2 || num_consumers() == 3) &&
           n % 16 == 0 && n <= 256 && d % 32 == 0 && d <= 256 && registers <= 512 &&
           shared_bytes() <= 227 * 1024 && (!q_in_registers || num_consumers() == 2);
  }
  bool operator==(const ForwardTile&) const = default;
};

struct ForwardHdim64 {
  static constexpr ForwardTile tile{.m = 192, .n = 128, .d = 64, .in_turn = true};
};
struct ForwardHdim96 {
  static constexpr ForwardTile tile{.m = 192, .n = 112, .d = 96};
};
struct ForwardHdim128 {
  static constexpr ForwardTile tile{
      .m = 128, .n = 128, .d = 128, .q_in_registers = true, .in_turn = true};
};
struct ForwardHdim192 {
  static constexpr ForwardTile tile{.m = 128, .n = 112, .d = 192};
};
struct ForwardHdim256 {
  static constexpr ForwardTile tile{.m = 128, .n = 80, .d = 256};
};
/// The same tile for scores that are capped.
template <class Config>
struct ForwardCapped {
  static constexpr ForwardTile tile = [] {
    ForwardTile tile = Config::tile;
    tile.capped = true;
    return tile;
  }();
};
static_assert(ForwardHdim64::tile.is_possible() && ForwardHdim96::tile.is_possible() &&
              ForwardHdim128::tile.is_possible() && ForwardHdim192::tile.is_possible() &&
              ForwardHdim256::tile.is_possible());

}  // namespace foveal::cuda::hopper
