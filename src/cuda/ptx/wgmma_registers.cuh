// Products of a warpgroup whose left operand is in registers, with the factors of both adjacent
// (sm_90a). How they are grouped and waited for, and where elements of d lie: wgmma.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/host_device.hpp"

namespace foveal::cuda::ptx {

/// d[64, 64] = a[64, 16] . b[16, 64] (start) or += (add), of 16-bit elements in fp32. a as 8x8
/// matrices in the order (top left, bottom left, top right, bottom right).
template <class Element>
struct WgmmaRegisters;

// Types and the first product differ in a word; the macros are gone at the end.
#define FOVEAL_D(c, i)                                                             \
  c(d[8 * i]), c(d[8 * i + 1]), c(d[8 * i + 2]), c(d[8 * i + 3]), c(d[8 * i + 4]), \
      c(d[8 * i + 5]), c(d[8 * i + 6]), c(d[8 * i + 7])
#define FOVEAL_PRODUCT(text, add, c)                                                \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add                              \
               ", 0;\n"                                                             \
               "wgmma.mma_async.sync.aligned.m64n64k16.f32." text "." text          \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"           \
               "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, " \
               "{%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}\n"                           \
               : FOVEAL_D(c, 0), FOVEAL_D(c, 1), FOVEAL_D(c, 2), FOVEAL_D(c, 3)     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define FOVEAL_WGMMA_REGISTERS(Type, text)                                                        \
  template <>                                                                                     \
  struct WgmmaRegisters<Type> {                                                                   \
    FOVEAL_DEVICE static void start(float (&d)[32], const std::uint32_t (&a)[4],                  \
                                    std::uint64_t b) {                                            \
      FOVEAL_PRODUCT(text, "0", "=f");                                                            \
    }                                                                                             \
    FOVEAL_DEVICE static void add(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b) { \
      FOVEAL_PRODUCT(text, "1", "+f");                                                            \
    }                                                                                             \
  };
FOVEAL_WGMMA_REGISTERS(__half, "f16")
FOVEAL_WGMMA_REGISTERS(__nv_bfloat16, "bf16")

#undef FOVEAL_D
#undef FOVEAL_PRODUCT
#undef FOVEAL_WGMMA_REGISTERS

}  // namespace foveal::cuda::ptx
