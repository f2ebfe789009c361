// fp16 and bf16 between memory and tiles. Values round to nearest even; NaN stays NaN, quiet.

#if defined(FOVEAL_CPU_SIMD_CONVERT_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEAL_CPU_SIMD_CONVERT_INL_HPP
#undef FOVEAL_CPU_SIMD_CONVERT_INL_HPP
#else
#define FOVEAL_CPU_SIMD_CONVERT_INL_HPP
#endif

#include <cstring>

#include "core/half.hpp"
#include "cpu/simd/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace foveal::cpu::simd::HWY_NAMESPACE {
namespace {

/// As many 16-bit elements as there are floats in a vector.
using WordTag = hn::Rebind<std::uint16_t, FloatTag>;
using Words = hn::Vec<WordTag>;
using UintTag = hn::RebindToUnsigned<FloatTag>;

/// By bytes: memory may be odd.
HWY_INLINE Words load_words(const std::byte* from) {
  const hn::Repartition<std::uint8_t, WordTag> bytes;
  return hn::BitCast(WordTag(), hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(from)));
}

HWY_INLINE void store_words(Words words, std::byte* to) {
  const hn::Repartition<std::uint8_t, WordTag> bytes;
  hn::StoreU(hn::BitCast(bytes, words), bytes, reinterpret_cast<std::uint8_t*>(to));
}

/// The lower half of each 32-bit lane; the upper halves are 0.
HWY_INLINE Words narrow(hn::Vec<UintTag> lanes) {
  return hn::DemoteTo(WordTag(), hn::BitCast(IntTag(), lanes));
}

HWY_INLINE Floats widen(BFloat16 /*type*/, Words words) {
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(UintTag(), words)));
}

HWY_INLINE Words round(BFloat16 /*type*/, Floats value) {
  const UintTag du;
  const auto bits = hn::BitCast(du, value);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff))));
  const auto quiet = hn::Or(upper, hn::Set(du, 0x40));
  const auto is_number = hn::RebindMask(du, hn::Eq(value, value));
  return narrow(hn::IfThenElse(is_number, rounded, quiet));
}

#if HWY_TARGET == HWY_SSE4
/// Without an instruction for it: exponent and mantissa moved up, times 2^112; where the exponent
/// was all ones it becomes all ones again.
HWY_INLINE Floats widen(Half /*type*/, Words words) {
  const UintTag du;
  const auto bits = hn::PromoteTo(du, words);
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7fff)));
  const auto scaled = hn::Mul(hn::BitCast(FloatTag(), magnitude), broadcast(0x1p112f));
  const auto finite = hn::Lt(hn::BitCast(IntTag(), magnitude), hn::Set(IntTag(), 0x7c00 << 13));
  const auto exponent = hn::IfThenZeroElse(hn::RebindMask(du, finite), hn::Set(du, 0x7f800000));
  return hn::BitCast(FloatTag(), hn::Or(sign, hn::Or(hn::BitCast(du, scaled), exponent)));
}
#else
HWY_INLINE Floats widen(Half /*type*/, Words words) {
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  return hn::PromoteTo(FloatTag(), hn::BitCast(half, words));
}

HWY_INLINE Words round(Half /*type*/, Floats value) {
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  return hn::BitCast(WordTag(), hn::DemoteTo(half, value));
}
#endif

template <class T>
HWY_INLINE void load_elements(const std::byte* from, std::int64_t count, float* to) {
  std::int64_t j = 0;
  for (; j + kVector <= count; j += kVector) store(widen(T{}, load_words(from + j * 2)), to + j);
  for (; j < count; ++j) {
    T element;
    std::memcpy(&element, from + j * 2, sizeof element);
    to[j] = to_float(element);
  }
}

template <class T>
HWY_INLINE void store_elements(const float* from, std::int64_t begin, std::int64_t count,
                               std::byte* to) {
  for (std::int64_t j = begin; j < count; ++j) {
    const T element = from_float<T>(from[j]);
    std::memcpy(to + j * 2, &element, sizeof element);
  }
}

template <class T>
HWY_INLINE void store_vectors(const float* from, std::int64_t count, std::byte* to) {
  std::int64_t j = 0;
  for (; j + kVector <= count; j += kVector) store_words(round(T{}, load(from + j)), to + j * 2);
  store_elements<T>(from, j, count, to);
}

void load_fp16(const std::byte* from, std::int64_t count, float* to) {
  load_elements<Half>(from, count, to);
}

void load_bf16(const std::byte* from, std::int64_t count, float* to) {
  load_elements<BFloat16>(from, count, to);
}

void store_fp16(const float* from, std::int64_t count, std::byte* to) {
#if HWY_TARGET == HWY_SSE4
  store_elements<Half>(from, 0, count, to);
#else
  store_vectors<Half>(from, count, to);
#endif
}

void store_bf16(const float* from, std::int64_t count, std::byte* to) {
  store_vectors<BFloat16>(from, count, to);
}

}  // namespace
}  // namespace foveal::cpu::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
