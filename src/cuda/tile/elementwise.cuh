// What kernels share that move or combine elements one by one: vectors of them, and rows counted
// through dimensions.
#pragma once

#include <cstdint>
#include <type_traits>

#include <foveal/tensor.hpp>

#include "core/host_device.hpp"
#include "cuda/tile/element.cuh"

namespace foveal::cuda {

/// kCount elements as they lie in memory; loads and stores of 16 bytes where there are so many.
template <class Element, int kCount>
struct alignas(kCount * sizeof(Element) < 16 ? kCount * sizeof(Element) : 16) Elements {
  Element at[kCount];
};

template <class Element, int kCount>
FOVEAL_DEVICE Elements<Element, kCount> load_elements(const Element* from) {
  return *reinterpret_cast<const Elements<Element, kCount>*>(from);
}

template <class Element, int kCount>
FOVEAL_DEVICE void store_elements(Element* to, const Elements<Element, kCount>& elements) {
  *reinterpret_cast<Elements<Element, kCount>*>(to) = elements;
}

/// The same as fp32, of a dtype that is known only when the kernel runs; `offset` counts elements.
template <int kCount>
FOVEAL_DEVICE void load_floats(DType dtype, const void* data, std::int64_t offset,
                               float (&values)[kCount]) {
  const auto convert = [&](const auto* typed) {
    using Element = std::remove_cv_t<std::remove_pointer_t<decltype(typed)>>;
    const auto elements = load_elements<Element, kCount>(typed + offset);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = to_float(elements.at[i]);
  };
  switch (dtype) {
    case DType::kFloat16: return convert(static_cast<const __half*>(data));
    case DType::kBFloat16: return convert(static_cast<const __nv_bfloat16*>(data));
    default: return convert(static_cast<const float*>(data));
  }
}

template <int kCount>
FOVEAL_DEVICE void store_floats(DType dtype, void* data, std::int64_t offset,
                                const float (&values)[kCount]) {
  const auto convert = [&](auto* typed) {
    using Element = std::remove_pointer_t<decltype(typed)>;
    Elements<Element, kCount> elements;
#pragma unroll
    for (int i = 0; i < kCount; ++i) elements.at[i] = from_float<Element>(values[i]);
    store_elements(typed + offset, elements);
  };
  switch (dtype) {
    case DType::kFloat16: return convert(static_cast<__half*>(data));
    case DType::kBFloat16: return convert(static_cast<__nv_bfloat16*>(data));
    default: return convert(static_cast<float*>(data));
  }
}

struct Quotient {
  std::int64_t quotient;
  std::int64_t remainder;
};

/// value / divisor, both at least 0. Nearly always both have 32 bits, which divide several times
/// faster.
FOVEAL_DEVICE Quotient divide(std::int64_t value, std::int64_t divisor) {
  if (((value | divisor) >> 32) == 0) {
    const auto n = static_cast<std::uint32_t>(value);
    const auto d = static_cast<std::uint32_t>(divisor);
    return {n / d, n % d};
  }
  return {value / divisor, value % divisor};
}

}  // namespace foveal::cuda
