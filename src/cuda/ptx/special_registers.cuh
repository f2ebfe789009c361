// Registers that tell a thread where it is.
#pragma once

#include "core/host_device.hpp"

namespace foveal::cuda::ptx {

/// threadIdx.x, read anew at each call: what is computed from it is computed where it is used, and
/// occupies no register in between. For code beside an inner loop that needs them all.
FOVEAL_DEVICE unsigned thread_index_anew() {
  unsigned index;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(index));
  return index;
}

}  // namespace foveal::cuda::ptx
