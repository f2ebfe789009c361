// Products of a warpgroup whose operands both lie in shared memory (sm_90a), for the backward. How
// they are grouped and waited for, and where elements of d lie: wgmma.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/host_device.hpp"

namespace foveal::cuda::ptx {

/// How the 16 factors of an element of d lie in b: adjacent (the keys of a score), or apart, with
/// the columns of d adjacent.
enum class FactorsOfB : int { kAdjacent = 0, kApart = 1 };

/// d[64, kN] = a[64, 16] . b[16, kN] (start) or += (add), of 16-bit elements in fp32; the factors
/// of a are adjacent. start does not read d: what d held needs no register until then.
template <class Element, int kN, FactorsOfB kFactors>
struct WgmmaShared;

// Shapes differ in their number of registers alone; the macros list them and are gone at the end.
#define FOVEAL_NAMES_48            \
  "%0,%1,%2,%3,%4,%5,%6,%7,"       \
  "%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23"
#define FOVEAL_NAMES_64              \
  "%0,%1,%2,%3,%4,%5,%6,%7,"         \
  "%8,%9,%10,%11,%12,%13,%14,%15,"   \
  "%16,%17,%18,%19,%20,%21,%22,%23," \
  "%24,%25,%26,%27,%28,%29,%30,%31"
#define FOVEAL_NAMES_128             \
  "%0,%1,%2,%3,%4,%5,%6,%7,"         \
  "%8,%9,%10,%11,%12,%13,%14,%15,"   \
  "%16,%17,%18,%19,%20,%21,%22,%23," \
  "%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39," \
  "%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55," \
  "%56,%57,%58,%59,%60,%61,%62,%63"
#define FOVEAL_D(c, i)                                                             \
  c(d[8 * i]), c(d[8 * i + 1]), c(d[8 * i + 2]), c(d[8 * i + 3]), c(d[8 * i + 4]), \
      c(d[8 * i + 5]), c(d[8 * i + 6]), c(d[8 * i + 7])
#define FOVEAL_PLACES_48(c) FOVEAL_D(c, 0), FOVEAL_D(c, 1), FOVEAL_D(c, 2)
#define FOVEAL_PLACES_64(c) FOVEAL_D(c, 0), FOVEAL_D(c, 1), FOVEAL_D(c, 2), FOVEAL_D(c, 3)
#define FOVEAL_PLACES_128(c) \
  FOVEAL_PLACES_64(c), FOVEAL_D(c, 4), FOVEAL_D(c, 5), FOVEAL_D(c, 6), FOVEAL_D(c, 7)

// a, b, t: the numbers of the operands after the accumulators.
#define FOVEAL_WGMMA_SHARED(kN, Type, text, a, b, t)                                               \
  template <FactorsOfB kFactors>                                                                   \
  struct WgmmaShared<Type, kN, kFactors> {                                                         \
    FOVEAL_DEVICE static void start(float (&d)[kN / 2], std::uint64_t left, std::uint64_t right) { \
      asm volatile(                                                                                \
          "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"                                               \
          "wgmma.mma_async.sync.aligned.m64n" #kN "k16.f32." text "." text " {" FOVEAL_NAMES_##kN  \
          "}, %" #a ", %" #b ", p, 1, 1, 0, %" #t ";\n}\n"                                         \
          : FOVEAL_PLACES_##kN("=f")                                                               \
          : "l"(left), "l"(right), "n"(static_cast<int>(kFactors)));                               \
    }                                                                                              \
    FOVEAL_DEVICE static void add(float (&d)[kN / 2], std::uint64_t left, std::uint64_t right) {   \
      asm volatile(                                                                                \
          "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                               \
          "wgmma.mma_async.sync.aligned.m64n" #kN "k16.f32." text "." text " {" FOVEAL_NAMES_##kN  \
          "}, %" #a ", %" #b ", p, 1, 1, 0, %" #t ";\n}\n"                                         \
          : FOVEAL_PLACES_##kN("+f")                                                               \
          : "l"(left), "l"(right), "n"(static_cast<int>(kFactors)));                               \
    }                                                                                              \
  };
FOVEAL_WGMMA_SHARED(48, __half, "f16", 24, 25, 26)
FOVEAL_WGMMA_SHARED(48, __nv_bfloat16, "bf16", 24, 25, 26)
FOVEAL_WGMMA_SHARED(64, __half, "f16", 32, 33, 34)
FOVEAL_WGMMA_SHARED(64, __nv_bfloat16, "bf16", 32, 33, 34)
FOVEAL_WGMMA_SHARED(128, __half, "f16", 64, 65, 66)
FOVEAL_WGMMA_SHARED(128, __nv_bfloat16, "bf16", 64, 65, 66)

#undef FOVEAL_NAMES_48
#undef FOVEAL_NAMES_64
#undef FOVEAL_NAMES_128
#undef FOVEAL_D
#undef FOVEAL_PLACES_48
#undef FOVEAL_PLACES_64
#undef FOVEAL_PLACES_128
#undef FOVEAL_WGMMA_SHARED

}  // namespace foveal::cuda::ptx
