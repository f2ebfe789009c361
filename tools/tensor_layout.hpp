// From a file's order of dimensions to the problem's, and back: only strides differ.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <foveal/tensor.hpp>

namespace foveal::tools {

/// Without gaps, in the problem's own order of dimensions; `shape` has 1 to 4 of them.
TensorSpec row_major(DType dtype, std::span<const std::int64_t> shape);

/// Of a file's [batch, heads, seqlen, dim] without gaps, described as [batch, seqlen, heads, dim].
TensorSpec heads_first(DType dtype, std::span<const std::int64_t> file_shape);

/// The file's shape of what row_major() or heads_first() described.
std::vector<std::int64_t> file_shape(const TensorSpec& spec, bool heads_first);

}  // namespace foveal::tools
