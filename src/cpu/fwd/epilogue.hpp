// From a finished tile to memory: straight, or by way of the partial results of splits.
#pragma once

#include "cpu/fwd/kernel.hpp"

namespace foveal::cpu {

/// A tile in its sequence.
struct ForwardTile {
  QueryTile rows;            ///< rows.packed: those below seqlen_q
  algorithm::Range padding;  ///< packed rows of the tile at and past seqlen_q
};

/// Folds in the sink, divides by the row sums and stores out and lse, or the split's part of them.
void store_tile(const ForwardArgs& args, const ForwardScratch& scratch, const WorkItem& item,
                const ForwardTile& tile);

/// Rows past seqlen_q, and of sequences without rows: out 0, lse -inf.
void store_padding(const ForwardArgs& args, const ForwardScratch& scratch, const ForwardTile& tile);

}  // namespace foveal::cpu
