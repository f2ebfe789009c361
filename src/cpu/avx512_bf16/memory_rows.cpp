// Products with rows of bf16 where they lie, read once for all rows of A as far as there are
// registers; no element is converted.
#include "cpu/avx512_bf16/table.hpp"
#if FOVEAL_WITH_AVX512_BF16

#include "cpu/avx512_bf16/functions.hpp"
#include "cpu/avx512_bf16/lanes.hpp"

FOVEAL_BEGIN_AVX512_BF16
namespace foveal::cpu::avx512_bf16 {
namespace {

/// Elements of a vector.
constexpr std::int64_t kElements = 2 * kVector;

/// A vector of elements from element `index` on; of the last half vector of a row the rest is 0.
HWY_INLINE __m512i load_elements(const std::byte* row, std::int64_t index, bool half) {
  const std::byte* from = row + index * 2;
  if (!half) return _mm512_loadu_si512(from);
  return _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

/// Asks the second-level cache for the row that is read after row j's tile. Rows of one head are
/// often a multiple of 4 KiB apart: in the first level they would drive each other out.
HWY_INLINE void prefetch_ahead(const MemoryRows& b, std::int64_t j) {
  constexpr std::int64_t kCacheLineBytes = 64;
  if (j >= b.num_ahead) return;
  for (std::int64_t byte = 0; byte < b.columns * 2; byte += kCacheLineBytes) {
    __builtin_prefetch(b.ahead[j] + byte, /*rw=*/0, /*locality=*/2);
  }
}

/// (x0 + x2, y0 + y2, x1 + x3, y1 + y3) of every block of four lanes.
HWY_INLINE Floats add_interleaved(Floats x, Floats y) {
  return _mm512_add_ps(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y));
}

/// Block i: its sums of the four vectors, in their order.
HWY_INLINE Floats add_blocks(const Floats* four) {
  const __m512d low = _mm512_castps_pd(add_interleaved(four[0], four[1]));
  const __m512d high = _mm512_castps_pd(add_interleaved(four[2], four[3]));
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
                       _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
}

/// Lane i: the sum of sums[i], over a tree of the same shape for every i.
HWY_INLINE Floats add_lanes(const Floats* sums) {
  const Floats x = add_blocks(sums);
  const Floats y = add_blocks(sums + 4);
  const Floats z = add_blocks(sums + 8);
  const Floats w = add_blocks(sums + 12);
  // Blocks (x0 + x2, x1 + x3, y0 + y2, y1 + y3), and z and w alike.
  constexpr int kLower = 0x44, kUpper = 0xee, kEven = 0x88, kOdd = 0xdd;
  const Floats xy =
      _mm512_add_ps(_mm512_shuffle_f32x4(x, y, kLower), _mm512_shuffle_f32x4(x, y, kUpper));
  const Floats zw =
      _mm512_add_ps(_mm512_shuffle_f32x4(z, w, kLower), _mm512_shuffle_f32x4(z, w, kUpper));
  return _mm512_add_ps(_mm512_shuffle_f32x4(xy, zw, kEven), _mm512_shuffle_f32x4(xy, zw, kOdd));
}

/// sum += products of one vector from element d on, row by row of B.
template <int Rows, int Keys>
HWY_INLINE void add_products(const RowProduct& product, const std::byte* const* keys,
                             std::int64_t d, bool half, Floats* sum) {
  Pairs left[Rows];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    left[r] = as_pairs(load_slots(product.a, r * product.lda + d / 2));
  }
#pragma GCC unroll 16
  for (int key = 0; key < Keys; ++key) {
    const Pairs right = as_pairs(load_elements(keys[key], d, half));
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      sum[r * Keys + key] = multiply_add(left[r], right, sum[r * Keys + key]);
    }
  }
}

/// Scores of Rows rows of A and the kVector / Rows keys from j on: as many dot products as a vector
/// has lanes, all under way at once. Keys past the last one repeat it and aren't stored.
template <int Rows>
HWY_INLINE void multiply_keys(const RowProduct& product, const MemoryRows& b, std::int64_t j) {
  constexpr int kKeys = static_cast<int>(kVector) / Rows;
  const std::byte* keys[kKeys];
  for (int key = 0; key < kKeys; ++key) keys[key] = b.rows[min_of(j + key, b.count - 1)];
  Floats sum[kVector];
#pragma GCC unroll 16
  for (int i = 0; i < kVector; ++i) sum[i] = _mm512_setzero_ps();
  std::int64_t d = 0;
  for (; d + kElements <= b.columns; d += kElements) {
    add_products<Rows, kKeys>(product, keys, d, /*half=*/false, sum);
  }
  if (d < b.columns) add_products<Rows, kKeys>(product, keys, d, /*half=*/true, sum);
  float scores[kVector];
  _mm512_storeu_ps(scores, add_lanes(sum));
  const int count = static_cast<int>(min_of<std::int64_t>(kKeys, b.count - j));
  for (int r = 0; r < Rows; ++r) {
    for (int key = 0; key < count; ++key) {
      product.c[r * product.ldc + j + key] = scores[r * kKeys + key];
    }
  }
}

/// Rows of A that share a load of B: with four keys each they fill a vector with dot products.
constexpr int kSharedRows = 4;

