#include "support/operand_layout.hpp"

#include <array>
#include <cstddef>

namespace foveal::test {
namespace {

struct Extents {
  std::int64_t batch, seqlen, heads, dim;
};

using Strides = std::array<std::int64_t, 4>;  // of batch, seqlen, heads, dim

Strides strides_of(const Extents& e, Layout layout) {
  const std::int64_t row = e.heads * e.dim;
  switch (layout) {
    case Layout::kBhsd: return {e.heads * e.seqlen * e.dim, e.dim, e.seqlen * e.dim, 1};
    case Layout::kPackedSlice: return {e.seqlen * 3 * row, 3 * row, e.dim, 1};
    case Layout::kDimOutermost: return {row * e.seqlen, 1, e.dim * e.seqlen, e.seqlen};
    case Layout::kExpandedHeads: return {e.seqlen * e.dim, e.dim, 0, 1};
    case Layout::kExpandedBatch: return {0, row, e.dim, 1};
    case Layout::kExpandedAll: return {0, 0, 0, 0};
    case Layout::kReversed: return {e.seqlen * row, -row, e.dim, 1};
    case Layout::kPadded: {
      const std::int64_t padded_row = e.heads * (e.dim + 1) + 3;
      return {e.seqlen * padded_row + 5, padded_row, e.dim + 1, 1};
    }
    case Layout::kOddUnitStrides: {
      Strides strides{e.seqlen * row, row, e.dim, 1};
      const Strides extents{e.batch, e.seqlen, e.heads, e.dim};
      for (std::size_t axis = 0; axis < 4; ++axis) {
        if (extents[axis] == 1) strides[axis] = 7;
      }
      return strides;
    }
    case Layout::kBshd:
    case Layout::kMisaligned: break;
  }
  return {e.seqlen * row, row, e.dim, 1};
}

std::int64_t lead_of(const Extents& e, Layout layout) {
  if (layout == Layout::kMisaligned) return 1;
  if (layout == Layout::kPackedSlice) return e.heads * e.dim;  // the middle of three slices
  return 0;
}

}  // namespace

PlacedSpec place_rows(DType dtype, const std::vector<std::int64_t>& shape, Layout layout) {
  const bool packed = shape.size() == 3;
  const Extents extents = packed ? Extents{1, shape[0], shape[1], shape[2]}
                                 : Extents{shape[0], shape[1], shape[2], shape[3]};
  Strides strides = strides_of(extents, layout);
  if (packed && layout == Layout::kExpandedBatch) strides[1] = 0;
  PlacedSpec placed;
  placed.spec.dtype = dtype;
  placed.spec.rank = static_cast<std::int32_t>(shape.size());
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    placed.spec.shape[axis] = shape[axis];
    placed.spec.strides[axis] = strides[axis + (packed ? 1 : 0)];
  }
  placed.lead = lead_of(extents, layout);
  return placed;
}

TensorSpec place_plain(DType dtype, const std::vector<std::int64_t>& shape, bool padded) {
  TensorSpec spec;
  spec.dtype = dtype;
  spec.rank = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = padded ? 2 : 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    spec.shape[axis] = shape[axis];
    spec.strides[axis] = stride;
    stride = stride * shape[axis] + (padded ? 2 : 0);
  }
  return spec;
}

bool shares_memory(Layout layout) {
  return layout == Layout::kExpandedHeads || layout == Layout::kExpandedBatch ||
         layout == Layout::kExpandedAll;
}

}  // namespace foveal::test
