// The tiles of hopper_bwd, and what each takes of a multiprocessor.
#pragma once

#include <cstdint>

#include "algorithm/mask.hpp"
#include "core/host_device.hpp"
#include "core/integer.hpp"
#include "cuda/tile/swizzled_panels.hpp"

namespace foveal::cuda::hopper::bwd {

/// Threads of a warpgroup, and the rows of one wgmma.
inline constexpr int kGroupThreads = 128;
inline constexpr int kGroupRows = 64;
/// Columns of dq that leave together where heads are wider than 128.
inline constexpr int kPieceColumns = 16;

/// A block holds n keys of k and v and streams q and dout past them, m rows at a time. Where heads
/// are wider than 128, the two blocks of a cluster hold half of the keys each: a block sums dk and
/// dv of its own keys, and dq of its share of the columns over all n.
struct BackwardTile {
  int m = 0;
  int n = 0;            ///< 64 a consumer warpgroup; of a cluster, 64 a block.
  int d = 0;            ///< Columns; narrower heads are padded by the copy engine.
  int q_stages = 3;     ///< Tiles of q in shared memory: three are in use at a time.
  int dout_stages = 2;  ///< Tiles of dout, and of the rows' lse and delta.
  int blocks = 1;       ///< Of a cluster.
  int dq_buffers = 0;   ///< Wide: pieces of dq on their way to global memory, of each consumer.

  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr bool is_wide() const { return d > 128; }
  /// Wide: one has scores, one dv, one dk; the last two have dq between them.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int num_consumers() const {
    return is_wide() ? 3 : n / kGroupRows;
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int num_threads() const {
    return (num_consumers() + 1) * kGroupThreads;
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr PanelLayout q_layout() const { return {m, d}; }
  /// Rows of q and dout that a block asks for: the cluster's blocks ask for a tile together.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int q_box_rows() const { return m / blocks; }
  /// k or v of a block. Narrow: pieces of dq are of whole panels of k.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr PanelLayout k_layout() const {
    return {n / blocks, d, !is_wide() && dq_piece_columns() % 32 != 0 ? 16 : 64};
  }
  /// Gradients of scores: rows of q, keys adjacent.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr PanelLayout ds_layout() const { return {m, n}; }

