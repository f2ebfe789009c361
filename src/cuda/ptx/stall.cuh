// Stalls where warps or blocks hand something over, in a build with -DFOVEAL_STALLS=ON; nothing in
// any other. On an undisturbed GPU warps are so much in step that code may count on one being
// quicker than another and pass every test.
#pragma once

#include "core/host_device.hpp"

namespace foveal::cuda::ptx {

#if defined(FOVEAL_STALLS)

/// One call in sixteen sleeps, up to 16 us. Lanes that come together stay together: they read one
/// time.
FOVEAL_DEVICE void stall() {
  unsigned time;
  unsigned multiprocessor;
  asm volatile("mov.u32 %0, %%globaltimer_lo;\n" : "=r"(time));
  asm volatile("mov.u32 %0, %%smid;\n" : "=r"(multiprocessor));
  unsigned random = ((time >> 9) * 97u + multiprocessor * 131u + threadIdx.x / 32) * 0x9E3779B1u;
  random ^= random >> 15;
  random *= 0x85EBCA77u;
  random ^= random >> 13;
  if (random % 16 == 0) __nanosleep(random >> 8 & 0x3fff);
}

#else

FOVEAL_DEVICE void stall() {}

#endif

}  // namespace foveal::cuda::ptx
