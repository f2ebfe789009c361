// Loads and stores of shared memory by its own 32-bit addresses.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"

namespace foveal::cuda::ptx {

/// 16 bytes at an address aligned to 16.
FOVEAL_DEVICE void store_shared_16(std::uint32_t address, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};\n" ::"r"(address), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

FOVEAL_DEVICE void store_shared_4(std::uint32_t address, std::uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(address), "r"(value) : "memory");
}

/// Two floats at an address aligned to 8.
FOVEAL_DEVICE void store_shared_float2(std::uint32_t address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};\n" ::"r"(address), "f"(x), "f"(y) : "memory");
}

FOVEAL_DEVICE void store_shared_float(std::uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(address), "f"(value) : "memory");
}

FOVEAL_DEVICE float load_shared_float(std::uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(value) : "r"(address) : "memory");
  return value;
}

FOVEAL_DEVICE float2 load_shared_float2(std::uint32_t address) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];\n"
               : "=f"(value.x), "=f"(value.y)
               : "r"(address)
               : "memory");
  return value;
}

}  // namespace foveal::cuda::ptx