  /// Narrow: dq of a tile is computed in pieces of 64 rows x 64 columns (headdim 96: 48), one a
  /// consumer.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int dq_column_pieces() const {
    return ceil_div(d, 64);
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int dq_piece_columns() const {
    return d / dq_column_pieces();
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int dq_piece_floats() const {
    return kGroupRows * dq_piece_columns();
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int dq_floats() const { return m * d; }

  /// Wide: weights, and gradients of scores: keys of a block, rows adjacent.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr PanelLayout scores_layout() const {
    return {kGroupRows, m};
  }
  /// Wide: k of one block's keys, the columns of dq of one block.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr PanelLayout part_layout() const {
    return {kGroupRows, d / blocks};
  }
  /// Wide: blocks whose part of k lies apart from k: the other one, and this one too where panels
  /// of k would be cut.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int num_parts() const {
    return d / blocks % 64 == 0 ? blocks - 1 : blocks;
  }
  /// Wide: columns of a block's dq that the consumer of dv computes, and that of dk.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int dv_dq_columns() const {
    return d / blocks % 128 == 0 ? d / blocks / 2 : d / blocks;
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int dk_dq_columns() const {
    return d / blocks - dv_dq_columns();
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int num_dq_consumers() const {
    return dk_dq_columns() > 0 ? 2 : 1;
  }
  /// Wide: whether dq waits for the next step's scores to be under way. It is measured: 4 % at
  /// headdim 192, a loss at 256, where dq takes so long that the step after waits for it.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr bool scores_come_first() const { return d <= 192; }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int piece_floats() const { return m * kPieceColumns; }

  /// Whether dk is summed while the next gradients of scores are computed: there are registers.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr bool overlaps_dk() const { return m == 64; }

  /// Registers a thread that a block begins with: all that a multiprocessor has, in eights. What
  /// setmaxnreg moves between warpgroups comes out of these; whoever asks for more waits for ever.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int launch_registers() const {
    return 65536 / num_threads() / 8 * 8;
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int producer_registers() const {
    return is_wide() ? 32 : 24;
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int consumer_registers() const {
    return is_wide() ? 192 : 240;
  }
  /// Wide: of the consumer of scores.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int scores_registers() const { return 96; }

  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int operand_bytes() const {
    const int held = 2 * k_layout().bytes() + dout_stages * 8 * m;
    const int streamed = (q_stages + dout_stages) * q_layout().bytes();
    if (!is_wide()) {
      return held + streamed + 2 * ds_layout().bytes() + 4 * num_consumers() * dq_piece_floats();
    }
    return held + streamed + num_parts() * part_layout().bytes() +
           (1 + blocks) * scores_layout().bytes() +
           4 * num_dq_consumers() * dq_buffers * piece_floats();
  }
  /// The operands, barriers and what is told of a tile.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int shared_bytes() const {
    return operand_bytes() + 2048;
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr bool is_possible() const {
    const bool narrow = blocks == 1 && n % kGroupRows == 0 && num_consumers() == 2 && m % 64 == 0 &&
                        m <= 128 && m / 64 * dq_column_pieces() == num_consumers() &&
                        dq_piece_columns() % k_layout().panel_columns() == 0;
    const bool wide = blocks == 2 && n == blocks * kGroupRows && m == 64 && d <= 256 &&
                      d % 64 == 0 && dq_buffers >= 2;
    return (is_wide() ? wide : narrow && d % 32 == 0) &&
           producer_registers() + (is_wide() ? scores_registers() : consumer_registers()) +
                   (num_consumers() - 1) * consumer_registers() <=
               (num_consumers() + 1) * launch_registers() &&
           shared_bytes() <= 227 * 1024;
  }
  bool operator==(const BackwardTile&) const = default;
};

struct BackwardHdim64 {
  static constexpr BackwardTile tile{.m = 128, .n = 128, .d = 64};
};
struct BackwardHdim96 {
  static constexpr BackwardTile tile{.m = 64, .n = 128, .d = 96};
};
struct BackwardHdim128 {
  static constexpr BackwardTile tile{.m = 64, .n = 128, .d = 128};
};
struct BackwardHdim192 {
  static constexpr BackwardTile tile{
      .m = 64, .n = 128, .d = 192, .q_stages = 2, .dout_stages = 2, .blocks = 2, .dq_buffers = 6};
};
struct BackwardHdim256 {
  static constexpr BackwardTile tile{
      .m = 64, .n = 128, .d = 256, .q_stages = 2, .dout_stages = 1, .blocks = 2, .dq_buffers = 3};
};
static_assert(BackwardHdim192::tile.is_possible() && BackwardHdim256::tile.is_possible());
static_assert(BackwardHdim64::tile.is_possible() && BackwardHdim96::tile.is_possible() &&
              BackwardHdim128::tile.is_possible());

/// Where an element of dq lies among the sums of its tile: piece by piece as the threads of a
/// consumer hold them, 4 x 128 floats at a time.
[[nodiscard]] FOVEAL_HOST_DEVICE constexpr int dq_place(const BackwardTile& tile, int row,
                                                        int column) {
  const int columns = tile.dq_piece_columns();
  const int piece = row / 64 * tile.dq_column_pieces() + column / columns;
  const int thread = row % 64 / 16 * 32 + row % 8 * 4 + column % 8 / 2;
  return piece * tile.dq_piece_floats() + (column % columns / 8 * kGroupThreads + thread) * 4 +
         row % 16 / 8 * 2 + column % 2;
}

/// In which order blocks take tiles of keys: sections of pairs of a sequence (packed k: of all
/// together) and a KV head; within a section tile by tile, rising from the first, the longest under
/// a causal mask, or falling from the last. By rows, and wherever tiles of keys add to dq in turn,
/// tiles of rows stream past in the other direction: rising where tiles of keys come falling.
struct KeyTileOrder {
  std::int32_t blocks = 0;  ///< Tiles of a pair. Packed: at most so many are listed.
  std::int32_t pairs = 0;
  std::int32_t section = 1;          ///< Pairs of a section but for falling_pairs: it rises.
  std::int32_t falling_pairs = 0;    ///< They come before the others.
  std::int32_t falling_section = 1;  ///< Pairs of a section of those.
  /// Or of the others the last section rises, the one before it falls, and so on back; the first
  /// always falls, with an odd number of sections as the second does.
  bool alternates = false;
  /// Rows stream past tile by tile, each for all query heads of the group. Else head after head.
  bool by_rows = false;
};

struct KeyTilePlace {
  std::int32_t pair;
  std::int32_t block;  ///< Tile of keys of the sequence. Packed: its number in the list.
  bool falling;        ///< It comes before the tiles of its pair that have smaller numbers.
};

/// The tile that comes `index`-th.
[[nodiscard]] FOVEAL_HOST_DEVICE constexpr KeyTilePlace key_tile_place(const KeyTileOrder& order,
                                                                       std::uint32_t index) {
  const auto blocks = static_cast<std::uint32_t>(order.blocks);
  const auto falling_pairs = static_cast<std::uint32_t>(order.falling_pairs);
  bool falling = index < falling_pairs * blocks;
  const std::uint32_t begin = falling ? 0 : falling_pairs;
  const auto end = falling ? falling_pairs : static_cast<std::uint32_t>(order.pairs);
  const auto section = static_cast<std::uint32_t>(falling ? order.falling_section : order.section);
  const std::uint32_t number = (index - begin * blocks) / (section * blocks);
  const std::uint32_t first = begin + number * section;
  if (order.alternates) falling = number == 0 || (end - first - 1) / section % 2 == 1;
  const std::uint32_t width = min_of(section, end - first);
  const std::uint32_t rest = index - first * blocks;
  const std::uint32_t place = rest / width;
  return {static_cast<std::int32_t>(first + rest % width),
          static_cast<std::int32_t>(falling ? blocks - 1 - place : place), falling};
}

/// In which order the conversion takes tiles of rows, `blocks` of each of `pairs`, pairs now of a
/// sequence (packed q: of all together) and a query head: about that in which the products end with
/// them, which is alike in all sections that alternate. `same_packing`: both q and k are packed, or
/// neither.
[[nodiscard]] FOVEAL_HOST_DEVICE constexpr KeyTileOrder row_tile_order(const KeyTileOrder& keys,
                                                                       std::int32_t blocks,
                                                                       std::int32_t pairs,
                                                                       std::int32_t group,
                                                                       bool same_packing) {
  return {.blocks = blocks,
          .pairs = pairs,
          .section = min_of(keys.section * group, max_of(pairs, 1)),
          .falling_pairs = same_packing ? keys.falling_pairs * group : 0,
          .falling_section = keys.falling_section * group,
          .by_rows = keys.by_rows};
}

/// The tile of rows that comes `index`-th; where it is packed, its number in the list, which has
/// each sequence's tiles from the last to the first. Rows end rising where tiles of keys come
/// falling or head after head, and falling where those come rising by rows, all together. Packed
/// ones come falling all the same where tiles of keys come head after head: in the list a sequence
/// follows the one before it. It is an order for speed alone; the conversion waits for each tile.
[[nodiscard]] FOVEAL_HOST_DEVICE constexpr KeyTilePlace row_tile_place(const KeyTileOrder& order,
                                                                       bool packed,
                                                                       std::uint32_t index) {
  KeyTilePlace place = key_tile_place(order, index);
  if (!packed && order.by_rows) place.block = order.blocks - 1 - place.block;
  return place;
}

/// What a tile of keys knows its turn by to add to a tile of rows: how many tiles add there before
/// it. Those lie between the rows' first key and its own where tiles come rising, between its own
/// and the rows' last key where they come falling. That distance in keys shrinks, or grows, row by
/// row, up to where the sequence ends.
struct DqTurns {
  std::int32_t base;  ///< With row 0.
  std::int32_t most;
};

/// Of tile `block` of a sequence whose key 0 has `leftpad` rows before it.
[[nodiscard]] FOVEAL_HOST_DEVICE constexpr DqTurns dq_turns(
    const BackwardTile& tile, const algorithm::BasicMask<std::int32_t>& mask, std::int32_t leftpad,
    std::int32_t block, bool falling) {
  // Sides as wide as the sequence are as good as none, and their sums don't overflow.
  const std::int32_t first_key = block * tile.n - leftpad;
  if (!falling) {
    const std::int32_t last_key = first_key + tile.n - 1;
    const std::int32_t left = min_of(mask.window.left, mask.seqlen_k);
    return {last_key - mask.shift() + left, last_key};
  }
  const std::int32_t right = min_of(mask.window.right, mask.seqlen_q);
  return {tile.m - 1 + mask.shift() + right - first_key, mask.seqlen_k - 1 - first_key};
}

/// At the tile of rows from `first_row` on, to which the tile of keys adds. `row_step` is 1 where
/// tiles of keys come falling and rows rising, -1 where keys come rising and rows falling.
[[nodiscard]] FOVEAL_HOST_DEVICE constexpr std::int32_t dq_turn(const BackwardTile& tile,
                                                                const DqTurns& turns,
                                                                std::int32_t row_step,
                                                                std::int32_t first_row) {
  return min_of(turns.base + row_step * first_row, turns.most) / tile.n;
}

/// How many tiles of keys add to dq of the tile of rows from `first_row` on.
[[nodiscard]] FOVEAL_HOST_DEVICE constexpr std::int32_t dq_additions(
    const BackwardTile& tile, const algorithm::BasicMask<std::int32_t>& mask, std::int32_t leftpad,
    std::int32_t first_row) {
  const auto keys = mask.keys_of_rows({first_row, first_row + tile.m});
  if (keys.empty()) return 0;
  return (keys.max - 1 + leftpad) / tile.n - (keys.min + leftpad) / tile.n + 1;
}

/// Where the tiles of dq's sums of packed sequence b begin: its rows begin with a tile of their
/// own, and those of b + 1 come after its last.
[[nodiscard]] FOVEAL_HOST_DEVICE constexpr std::int32_t packed_row_tile(const BackwardTile& tile,
                                                                        std::int32_t q_begin,
                                                                        std::int32_t b) {
  return q_begin / tile.m + b;
}

}  // namespace foveal::cuda::hopper::bwd
