// A product of floats as three TF32 products, of the rounded values and what rounding left: big.big
// + big.small + small.big keeps 21 bits of each factor.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/ptx/matrix.cuh"

namespace foveal::cuda {

/// A float as two TF32 values that add up to 21 of its 24 bits. An infinite value has no rest to
/// speak of (inf - inf): it makes NaN.
struct Tf32Pair {
  std::uint32_t big;
  std::uint32_t small;
};
FOVEAL_DEVICE Tf32Pair split_tf32(float value) {
  const std::uint32_t big = ptx::round_to_tf32(value);
  return {big, ptx::round_to_tf32(value - __uint_as_float(big))};
}

/// c += a . b over 8 of depth, all of it on the tensor cores, which truncate as they accumulate:
/// for sums of a hundred numbers or so.
FOVEAL_DEVICE void accumulate_tf32_product(float (&c)[4], const Tf32Pair (&a)[4], Tf32Pair b0,
                                           Tf32Pair b1) {
  const std::uint32_t big[4] = {a[0].big, a[1].big, a[2].big, a[3].big};
  const std::uint32_t small[4] = {a[0].small, a[1].small, a[2].small, a[3].small};
  ptx::mma_m16n8k8_tf32(c, small, b0.big, b1.big);
  ptx::mma_m16n8k8_tf32(c, big, b0.small, b1.small);
  ptx::mma_m16n8k8_tf32(c, big, b0.big, b1.big);
}

/// The same with the sum of the 8 added in fp32, for sums of any length.
FOVEAL_DEVICE void add_tf32_product(float (&c)[4], const Tf32Pair (&a)[4], Tf32Pair b0,
                                    Tf32Pair b1) {
  float sum[4] = {};
  accumulate_tf32_product(sum, a, b0, b1);
#pragma unroll
  for (int e = 0; e < 4; ++e) c[e] += sum[e];
}

}  // namespace foveal::cuda
