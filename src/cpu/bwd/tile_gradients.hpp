// The step that all passes share: one tile of rows and one of keys become weights and gradients of
// scores, recomputed from q, k, v, dout, lse and delta. FlashAttention-2 (Dao 2023), Alg. 2.
#pragma once

#include <cstdint>

#include "cpu/bwd/args.hpp"
#include "cpu/bwd/config.hpp"

namespace foveal::cpu {

/// Loads q, dout, lse and delta of packed rows, all of them below seqlen_q * group. A row that saw
/// nothing (lse is -inf) becomes 0, whatever it holds, so that it adds nothing to any product.
void load_rows(const BackwardArgs& args, const BackwardScratch& scratch, const QueryTile& rows);

/// Loads and packs k and v of the keys; those outside `seen` become 0.
void load_keys(const BackwardArgs& args, const BackwardScratch& scratch, const Sequence& sequence,
               std::int64_t head_k, algorithm::Range keys, algorithm::Range seen);

/// What ds is the gradient of: the product q.k (for dq and dk), or the score after softcap, where
/// the bias comes in (for dbias).
enum class GradientOf { kProduct, kBias };

/// From what load_rows() and load_keys() left, in scratch.p the weights that v was multiplied with
/// (dropout is in them), and in scratch.ds the gradients, for kProduct over softmax_scale. Both are
/// 0 where the mask hides the key.
void compute_gradients(const BackwardArgs& args, const BackwardScratch& scratch,
                       const ScoreTile& tile, bool needs_mask, GradientOf gradient_of);

/// p and ds as operands of the products that follow: p_pairs, ds_pairs and ds_operand.
void make_operands(const BackwardArgs& args, const BackwardScratch& scratch, const ScoreTile& tile);

}  // namespace foveal::cpu
