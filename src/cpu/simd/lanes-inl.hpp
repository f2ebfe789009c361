// The vectors of one instruction set; compiled once for each (see tables.cpp).

#if defined(FOVEAL_CPU_SIMD_LANES_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEAL_CPU_SIMD_LANES_INL_HPP
#undef FOVEAL_CPU_SIMD_LANES_INL_HPP
#else
#define FOVEAL_CPU_SIMD_LANES_INL_HPP
#endif

#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

#include "cpu/tile_math.hpp"

HWY_BEFORE_NAMESPACE();
namespace foveal::cpu::simd::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using IntTag = hn::RebindToSigned<FloatTag>;
using Floats = hn::Vec<FloatTag>;

/// Floats of a vector.
constexpr std::int64_t kVector = static_cast<std::int64_t>(hn::MaxLanes(FloatTag()));
static_assert(kLane % kVector == 0, "columns are padded to whole vectors");

/// Vectors of a cache line.
constexpr std::int64_t kLaneVectors = kLane / kVector;

HWY_INLINE Floats load(const float* from) { return hn::LoadU(FloatTag(), from); }
HWY_INLINE void store(Floats value, float* to) { hn::StoreU(value, FloatTag(), to); }
HWY_INLINE Floats broadcast(float value) { return hn::Set(FloatTag(), value); }
HWY_INLINE float horizontal_sum(Floats value) {
  return hn::GetLane(hn::SumOfLanes(FloatTag(), value));
}

}  // namespace foveal::cpu::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
