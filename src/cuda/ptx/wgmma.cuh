// Products of a warpgroup with operands in shared memory (sm_90a): asynchronous, in groups. All
// four warps call each function alike. Warp w of the warpgroup has rows 16 w to 16 w + 15 of the
// result: with (g, t) = (lane / 4, lane % 4), d[4 j + e] is row g (e < 2) or g + 8, column 8 j + 2
// t + e % 2.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/host_device.hpp"

namespace foveal::cuda::ptx {

/// Comes before the first product of a group: registers and shared memory that products read were
/// written before.
FOVEAL_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }

/// Closes the group of products since the last commit.
FOVEAL_DEVICE void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

/// Waits until at most the kPending youngest groups are under way.
template <int kPending>
FOVEAL_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving reads and writes of accumulators past this point. No instruction.
template <int kCount>
FOVEAL_DEVICE void hold_registers(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// d[64, kN] (+)= a[64, 16] . b[16, kN] of 16-bit elements, accumulated in fp32; with `add` 0 what
/// d held is dropped. multiply_shared: a and b from shared memory, both with the 16 factors of an
/// element of d adjacent (q and k). multiply_registers: a in registers, as 8x8 matrices in the
/// order (top left, bottom left, top right, bottom right); b with the kN columns adjacent (v).
/// multiply_by_rows: a in registers likewise; b with the 16 factors adjacent (k).
template <class Element, int kN>
struct Wgmma;

// Shapes differ in their number of registers alone. The macros list these, eight by eight, and are
// gone at the end.
#define FOVEAL_R0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define FOVEAL_R1 "%8,%9,%10,%11,%12,%13,%14,%15"
#define FOVEAL_R2 "%16,%17,%18,%19,%20,%21,%22,%23"
#define FOVEAL_R3 "%24,%25,%26,%27,%28,%29,%30,%31"
#define FOVEAL_R4 "%32,%33,%34,%35,%36,%37,%38,%39"
#define FOVEAL_R5 "%40,%41,%42,%43,%44,%45,%46,%47"
#define FOVEAL_R6 "%48,%49,%50,%51,%52,%53,%54,%55"
#define FOVEAL_R7 "%56,%57,%58,%59,%60,%61,%62,%63"
#define FOVEAL_R8 "%64,%65,%66,%67,%68,%69,%70,%71"
#define FOVEAL_R9 "%72,%73,%74,%75,%76,%77,%78,%79"
#define FOVEAL_R10 "%80,%81,%82,%83,%84,%85,%86,%87"
#define FOVEAL_R11 "%88,%89,%90,%91,%92,%93,%94,%95"
#define FOVEAL_R12 "%96,%97,%98,%99,%100,%101,%102,%103"
#define FOVEAL_R13 "%104,%105,%106,%107,%108,%109,%110,%111"
#define FOVEAL_R14 "%112,%113,%114,%115,%116,%117,%118,%119"
#define FOVEAL_R15 "%120,%121,%122,%123,%124,%125,%126,%127"
#define FOVEAL_D(i)                                                                               \
  "+f"(d[8 * i]), "+f"(d[8 * i + 1]), "+f"(d[8 * i + 2]), "+f"(d[8 * i + 3]), "+f"(d[8 * i + 4]), \
      "+f"(d[8 * i + 5]), "+f"(d[8 * i + 6]), "+f"(d[8 * i + 7])
#define FOVEAL_NAMES_64 FOVEAL_R0 "," FOVEAL_R1 "," FOVEAL_R2 "," FOVEAL_R3
#define FOVEAL_PLACES_64 FOVEAL_D(0), FOVEAL_D(1), FOVEAL_D(2), FOVEAL_D(3)
#define FOVEAL_NAMES_80 FOVEAL_NAMES_64 "," FOVEAL_R4
#define FOVEAL_PLACES_80 FOVEAL_PLACES_64, FOVEAL_D(4)
#define FOVEAL_NAMES_96 FOVEAL_NAMES_80 "," FOVEAL_R5
#define FOVEAL_PLACES_96 FOVEAL_PLACES_80, FOVEAL_D(5)
#define FOVEAL_NAMES_112 FOVEAL_NAMES_96 "," FOVEAL_R6
#define FOVEAL_PLACES_112 FOVEAL_PLACES_96, FOVEAL_D(6)
#define FOVEAL_NAMES_128 FOVEAL_NAMES_112 "," FOVEAL_R7
#define FOVEAL_PLACES_128 FOVEAL_PLACES_112, FOVEAL_D(7)
#define FOVEAL_NAMES_160 FOVEAL_NAMES_128 "," FOVEAL_R8 "," FOVEAL_R9
#define FOVEAL_PLACES_160 FOVEAL_PLACES_128, FOVEAL_D(8), FOVEAL_D(9)
#define FOVEAL_NAMES_192 FOVEAL_NAMES_160 "," FOVEAL_R10 "," FOVEAL_R11
#define FOVEAL_PLACES_192 FOVEAL_PLACES_160, FOVEAL_D(10), FOVEAL_D(11)
#define FOVEAL_NAMES_224 FOVEAL_NAMES_192 "," FOVEAL_R12 "," FOVEAL_R13
#define FOVEAL_PLACES_224 FOVEAL_PLACES_192, FOVEAL_D(12), FOVEAL_D(13)
#define FOVEAL_NAMES_256 FOVEAL_NAMES_224 "," FOVEAL_R14 "," FOVEAL_R15
#define FOVEAL_PLACES_256 FOVEAL_PLACES_224, FOVEAL_D(14), FOVEAL_D(15)

// r0 to r5: the numbers of the operands after the accumulators.
#define FOVEAL_WGMMA(kN, Type, text, r0, r1, r2, r3, r4, r5)                                      \
  template <>                                                                                     \
  struct Wgmma<Type, kN> {                                                                        \
    FOVEAL_DEVICE static void multiply_shared(float (&d)[kN / 2], std::uint64_t a,                \
                                              std::uint64_t b, int add) {                         \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r2                                       \
                   ", 0;\n"                                                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #kN "k16.f32." text "." text               \
                   " {" FOVEAL_NAMES_##kN "}, %" #r0 ", %" #r1 ", p, 1, 1, 0, 0;\n}\n"            \
                   : FOVEAL_PLACES_##kN                                                           \
                   : "l"(a), "l"(b), "r"(add));                                                   \
    }                                                                                             \
    FOVEAL_DEVICE static void multiply_registers(float (&d)[kN / 2], const std::uint32_t (&a)[4], \
                                                 std::uint64_t b, int add) {                      \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r5                                       \
                   ", 0;\n"                                                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #kN "k16.f32." text "." text               \
                   " {" FOVEAL_NAMES_##kN "}, {%" #r0 ", %" #r1 ", %" #r2 ", %" #r3 "}, %" #r4    \
                                          ", p, 1, 1, 1;\n}\n"                                    \
                   : FOVEAL_PLACES_##kN                                                           \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));               \
    }                                                                                             \
    FOVEAL_DEVICE static void multiply_by_rows(float (&d)[kN / 2], const std::uint32_t (&a)[4],   \
                                               std::uint64_t b, int add) {                        \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r5                                       \
                   ", 0;\n"                                                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #kN "k16.f32." text "." text               \
                   " {" FOVEAL_NAMES_##kN "}, {%" #r0 ", %" #r1 ", %" #r2 ", %" #r3 "}, %" #r4    \
                                          ", p, 1, 1, 0;\n}\n"                                    \
                   : FOVEAL_PLACES_##kN                                                           \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));               \
    }                                                                                             \
  };
