// The strides of a test tensor in each Layout.
#pragma once

#include <cstdint>
#include <vector>

#include <foveal/tensor.hpp>

#include "support/case.hpp"

namespace foveal::test {

struct PlacedSpec {
  TensorSpec spec;
  std::int64_t lead = 0;  ///< Elements of the storage before the view's lowest one.
};

/// `shape` is [batch, seqlen, heads, dim] or packed [total, heads, dim].
[[nodiscard]] PlacedSpec place_rows(DType dtype, const std::vector<std::int64_t>& shape,
                                    Layout layout);

/// A tensor of any rank without gaps, or with gaps in every dimension, the last included.
[[nodiscard]] TensorSpec place_plain(DType dtype, const std::vector<std::int64_t>& shape,
                                     bool padded);

/// Whether elements of a tensor share memory: such a layout can be read, not written.
[[nodiscard]] bool shares_memory(Layout layout);

}  // namespace foveal::test
