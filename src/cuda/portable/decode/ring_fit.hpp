// What a decode block's shared memory has room for: its warps, and the stages of their rings.
#pragma once

#include <cstdint>

#include "problem/geometry.hpp"

namespace foveal::cuda::decode {

/// headdim and headdim_v padded to 64, 128, 256 or 512: the rows of a tile in shared memory.
[[nodiscard]] int headdim_tile(const AttentionGeometry& geometry);

/// Warps and stages of a block's rings.
struct Ring {
  int warps = 0;
  int stages = 0;
};

/// What a block's rings have to leave room for.
struct RingNeeds {
  int headdim = 0;
  int rows = 0;
  int splits = 0;         ///< Whose results a cluster's blocks receive.
  int direct_rows = 0;    ///< Packed rows, where the direct kernel may run; 0: it can't.
  int batch_prefix = 0;   ///< Sequences that the balanced schedule scans.
  int shared_blocks = 0;  ///< Blocks of the shared direct kernel, where it may run; 0: it can't.
};

/// Shared memory of a block that leaves room for a second one on a multiprocessor that has
/// `per_block` for a single one.
[[nodiscard]] std::int64_t half_of(std::int64_t per_block);

/// Packed rows of a tile that the direct kernel may be given, by shape alone; 0: it takes no such.
[[nodiscard]] int direct_rows(const AttentionGeometry& geometry, std::int64_t rows);

/// Of a cluster's blocks, `size` of them.
[[nodiscard]] RingNeeds cluster_needs(const AttentionGeometry& geometry, std::int64_t rows,
                                      std::int64_t size);

/// A plan holds for any alignment of the pointers, so both kernels must fit.
[[nodiscard]] bool fits(const RingNeeds& needs, const Ring& ring, std::int64_t bytes);

/// Three stages where they are wanted (`deep`) and four warps have room for them; otherwise two,
/// and as many warps as fit.
[[nodiscard]] Ring fit_ring(const RingNeeds& needs, std::int64_t bytes, bool deep);

}  // namespace foveal::cuda::decode
