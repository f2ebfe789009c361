// Rows of bf16 become pairs of rows, and fp32 becomes bf16.
#include "cpu/avx512_bf16/table.hpp"
#if FOVEAL_WITH_AVX512_BF16

#include "cpu/avx512_bf16/functions.hpp"
#include "cpu/avx512_bf16/lanes.hpp"

FOVEAL_BEGIN_AVX512_BF16
namespace foveal::cpu::avx512_bf16 {
namespace {

/// Sixteen elements of each row, element by element: upper, lower, upper, ... of a slot's halves.
HWY_INLINE __m512i interleave(__m256i even, __m256i odd) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                         _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}

}  // namespace

void pair_rows(const void* rows, std::int64_t ld, std::int64_t n, std::int64_t count, void* pairs,
               std::int64_t ld_pairs) {
  for (std::int64_t row = 0; row < n; row += 2) {
    const auto* even = static_cast<const std::uint16_t*>(slot_at(rows, row * ld));
    const bool has_odd = row + 1 < n;
    const auto* odd = static_cast<const std::uint16_t*>(slot_at(even, has_odd ? ld : 0));
    auto* to = static_cast<std::uint32_t*>(slot_at(pairs, row / 2 * ld_pairs));
    for (std::int64_t j = 0; j < count; j += kLane) {
      const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even + j));
      const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd + j));
      _mm512_storeu_si512(to + j, interleave(low, has_odd ? high : _mm256_setzero_si256()));
    }
  }
}

void narrow(const float* from, std::int64_t count, void* to) {
  std::int64_t j = 0;
  for (; j + 2 * kVector <= count; j += 2 * kVector) {
    const __m512bh both =
        _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + j + kVector), _mm512_loadu_ps(from + j));
    _mm512_storeu_si512(slot_at(to, j / 2), (__m512i)both);
  }
  if (j < count) {
    const __m256bh one = _mm512_cvtneps_pbh(_mm512_loadu_ps(from + j));
    _mm256_storeu_si256(static_cast<__m256i*>(slot_at(to, j / 2)), (__m256i)one);
  }
}

void narrow_pairs(const float* rows, std::int64_t ld, std::int64_t n, std::int64_t count,
                  void* pairs, std::int64_t ld_pairs) {
  // Element i of the first sixteen beside element i of the second sixteen.
  const __m512i alternate =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (std::int64_t row = 0; row < n; row += 2) {
    const float* even = rows + row * ld;
    const bool has_odd = row + 1 < n;
    void* to = slot_at(pairs, row / 2 * ld_pairs);
    for (std::int64_t j = 0; j < count; j += kVector) {
      const Floats low = _mm512_loadu_ps(even + j);
      const Floats high = has_odd ? _mm512_loadu_ps(even + ld + j) : _mm512_setzero_ps();
      const __m512bh both = _mm512_cvtne2ps_pbh(high, low);
      _mm512_storeu_si512(slot_at(to, j), _mm512_permutexvar_epi16(alternate, (__m512i)both));
    }
  }
}

}  // namespace foveal::cpu::avx512_bf16
FOVEAL_END_AVX512_BF16

#endif  // x86-64