FOVEAL_WGMMA(64, __half, "f16", 32, 33, 34, 35, 36, 37)
FOVEAL_WGMMA(64, __nv_bfloat16, "bf16", 32, 33, 34, 35, 36, 37)
FOVEAL_WGMMA(80, __half, "f16", 40, 41, 42, 43, 44, 45)
FOVEAL_WGMMA(80, __nv_bfloat16, "bf16", 40, 41, 42, 43, 44, 45)
FOVEAL_WGMMA(96, __half, "f16", 48, 49, 50, 51, 52, 53)
FOVEAL_WGMMA(96, __nv_bfloat16, "bf16", 48, 49, 50, 51, 52, 53)
FOVEAL_WGMMA(112, __half, "f16", 56, 57, 58, 59, 60, 61)
FOVEAL_WGMMA(112, __nv_bfloat16, "bf16", 56, 57, 58, 59, 60, 61)
FOVEAL_WGMMA(128, __half, "f16", 64, 65, 66, 67, 68, 69)
FOVEAL_WGMMA(128, __nv_bfloat16, "bf16", 64, 65, 66, 67, 68, 69)
FOVEAL_WGMMA(160, __half, "f16", 80, 81, 82, 83, 84, 85)
FOVEAL_WGMMA(160, __nv_bfloat16, "bf16", 80, 81, 82, 83, 84, 85)
FOVEAL_WGMMA(192, __half, "f16", 96, 97, 98, 99, 100, 101)
FOVEAL_WGMMA(192, __nv_bfloat16, "bf16", 96, 97, 98, 99, 100, 101)
FOVEAL_WGMMA(224, __half, "f16", 112, 113, 114, 115, 116, 117)
FOVEAL_WGMMA(224, __nv_bfloat16, "bf16", 112, 113, 114, 115, 116, 117)
FOVEAL_WGMMA(256, __half, "f16", 128, 129, 130, 131, 132, 133)
FOVEAL_WGMMA(256, __nv_bfloat16, "bf16", 128, 129, 130, 131, 132, 133)

#undef FOVEAL_R0
#undef FOVEAL_R1
#undef FOVEAL_R2
#undef FOVEAL_R3
#undef FOVEAL_R4
#undef FOVEAL_R5
#undef FOVEAL_R6
#undef FOVEAL_R7
#undef FOVEAL_R8
#undef FOVEAL_R9
#undef FOVEAL_R10
#undef FOVEAL_R11
#undef FOVEAL_R12
#undef FOVEAL_R13
#undef FOVEAL_R14
#undef FOVEAL_R15
#undef FOVEAL_D
#undef FOVEAL_NAMES_64
#undef FOVEAL_PLACES_64
#undef FOVEAL_NAMES_80
#undef FOVEAL_PLACES_80
#undef FOVEAL_NAMES_96
#undef FOVEAL_PLACES_96
#undef FOVEAL_NAMES_112
#undef FOVEAL_PLACES_112
#undef FOVEAL_NAMES_128
#undef FOVEAL_PLACES_128
#undef FOVEAL_NAMES_160
#undef FOVEAL_NAMES_192
#undef FOVEAL_NAMES_224
#undef FOVEAL_PLACES_160
#undef FOVEAL_PLACES_192
#undef FOVEAL_PLACES_224
#undef FOVEAL_NAMES_256
#undef FOVEAL_PLACES_256
#undef FOVEAL_WGMMA

}  // namespace foveal::cuda::ptx
