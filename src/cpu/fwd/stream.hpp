// Products of a few rows with k and v where they lie in memory, for all heads of an item together.
#pragma once

#include <cstdint>

#include "cpu/fwd/kernel.hpp"

namespace foveal::cpu {

/// Rows of an item's products with rows in memory: as many of each head, whose tiles lie head_rows
/// apart in the scratch tiles.
struct StreamedRows {
  std::int64_t rows = 0;
  std::int64_t heads = 1;
  std::int64_t head_rows = 0;
};

/// scratch.scores = q . k^T. `keys` are those of the first head. Keys that no row sees are not
/// read; their products are 0. `values` are what stream_values reads next.
void stream_products(const ForwardArgs& args, const ForwardScratch& scratch, const KeyRows& keys,
                     const KeyRows& values, const StreamedRows& rows);

/// scratch.acc += weights . v, for the values that were given to stream_products. `next` are the
/// keys that are read next.
void stream_values(const ForwardArgs& args, const ForwardScratch& scratch, const KeyRows& values,
                   const KeyRows& next, const StreamedRows& rows);

}  // namespace foveal::cpu
