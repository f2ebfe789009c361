#include "cpu/simd/tables.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

// Vectors of a size known to the compiler alone, since they are kept in arrays; and of two x86 sets
// that differ by a shuffle, one.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/tables.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

// Where no vectors are to be had, the portable table is the better one.
#if HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR

#include "cpu/simd/convert-inl.hpp"
#include "cpu/simd/memory_rows-inl.hpp"
#include "cpu/simd/products-inl.hpp"
#include "cpu/simd/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace foveal::cpu::simd::HWY_NAMESPACE {

extern const TileMath kTable;
const TileMath kTable = {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
    .name = "avx512",
#elif HWY_TARGET == HWY_AVX2
    .name = "avx2",
#elif HWY_TARGET == HWY_SSE4
    .name = "sse4",
#elif HWY_TARGET == HWY_NEON
    .name = "neon",
#else
#error "name the table of this instruction set"
#endif
    .slot_terms = 1,
    .depth_step = 1,
    .pack = pack,
    .pair_rows = nullptr,
    .narrow = nullptr,
    .narrow_pairs = nullptr,
    .multiply_packed = multiply_packed,
    .accumulate = accumulate,
    .accumulate_transposed = accumulate_transposed,
    .multiply_memory = multiply_memory,
    .accumulate_memory = accumulate_memory,
    .row_max = row_max,
    .exp_sum = exp_sum,
    .scale = scale,
    .cap = cap,
    .score_gradients = score_gradients,
    .dot = dot,
    .load_fp16 = load_fp16,
    .load_bf16 = load_bf16,
    .store_fp16 = store_fp16,
    .store_bf16 = store_bf16,
};

}  // namespace foveal::cpu::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

#if HWY_ONCE

namespace foveal::cpu::simd {
namespace {

struct Target {
  std::int64_t bit;
  const TileMath* table;
};

/// What this compiler built, the fastest first.
constexpr Target kTargets[] = {
#if HWY_TARGETS & HWY_AVX3_DL
    {HWY_AVX3_DL, &N_AVX3_DL::kTable},
#endif
#if HWY_TARGETS & HWY_AVX3
    {HWY_AVX3, &N_AVX3::kTable},
#endif
#if HWY_TARGETS & HWY_AVX2
    {HWY_AVX2, &N_AVX2::kTable},
#endif
#if HWY_TARGETS & HWY_SSE4
    {HWY_SSE4, &N_SSE4::kTable},
#endif
#if HWY_TARGETS & HWY_NEON
    {HWY_NEON, &N_NEON::kTable},
#endif
    {0, nullptr},
};

struct Tables {
  std::array<const TileMath*, std::size(kTargets)> list{};
  std::size_t count = 0;

  Tables() {
    for (const Target& target : kTargets) {
      if ((hwy::SupportedTargets() & target.bit) != 0) list[count++] = target.table;
    }
  }
};

}  // namespace

std::span<const TileMath* const> tables() {
  static const Tables available;
  return {available.list.data(), available.count};
}

}  // namespace foveal::cpu::simd

#endif  // HWY_ONCE
