// Matrix fragments of a warp into shared memory (sm_90 and newer). Every lane of the warp must take
// part; matrix.cuh says how an 8x8 matrix of 16-bit elements lies in the lanes.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"

namespace foveal::cuda::ptx {

/// Four 8x8 matrices, each transposed: lanes 8i to 8i + 7 give the addresses of 16 bytes for matrix
/// i's columns.
FOVEAL_DEVICE void stmatrix_x4_trans(std::uint32_t address, const std::uint32_t (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(address),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}

/// The same, not transposed: lanes 8i to 8i + 7 give the addresses of matrix i's rows.
FOVEAL_DEVICE void stmatrix_x4(std::uint32_t address, const std::uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace foveal::cuda::ptx
