// Matrix fragments of a warp: loads from shared memory, transposition, products. Every lane of the
// warp must take part. Lane l is (g, t) = (l / 4, l % 4); an 8x8 matrix of 16-bit elements lies
// with row g, columns 2t and 2t + 1 in lane l.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/host_device.hpp"

namespace foveal::cuda::ptx {

/// Four 8x8 matrices; lanes 8i to 8i + 7 give the addresses of matrix i's rows, 16 bytes each.
FOVEAL_DEVICE void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// The same with each matrix transposed.
FOVEAL_DEVICE void ldmatrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// Two 8x8 matrices, rows addressed by lanes 0 to 15.
FOVEAL_DEVICE void ldmatrix_x2(std::uint32_t (&r)[2], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];\n"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

FOVEAL_DEVICE void ldmatrix_x2_trans(std::uint32_t (&r)[2], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];\n"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

/// An 8x8 matrix, transposed within the warp's registers.
FOVEAL_DEVICE std::uint32_t movmatrix_trans(std::uint32_t matrix) {
  std::uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(r) : "r"(matrix));
  return r;
}

/// c[16, 8] += a[16, 16] . b[16, 8], accumulated in fp32. c: rows g and g + 8, columns 2t and
/// 2t + 1. a: 8x8 matrices in the order (top left, bottom left, top right, bottom right). b: the
/// transposes of its upper and lower half as 8x8 matrices, so that row g is column g of b.
template <class Element>
FOVEAL_DEVICE void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                std::uint32_t b1);

template <>
FOVEAL_DEVICE void mma_m16n8k16<__half>(float (&c)[4], const std::uint32_t (&a)[4],
                                        std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
FOVEAL_DEVICE void mma_m16n8k16<__nv_bfloat16>(float (&c)[4], const std::uint32_t (&a)[4],
                                               std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// c[16, 8] += a[16, 8] . b[8, 8] with elements rounded to TF32 (10 bits of mantissa). a: (row g,
/// column t), (g + 8, t), (g, t + 4), (g + 8, t + 4). b: (row t, column g), (t + 4, g).
FOVEAL_DEVICE void mma_m16n8k8_tf32(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// A float rounded to the nearest TF32 value, as bits.
FOVEAL_DEVICE std::uint32_t round_to_tf32(float value) {
  std::uint32_t r;
  asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(r) : "f"(value));
  return r;
}

/// Two floats rounded to 16-bit elements, `low` in the lower half.
template <class Element>
FOVEAL_DEVICE std::uint32_t pack_pair(float low, float high);

template <>
FOVEAL_DEVICE std::uint32_t pack_pair<__half>(float low, float high) {
  std::uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

template <>
FOVEAL_DEVICE std::uint32_t pack_pair<__nv_bfloat16>(float low, float high) {
  std::uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

}  // namespace foveal::cuda::ptx
