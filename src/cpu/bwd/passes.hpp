// The passes of the backward, as what they do with one work item. delta comes first; the others
// read it and are independent of one another. Each gradient is summed by one worker in an order
// that depends on the problem alone, so its bits don't depend on the number of threads.
#pragma once

#include <cstdint>

#include "cpu/bwd/args.hpp"
#include "cpu/bwd/config.hpp"
#include "cpu/bwd/work_tiles.hpp"

namespace foveal::cpu {

/// delta = rowsum(dout * out) - dlse of the rows of a row tile and KV head.
void compute_delta(const BackwardArgs& args, const BackwardScratch& scratch, const WorkTile& work,
                   std::int64_t head_k);

/// dk = sum over rows of ds^T q, dv = sum over rows of dropout(p)^T dout: one tile of keys and KV
/// head, over the rows that see it and all query heads of the group.
void compute_dk_dv(const BackwardArgs& args, const BackwardScratch& scratch, const WorkTile& work,
                   std::int64_t head_k);

/// dq = sum over keys of ds k: one tile of packed rows, over the keys that they see.
void compute_dq(const BackwardArgs& args, const BackwardScratch& scratch, const WorkTile& work,
                std::int64_t head_k);

/// Tiles of dbias, in its own shape.
[[nodiscard]] std::int64_t num_dbias_tiles(const BackwardArgs& args);

/// dbias = ds, summed over whatever bias is broadcast to: one tile of dbias.
void compute_dbias(const BackwardArgs& args, const BackwardScratch& scratch, std::int64_t item);

/// dsink = -sum over rows of exp(sink - lse) * (delta - dlse): one query head.
void compute_dsink(const BackwardArgs& args, std::int64_t head);

}  // namespace foveal::cpu
