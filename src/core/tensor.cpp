#include <foveal/tensor.hpp>

#include <span>

#include "core/format.hpp"
#include "core/host_device.hpp"

namespace foveal {

TensorSpec TensorSpec::contiguous(DType dtype, std::initializer_list<std::int64_t> shape) {
  FOVEAL_ASSERT(shape.size() <= kMaxRank);
  TensorSpec spec;
  spec.dtype = dtype;
  for (const std::int64_t extent : shape) {
    spec.shape[static_cast<std::size_t>(spec.rank++)] = extent;
  }
  std::int64_t stride = 1;
  for (int axis = spec.rank - 1; axis >= 0; --axis) {
    const auto i = static_cast<std::size_t>(axis);
    spec.strides[i] = stride;
    // A product past 64 bits is reported by validate(); here it must only not be undefined.
    if (spec.shape[i] > 0) {
      stride = static_cast<std::int64_t>(static_cast<std::uint64_t>(stride) *
                                         static_cast<std::uint64_t>(spec.shape[i]));
    }
  }
  return spec;
}

TensorSpec TensorSpec::strided(DType dtype, std::initializer_list<std::int64_t> shape,
                               std::initializer_list<std::int64_t> strides) {
  FOVEAL_ASSERT(shape.size() <= kMaxRank && shape.size() == strides.size());
  TensorSpec spec;
  spec.dtype = dtype;
  for (const std::int64_t extent : shape) {
    spec.shape[static_cast<std::size_t>(spec.rank++)] = extent;
  }
  std::size_t axis = 0;
  for (const std::int64_t stride : strides) spec.strides[axis++] = stride;
  return spec;
}

TensorSpec TensorSpec::bhsd(DType dtype, std::int64_t batch, std::int64_t seqlen,
                            std::int64_t heads, std::int64_t dim) {
  return strided(dtype, {batch, seqlen, heads, dim}, {heads * seqlen * dim, dim, seqlen * dim, 1});
}

std::int64_t TensorSpec::numel() const {
  if (!present()) return 0;
  std::int64_t count = 1;
  for (int axis = 0; axis < rank; ++axis) count *= shape[static_cast<std::size_t>(axis)];
  return count;
}

std::string TensorSpec::to_string() const {
  if (!present()) return "none";
  const auto count = static_cast<std::size_t>(rank);
  return concat(dtype_name(dtype), " ", std::span(shape.data(), count), " strides ",
                std::span(strides.data(), count));
}

}  // namespace foveal
