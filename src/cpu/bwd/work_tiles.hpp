// The tiles of dq and of dk, dv, each computed by one worker from beginning to end. A list holds
// them for one KV head, longest first, and is walked once a head.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/bwd/args.hpp"

namespace foveal::cpu {

/// A tile of sequence b: packed rows [block * tile.m, ...) or keys [block * tile.n, ...). Blocks of
/// keys count from key 0, so the left padding has negative ones.
struct WorkTile {
  std::int64_t pairs = 0;  ///< Rows, or keys, that the tile is combined with.
  std::int32_t b = 0;
  std::int32_t block = 0;
};

/// Every row of q, used or not, is in one tile: all of dq is written.
[[nodiscard]] std::span<const WorkTile> list_row_tiles(const BackwardArgs& args, WorkTile* storage);
/// Every row of k, used or not, is in one tile.
[[nodiscard]] std::span<const WorkTile> list_key_tiles(const BackwardArgs& args, WorkTile* storage);

/// Packed rows of a row tile that belong to the sequence, and those of them that are used.
[[nodiscard]] algorithm::Range packed_rows(const BackwardArgs& args, const Sequence& sequence,
                                           std::int32_t block);
[[nodiscard]] algorithm::Range used_packed_rows(const BackwardArgs& args, const Sequence& sequence,
                                                std::int32_t block);

/// Key positions of a key tile that belong to the sequence (negative in the left padding), and
/// those of them that are keys.
[[nodiscard]] algorithm::Range key_positions(const BackwardArgs& args, const Sequence& sequence,
                                             std::int32_t block);
[[nodiscard]] algorithm::Range used_keys(const BackwardArgs& args, const Sequence& sequence,
                                         std::int32_t block);

}  // namespace foveal::cpu
