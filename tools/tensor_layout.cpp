#include "tools/tensor_layout.hpp"

#include <cstddef>
#include <utility>

namespace foveal::tools {

TensorSpec row_major(DType dtype, std::span<const std::int64_t> shape) {
  switch (shape.size()) {
    case 1: return TensorSpec::contiguous(dtype, {shape[0]});
    case 2: return TensorSpec::contiguous(dtype, {shape[0], shape[1]});
    case 3: return TensorSpec::contiguous(dtype, {shape[0], shape[1], shape[2]});
    default: return TensorSpec::contiguous(dtype, {shape[0], shape[1], shape[2], shape[3]});
  }
}

TensorSpec heads_first(DType dtype, std::span<const std::int64_t> file_shape) {
  TensorSpec spec = row_major(dtype, file_shape);
  std::swap(spec.shape[1], spec.shape[2]);
  std::swap(spec.strides[1], spec.strides[2]);
  return spec;
}

std::vector<std::int64_t> file_shape(const TensorSpec& spec, bool heads_first) {
  std::vector<std::int64_t> shape(spec.shape.begin(), spec.shape.begin() + spec.rank);
  if (heads_first && shape.size() == 4) std::swap(shape[1], shape[2]);
  return shape;
}

}  // namespace foveal::tools
