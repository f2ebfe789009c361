// The numbers in a tensor's bytes, whatever their type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <foveal/status.hpp>
#include <foveal/tensor.hpp>

#include "tools/aligned_buffer.hpp"
#include "tools/safetensors.hpp"

namespace foveal::tools {

/// Element `index` of data at any address; `dtype` is F16, BF16, F32, F64, I32 or I64.
double element_value(FileDType dtype, const std::byte* data, std::int64_t index);

/// Element of `dtype` (fp16, bf16 or fp32), rounded to nearest even.
void store_element(DType dtype, std::byte* data, std::int64_t index, float value);

/// A float tensor in another type. F16, BF16 and F32 only.
Result<AlignedBuffer> converted(const TensorView& tensor, DType dtype);

/// I64 to I32; a value outside of 32 bits is refused.
Result<AlignedBuffer> narrowed_to_int32(const TensorView& tensor);

/// The same bytes at an aligned address that may be written to.
Result<AlignedBuffer> copied(const TensorView& tensor);

/// Row-major values of a view with any strides, whose elements are `dtype`.
std::vector<double> values_of(FileDType dtype, const TensorSpec& spec, const void* data);

}  // namespace foveal::tools
