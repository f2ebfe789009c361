// Values that the compiler knows nothing of.
#pragma once

#include "core/host_device.hpp"

namespace foveal::cuda::ptx {

/// The same value, taken for a new one: what is computed from it is computed where it is used, not
/// kept in a register from before a loop. No instruction.
FOVEAL_DEVICE int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// Keeps the compiler from holding values of memory in registers past this point. No instruction.
FOVEAL_DEVICE void hold_memory() { asm volatile("" ::: "memory"); }

}  // namespace foveal::cuda::ptx
