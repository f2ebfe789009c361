// A DLTensor as foveal sees it: a spec, and where its first element lies.
#pragma once

#include <dlpack/dlpack.h>

#include <foveal/device.hpp>
#include <foveal/status.hpp>
#include <foveal/tensor.hpp>

namespace foveal::capi {

/// Shape, strides and element type. Strides of dimensions with one element or none, which no
/// address depends on, become those of a contiguous tensor, so that equal views have equal specs.
[[nodiscard]] Status read_spec(const char* name, const DLTensor& tensor, TensorSpec& spec);

/// The first element; null where the tensor has no data.
[[nodiscard]] inline void* data_of(const DLTensor& tensor) {
  if (tensor.data == nullptr) return nullptr;
  return static_cast<char*>(tensor.data) + tensor.byte_offset;
}

/// Memory that the host can use counts as the CPU's, managed memory as the GPU's.
[[nodiscard]] Status read_device(const char* name, const DLDevice& device, Device& result);

/// "cpu", "cuda:1", for messages.
[[nodiscard]] std::string device_text(const Device& device);

/// "float64", "int64", ..., for messages.
[[nodiscard]] std::string dtype_text(const DLDataType& dtype);

}  // namespace foveal::capi
