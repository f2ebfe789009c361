#include "cpu/amx_bf16/table.hpp"
#if FOVEAL_WITH_AMX_BF16

#include "cpu/amx_bf16/functions.hpp"
#include "cpu/avx512_bf16/lanes.hpp"

FOVEAL_BEGIN_AVX512_BF16
namespace foveal::cpu::amx_bf16 {
namespace {

constexpr int kSize = 16;

/// Rows 4i .. 4i + 3 of each 4 x 4 block become its columns.
HWY_INLINE void transpose_within_lanes(__m512i (&row)[kSize]) {
#pragma GCC unroll 4
  for (int i = 0; i < kSize; i += 4) {
    const __m512i low01 = _mm512_unpacklo_epi32(row[i], row[i + 1]);
    const __m512i high01 = _mm512_unpackhi_epi32(row[i], row[i + 1]);
    const __m512i low23 = _mm512_unpacklo_epi32(row[i + 2], row[i + 3]);
    const __m512i high23 = _mm512_unpackhi_epi32(row[i + 2], row[i + 3]);
    row[i] = _mm512_unpacklo_epi64(low01, low23);
    row[i + 1] = _mm512_unpackhi_epi64(low01, low23);
    row[i + 2] = _mm512_unpacklo_epi64(high01, high23);
    row[i + 3] = _mm512_unpackhi_epi64(high01, high23);
  }
}

}  // namespace

void transpose_slots(const void* from, std::int64_t ld, std::int64_t columns, void* to) {
  __m512i row[kSize];
#pragma GCC unroll 16
  for (int i = 0; i < kSize; ++i) {
    row[i] = i < columns ? avx512_bf16::load_slots(from, i * ld) : _mm512_setzero_si512();
  }
  transpose_within_lanes(row);
  // Now row[4i + c] has column 4L + c of rows 4i .. 4i + 3 in its 128-bit lane L.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(row[c], row[4 + c], 0x44);
    const __m512i high01 = _mm512_shuffle_i32x4(row[c], row[4 + c], 0xee);
    const __m512i low23 = _mm512_shuffle_i32x4(row[8 + c], row[12 + c], 0x44);
    const __m512i high23 = _mm512_shuffle_i32x4(row[8 + c], row[12 + c], 0xee);
    const auto store = [to](int index, __m512i value) {
      _mm512_storeu_si512(slot_at(to, index * kSize), value);
    };
    store(c, _mm512_shuffle_i32x4(low01, low23, 0x88));
    store(4 + c, _mm512_shuffle_i32x4(low01, low23, 0xdd));
    store(8 + c, _mm512_shuffle_i32x4(high01, high23, 0x88));
    store(12 + c, _mm512_shuffle_i32x4(high01, high23, 0xdd));
  }
}

}  // namespace foveal::cpu::amx_bf16
FOVEAL_END_AVX512_BF16

#endif  // x86-64 Linux
