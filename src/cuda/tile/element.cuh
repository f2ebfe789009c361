// Element types of device code by DType, and their exchange with fp32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <foveal/tensor.hpp>

#include "core/host_device.hpp"

namespace foveal::cuda {

template <DType kDType>
struct ElementOfDType;
template <>
struct ElementOfDType<DType::kFloat16> {
  using Type = __half;
};
template <>
struct ElementOfDType<DType::kBFloat16> {
  using Type = __nv_bfloat16;
};
template <>
struct ElementOfDType<DType::kFloat32> {
  using Type = float;
};

template <DType kDType>
using ElementOf = typename ElementOfDType<kDType>::Type;

FOVEAL_DEVICE float to_float(__half value) { return __half2float(value); }
FOVEAL_DEVICE float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
FOVEAL_DEVICE float to_float(float value) { return value; }

template <class Element>
FOVEAL_DEVICE Element from_float(float value);
template <>
FOVEAL_DEVICE __half from_float<__half>(float value) {
  return __float2half_rn(value);
}
template <>
FOVEAL_DEVICE __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
FOVEAL_DEVICE float from_float<float>(float value) {
  return value;
}

}  // namespace foveal::cuda
