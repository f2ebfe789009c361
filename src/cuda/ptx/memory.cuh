// Loads and stores with an order: flags in global memory that blocks of one launch pass data by.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/ptx/stall.cuh"

namespace foveal::cuda::ptx {

/// Stores a flag: what the calling thread wrote or saw before is seen by whoever loads the flag
/// with load_acquire.
FOVEAL_DEVICE void store_release(std::uint64_t* flag, std::uint64_t value) {
  stall();
  asm volatile("st.release.gpu.global.u64 [%0], %1;\n" ::"l"(flag), "l"(value) : "memory");
}

/// Adds to a flag, and sees what those saw or wrote that released the value it returns.
FOVEAL_DEVICE std::uint64_t add_acquire(std::uint64_t* flag, std::uint64_t value) {
  stall();
  std::uint64_t before;
  asm volatile("atom.acquire.gpu.global.add.u64 %0, [%1], %2;\n"
               : "=l"(before)
               : "l"(flag), "l"(value)
               : "memory");
  return before;
}

/// Adds to a flag as store_release stores it.
FOVEAL_DEVICE void add_release(std::uint64_t* flag, std::uint64_t value) {
  stall();
  asm volatile("red.release.gpu.global.add.u64 [%0], %1;\n" ::"l"(flag), "l"(value) : "memory");
}

/// Loads a flag, and sees what those saw or wrote that released its value.
FOVEAL_DEVICE std::uint64_t load_acquire(const std::uint64_t* flag) {
  stall();
  std::uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];\n" : "=l"(value) : "l"(flag) : "memory");
  return value;
}

}  // namespace foveal::cuda::ptx
