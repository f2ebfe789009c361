// Products of a warpgroup whose operands both lie in shared memory (sm_90a), the left one with its
// factors adjacent or apart, the right one with its columns adjacent: up to 256 columns at a time.
// How they are grouped and waited for, and where elements of d lie: wgmma.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/host_device.hpp"

namespace foveal::cuda::ptx {

/// How the 16 factors of an element of d lie in a: adjacent, or apart with the rows of d adjacent.
enum class FactorsOfA : int { kAdjacent = 0, kApart = 1 };

/// d[64, kN] = a[64, 16] . b[16, kN] (start) or += (add), of 16-bit elements in fp32. start does
/// not read d.
template <class Element, int kN, FactorsOfA kFactors>
struct WgmmaSharedWide;

// Shapes differ in their number of registers alone; the macros list them, 32 by 32, and are gone at
// the end.
#define FOVEAL_NAMES_64              \
  "%0,%1,%2,%3,%4,%5,%6,%7,"         \
  "%8,%9,%10,%11,%12,%13,%14,%15,"   \
  "%16,%17,%18,%19,%20,%21,%22,%23," \
  "%24,%25,%26,%27,%28,%29,%30,%31"
#define FOVEAL_NAMES_96              \
  FOVEAL_NAMES_64                    \
  ",%32,%33,%34,%35,%36,%37,%38,%39" \
  ",%40,%41,%42,%43,%44,%45,%46,%47"
#define FOVEAL_NAMES_128             \
  FOVEAL_NAMES_96                    \
  ",%48,%49,%50,%51,%52,%53,%54,%55" \
  ",%56,%57,%58,%59,%60,%61,%62,%63"
#define FOVEAL_NAMES_192             \
  FOVEAL_NAMES_128                   \
  ",%64,%65,%66,%67,%68,%69,%70,%71" \
  ",%72,%73,%74,%75,%76,%77,%78,%79" \
  ",%80,%81,%82,%83,%84,%85,%86,%87" \
  ",%88,%89,%90,%91,%92,%93,%94,%95"
#define FOVEAL_NAMES_256                     \
  FOVEAL_NAMES_192                           \
  ",%96,%97,%98,%99,%100,%101,%102,%103"     \
  ",%104,%105,%106,%107,%108,%109,%110,%111" \
  ",%112,%113,%114,%115,%116,%117,%118,%119" \
  ",%120,%121,%122,%123,%124,%125,%126,%127"
#define FOVEAL_D(c, i)                                                             \
  c(d[8 * i]), c(d[8 * i + 1]), c(d[8 * i + 2]), c(d[8 * i + 3]), c(d[8 * i + 4]), \
      c(d[8 * i + 5]), c(d[8 * i + 6]), c(d[8 * i + 7])
#define FOVEAL_PLACES_64(c) FOVEAL_D(c, 0), FOVEAL_D(c, 1), FOVEAL_D(c, 2), FOVEAL_D(c, 3)
#define FOVEAL_PLACES_96(c) FOVEAL_PLACES_64(c), FOVEAL_D(c, 4), FOVEAL_D(c, 5)
#define FOVEAL_PLACES_128(c) FOVEAL_PLACES_96(c), FOVEAL_D(c, 6), FOVEAL_D(c, 7)
#define FOVEAL_PLACES_192(c) \
  FOVEAL_PLACES_128(c), FOVEAL_D(c, 8), FOVEAL_D(c, 9), FOVEAL_D(c, 10), FOVEAL_D(c, 11)
#define FOVEAL_PLACES_256(c) \
  FOVEAL_PLACES_192(c), FOVEAL_D(c, 12), FOVEAL_D(c, 13), FOVEAL_D(c, 14), FOVEAL_D(c, 15)

// a, b, t: the numbers of the operands after the accumulators.
#define FOVEAL_WGMMA_WIDE(kN, Type, text, a, b, t)                                                 \
  template <FactorsOfA kFactors>                                                                   \
  struct WgmmaSharedWide<Type, kN, kFactors> {                                                     \
    FOVEAL_DEVICE static void start(float (&d)[kN / 2], std::uint64_t left, std::uint64_t right) { \
      asm volatile(                                                                                \
          "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"                                               \
          "wgmma.mma_async.sync.aligned.m64n" #kN "k16.f32." text "." text " {" FOVEAL_NAMES_##kN  \
          "}, %" #a ", %" #b ", p, 1, 1, %" #t ", 1;\n}\n"                                         \
          : FOVEAL_PLACES_##kN("=f")                                                               \
          : "l"(left), "l"(right), "n"(static_cast<int>(kFactors)));                               \
    }                                                                                              \
    FOVEAL_DEVICE static void add(float (&d)[kN / 2], std::uint64_t left, std::uint64_t right) {   \
      asm volatile(                                                                                \
          "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                               \
          "wgmma.mma_async.sync.aligned.m64n" #kN "k16.f32." text "." text " {" FOVEAL_NAMES_##kN  \
          "}, %" #a ", %" #b ", p, 1, 1, %" #t ", 1;\n}\n"                                         \
          : FOVEAL_PLACES_##kN("+f")                                                               \
          : "l"(left), "l"(right), "n"(static_cast<int>(kFactors)));                               \
    }                                                                                              \
  };
FOVEAL_WGMMA_WIDE(64, __half, "f16", 32, 33, 34)
FOVEAL_WGMMA_WIDE(64, __nv_bfloat16, "bf16", 32, 33, 34)
FOVEAL_WGMMA_WIDE(96, __half, "f16", 48, 49, 50)
FOVEAL_WGMMA_WIDE(96, __nv_bfloat16, "bf16", 48, 49, 50)
FOVEAL_WGMMA_WIDE(128, __half, "f16", 64, 65, 66)
FOVEAL_WGMMA_WIDE(128, __nv_bfloat16, "bf16", 64, 65, 66)
FOVEAL_WGMMA_WIDE(192, __half, "f16", 96, 97, 98)
FOVEAL_WGMMA_WIDE(192, __nv_bfloat16, "bf16", 96, 97, 98)
FOVEAL_WGMMA_WIDE(256, __half, "f16", 128, 129, 130)
FOVEAL_WGMMA_WIDE(256, __nv_bfloat16, "bf16", 128, 129, 130)

#undef FOVEAL_NAMES_64
#undef FOVEAL_NAMES_96
#undef FOVEAL_NAMES_128
#undef FOVEAL_NAMES_192
#undef FOVEAL_NAMES_256
#undef FOVEAL_D
#undef FOVEAL_PLACES_64
#undef FOVEAL_PLACES_96
#undef FOVEAL_PLACES_128
#undef FOVEAL_PLACES_192
#undef FOVEAL_PLACES_256
#undef FOVEAL_WGMMA_WIDE

}  // namespace foveal::cuda::ptx
