// The passes of the backward, as what they do with one work item. delta comes first; the others
// read it. Each gradient is summed in an order that depends on the problem alone, so its bits don't
// depend on the number of threads.
#pragma once

#include <cstdint>

#include "cpu/bwd/args.hpp"
#include "cpu/bwd/config.hpp"
#include "cpu/bwd/work_tiles.hpp"

namespace foveal::cpu {

/// delta = rowsum(dout * out) - dlse of the rows of a tile and KV head; and dq = 0 for those of its
/// rows that no block of keys will add to.
void compute_delta(const BackwardArgs& args, const BackwardScratch& scratch,
                   const BackwardItem& item);

/// One block of keys and KV head, over the rows that see it and all query heads of the group:
/// dk = sum over rows of ds^T q, dv = sum over rows of dropout(p)^T dout, and its part of
/// dq = sum over keys of ds k; with the last part dq of a tile of rows is stored.
void compute_key_block(const BackwardArgs& args, const BackwardScratch& scratch,
                       const BackwardItem& item, std::int64_t unit);

/// Tiles of dbias, in its own shape.
[[nodiscard]] std::int64_t num_dbias_tiles(const BackwardArgs& args);

/// dbias = ds, summed over whatever bias is broadcast to: one tile of dbias.
void compute_dbias(const BackwardArgs& args, const BackwardScratch& scratch, std::int64_t item);

/// dsink = -sum over rows of exp(sink - lse) * (delta - dlse): one query head.
void compute_dsink(const BackwardArgs& args, std::int64_t head);

}  // namespace foveal::cpu
