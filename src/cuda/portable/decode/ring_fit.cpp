#include "cuda/portable/decode/ring_fit.hpp"

#include "core/integer.hpp"
#include "cuda/portable/decode/direct_args.hpp"

namespace foveal::cuda::decode {
namespace {

/// The most warps with `stages` stages, 0 when not even one fits.
Ring widest_ring(const RingNeeds& needs, int stages, std::int64_t bytes) {
  Ring ring{max_warps(needs.headdim, needs.rows / kTileRows), stages};
  while (ring.warps > 0 && !fits(needs, ring, bytes)) --ring.warps;
  return ring;
}

}  // namespace

int headdim_tile(const AttentionGeometry& geometry) {
  const std::int64_t headdim = max_of(geometry.headdim, geometry.headdim_v);
  for (const int tile : {64, 128, 256}) {
    if (headdim <= tile) return tile;
  }
  return 512;
}

std::int64_t half_of(std::int64_t per_block) { return (per_block - 1024) / 2; }

int direct_rows(const AttentionGeometry& geometry, std::int64_t rows) {
  return rows == kTileRows && headdim_tile(geometry) <= kMaxDirectHeaddim
             ? static_cast<int>(geometry.seqlen_q * geometry.qhead_per_khead)
             : 0;
}

RingNeeds cluster_needs(const AttentionGeometry& geometry, std::int64_t rows, std::int64_t size) {
  return {.headdim = headdim_tile(geometry),
          .rows = static_cast<int>(rows),
          .splits = size > 1 ? static_cast<int>(size) : 0,
          .direct_rows = direct_rows(geometry, rows)};
}

bool fits(const RingNeeds& needs, const Ring& ring, std::int64_t bytes) {
  if (needs.shared_blocks > 0) {
    const auto layout = shared_direct_layout(needs.headdim, needs.direct_rows, ring.warps,
                                             ring.stages, needs.shared_blocks, needs.batch_prefix);
    if (layout.total > bytes) return false;
  } else if (needs.direct_rows > 0) {
    const auto layout = direct_layout(needs.headdim, needs.direct_rows, ring.warps, ring.stages,
                                      max_of(needs.splits, 1));
    if (layout.total > bytes) return false;
  }
  return shared_layout(needs.headdim, needs.rows, ring.warps, ring.stages, needs.splits,
                       needs.batch_prefix)
             .total <= bytes;
}

Ring fit_ring(const RingNeeds& needs, std::int64_t bytes, bool deep) {
  if (deep) {
    const Ring three = widest_ring(needs, 3, bytes);
    if (three.warps >= 4) return three;
  }
  const Ring wide = widest_ring(needs, 2, bytes);
  return wide.warps > 0 ? wide : Ring{1, 2};
}

}  // namespace foveal::cuda::decode