/// Two rows of B as pairs: lanes of `low` are the columns 0..3, 8..11, 16..19, 24..27 of the
/// vector, those of `high` the others.
struct PairedColumns {
  Pairs low;
  Pairs high;
};

HWY_INLINE PairedColumns pair_columns(const std::byte* even, const std::byte* odd,
                                      std::int64_t column, bool half) {
  const __m512i first = load_elements(even, column, half);
  const __m512i second = load_elements(odd, column, half);
  return {as_pairs(_mm512_unpacklo_epi16(first, second)),
          as_pairs(_mm512_unpackhi_epi16(first, second))};
}

/// to += the sums, in the order of the columns.
HWY_INLINE void add_columns(Floats low, Floats high, float* to, bool half) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second =
      _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  const Floats left = _mm512_permutex2var_ps(low, first, high);
  _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), left));
  if (half) return;
  const Floats right = _mm512_permutex2var_ps(low, second, high);
  _mm512_storeu_ps(to + kVector, _mm512_add_ps(_mm512_loadu_ps(to + kVector), right));
}

/// The weights of keys j and j + 1, of which the second may be none.
HWY_INLINE Pairs weight_pair(const RowProduct& product, std::int64_t r, std::int64_t j, bool odd) {
  std::uint32_t bits;
  __builtin_memcpy(&bits,
                   static_cast<const std::byte*>(slot_at(product.a, r * product.lda)) + j * 2,
                   sizeof bits);
  return as_pairs(_mm512_set1_epi32(static_cast<int>(odd ? bits : bits & 0xffffu)));
}

/// Rows rows by Vectors vectors of columns of C: a running sum over pairs of rows of B.
template <int Rows, int Vectors, bool Half>
HWY_INLINE void accumulate_columns(const RowProduct& product, const MemoryRows& b,
                                   std::int64_t column) {
  Floats low[Rows][Vectors];
  Floats high[Rows][Vectors];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) low[r][v] = high[r][v] = _mm512_setzero_ps();
  }
  for (std::int64_t j = 0; j < b.count; j += 2) {
    const bool has_odd = j + 1 < b.count;
    prefetch_ahead(b, j);
    prefetch_ahead(b, j + 1);
    Pairs factor[Rows];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) factor[r] = weight_pair(product, r, j, has_odd);
    const std::byte* even = b.rows[j];
    const std::byte* odd = has_odd ? b.rows[j + 1] : even;
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      const PairedColumns right = pair_columns(even, odd, column + v * kElements, Half);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        low[r][v] = multiply_add(factor[r], right.low, low[r][v]);
        high[r][v] = multiply_add(factor[r], right.high, high[r][v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      add_columns(low[r][v], high[r][v], product.c + r * product.ldc + column + v * kElements,
                  Half);
    }
  }
}

/// Rows rows, over the columns in strips as wide as the registers allow.
template <int Rows>
HWY_INLINE void accumulate_strips(const RowProduct& product, MemoryRows b) {
  constexpr int kVectors = Rows == 1 ? 4 : 2;
  std::int64_t column = 0;
  const auto asked_for = [&b] { b.num_ahead = 0; };
  for (; column + kVectors * kElements <= b.columns; column += kVectors * kElements) {
    accumulate_columns<Rows, kVectors, false>(product, b, column);
    asked_for();
  }
  for (; column + kElements <= b.columns; column += kElements) {
    accumulate_columns<Rows, 1, false>(product, b, column);
    asked_for();
  }
  if (column < b.columns) accumulate_columns<Rows, 1, true>(product, b, column);
}

}  // namespace

void multiply_memory(const RowProduct& product, const MemoryRows& b) {
  for (std::int64_t j = 0; j < b.count; j += kVector) {
    for (std::int64_t key = j; key < j + kVector; ++key) prefetch_ahead(b, key);
    RowProduct rows = product;
    for (; rows.rows >= kSharedRows; rows.rows -= kSharedRows) {
      for (std::int64_t key = j; key < min_of(j + kVector, b.count); key += kVector / kSharedRows) {
        multiply_keys<kSharedRows>(rows, b, key);
      }
      rows.a = slot_at(rows.a, kSharedRows * rows.lda);
      rows.c += kSharedRows * rows.ldc;
    }
    for (; rows.rows > 0; --rows.rows) {
      multiply_keys<1>(rows, b, j);
      rows.a = slot_at(rows.a, rows.lda);
      rows.c += rows.ldc;
    }
  }
}

void accumulate_memory(const RowProduct& product, const MemoryRows& b) {
  RowProduct rows = product;
  MemoryRows keys = b;
  for (; rows.rows >= kSharedRows; rows.rows -= kSharedRows) {
    accumulate_strips<kSharedRows>(rows, keys);
    rows.a = slot_at(rows.a, kSharedRows * rows.lda);
    rows.c += kSharedRows * rows.ldc;
    keys.num_ahead = 0;
  }
  for (; rows.rows > 0; --rows.rows) {
    accumulate_strips<1>(rows, keys);
    rows.a = slot_at(rows.a, rows.lda);
    rows.c += rows.ldc;
    keys.num_ahead = 0;
  }
}

}  // namespace foveal::cpu::avx512_bf16
FOVEAL_END_AVX512_BF16

#endif  // x86-64
