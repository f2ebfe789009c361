// The tiles of hopper_wide_bwd, and what each takes of a multiprocessor.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "core/integer.hpp"
#include "cuda/portable/bwd/config.hpp"
#include "cuda/tile/swizzled_panels.hpp"

namespace foveal::cuda::hopper::wide_bwd {

using cuda::bwd::Side;

/// Threads of a warpgroup.
inline constexpr int kGroupThreads = 128;
/// Threads of a warp, and its arrivals at a barrier.
inline constexpr int kLanes = 32;
/// Rows of the held tile and of a streamed one: those of one wgmma.
inline constexpr int kTileRows = 64;
/// Blocks of a cluster, which hold one tile.
inline constexpr int kClusterSize = 2;

/// How a side's kernel spends shared memory and registers.
struct WidePlan {
  /// Places in shared memory for halves 0 and 2 of streamed tiles (halves.hpp). A block's own half
  /// has two.
  int first_places = 1;
  int second_places = 1;
  int held_in_registers = 0;  ///< Halves of the held tile, of two.
  int score_registers = 0;    ///< A thread.
  int sum_registers = 0;

  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int stages() const {
    return 2 + first_places + second_places;
  }
  bool operator==(const WidePlan&) const = default;
};

/// Two blocks, a pair, hold a tile of one side and stream the other side past it. The first has
/// q or k and computes scores, the second dout or v and computes their gradients; each sums half
/// of the columns of the side's gradients.
struct WideTile {
  int d = 0;      ///< Columns; narrower heads are padded by the copy engine.
  WidePlan keys;  ///< Where keys are held,
  WidePlan rows;  ///< and where rows are.

  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr const WidePlan& plan(Side side) const {
    return side == Side::kKeys ? keys : rows;
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int half() const { return d / 2; }
  /// Columns of one product of a sum: those of all take more registers than a block begins with,
  /// and with the left factor in registers narrower products read no more of shared memory.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int piece() const {
    return half() % 128 == 0 ? 128 : 64;
  }
  /// Half of the columns of a tile of either side.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr PanelLayout half_layout() const {
    return {kTileRows, half()};
  }

  /// Warpgroups that sum: dk and dv, or dq.
  [[nodiscard]] FOVEAL_HOST_DEVICE static constexpr int num_sums(Side side) {
    return side == Side::kKeys ? 2 : 1;
  }
  /// One warpgroup loads, one computes scores or their gradients, the others sum.
  [[nodiscard]] FOVEAL_HOST_DEVICE static constexpr int num_threads(Side side) {
    return (2 + num_sums(side)) * kGroupThreads;
  }

  /// Registers a thread that a block begins with: all that a multiprocessor has, in eights. What
  /// setmaxnreg moves between warpgroups comes out of these; whoever asks for more waits for ever.
  [[nodiscard]] FOVEAL_HOST_DEVICE static constexpr int launch_registers(Side side) {
    return 65536 / num_threads(side) / 8 * 8;
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE static constexpr int producer_registers() { return 24; }

  /// Operands, in 16 bits; weights of a tile pair in 32 and in 16 bits, and their gradients; what
  /// is told of rows and tiles, and barriers.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int shared_bytes(Side side) const {
    const int halves = plan(side).stages() + 2 - plan(side).held_in_registers;
    return halves * half_layout().bytes() + kTileRows * kTileRows * (side == Side::kKeys ? 8 : 6) +
           2048;
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr bool is_possible(Side side) const {
    const int registers = producer_registers() + plan(side).score_registers +
                          num_sums(side) * plan(side).sum_registers;
    return registers <= (2 + num_sums(side)) * launch_registers(side) && d % 128 == 0 && d <= 512 &&
           shared_bytes(side) <= 227 * 1024;
  }
  bool operator==(const WideTile&) const = default;
};

struct WideHdim384 {
  static constexpr WideTile tile{
      .d = 384,
      .keys = {.first_places = 2, .second_places = 2, .score_registers = 120, .sum_registers = 184},
      .rows = {
          .first_places = 2, .second_places = 2, .score_registers = 240, .sum_registers = 240}};
};
struct WideHdim512 {
  static constexpr WideTile tile{.d = 512,
                                 .keys = {.score_registers = 120, .sum_registers = 184},
                                 .rows = {.first_places = 2,
                                          .second_places = 2,
                                          .held_in_registers = 2,
                                          .score_registers = 240,
                                          .sum_registers = 240}};
};
static_assert(WideHdim384::tile.is_possible(Side::kKeys) &&
              WideHdim384::tile.is_possible(Side::kRows));
static_assert(WideHdim512::tile.is_possible(Side::kKeys) &&
              WideHdim512::tile.is_possible(Side::kRows));

/// In which order clusters take tiles of one side. Dense: sections of (sequence, head) pairs, as
/// many as share the L2 cache with what streams past them; within one, tile by tile, the longest
/// under a causal mask first. Packed: head by head, the tiles as they are listed.
struct TileOrder {
  std::int32_t blocks = 0;   ///< Dense: tiles of a sequence. Packed: at most so many are listed.
  std::int32_t pairs = 0;    ///< Dense: of sequences and heads.
  std::int32_t section = 1;  ///< Dense: pairs.
};

struct DenseTile {
  std::int32_t pair;   ///< Sequence and head.
  std::int32_t block;  ///< Tile of the sequence, in order of length.
};

/// The tile that comes `index`-th where the side is dense.
[[nodiscard]] FOVEAL_HOST_DEVICE constexpr DenseTile dense_tile(const TileOrder& order,
                                                                std::uint32_t index) {
  const auto blocks = static_cast<std::uint32_t>(order.blocks);
  const auto section = static_cast<std::uint32_t>(order.section);
  const std::uint32_t first = index / (section * blocks) * section;
  const std::uint32_t width = min_of(section, static_cast<std::uint32_t>(order.pairs) - first);
  const std::uint32_t rest = index - first * blocks;
  return {static_cast<std::int32_t>(first + rest % width), static_cast<std::int32_t>(rest / width)};
}

}  // namespace foveal::cuda::hopper::wide_bwd
