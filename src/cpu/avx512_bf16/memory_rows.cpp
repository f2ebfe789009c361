// Products with rows of bf16 where they lie, none of them converted, read once for all rows of A as
// far as there are registers, while the second-level cache is asked for the rows that come next,
// line by line.
#include "cpu/avx512_bf16/table.hpp"
#if FOVEAL_WITH_AVX512_BF16

#include <algorithm>
#include <atomic>
#include <cstring>

#include "cpu/avx512_bf16/functions.hpp"
#include "cpu/avx512_bf16/lanes.hpp"
#include "cpu/prefetch.hpp"

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

/// Asks the second-level cache for the lines of a row that is read later, a few with each few that
/// are used: all together they would take up what a core may have under way. Rows of one head are
/// often a multiple of 4 KiB apart: in the first level they would drive each other out.
class Prefetcher {
 public:
  /// While row j is used.
  HWY_INLINE Prefetcher(const MemoryRows& b, std::int64_t j) : row_(b.row_ahead(j)) {}

  HWY_INLINE void fetch(std::int64_t element) const { prefetch(row_ + element * 2); }

 private:
  const std::byte* row_;
};

/// What was loaded before stays in its register: the compiler takes an operand from memory once for
/// every use of it, which a core can do no more often than multiply.
HWY_INLINE void keep_loaded() { std::atomic_signal_fence(std::memory_order_seq_cst); }

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

/// Vectors of a row that are in registers at once.
constexpr int kRowVectors = 4;
/// Leading dimension of A for rows of so many.
constexpr std::int64_t kRowLd = tile_ld(kRowVectors * kVector);

/// The products of Vectors vectors of two keys from element d on: of row r they go to
/// sum[r * Keys] and the next.
template <int Rows, int Keys, int Vectors, bool Half, bool Ahead>
HWY_INLINE void add_products(const float* a, std::int64_t lda, const std::byte* const* keys,
                             const Prefetcher* ahead, std::int64_t d, Floats* sum) {
  Pairs right[2][Vectors];
#pragma GCC unroll 2
  for (int k = 0; k < 2; ++k) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      right[k][v] = as_pairs(load_elements(keys[k], d + v * kElements, Half));
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) {
    if constexpr (Ahead) {  // row by row, since memory gives neighbours sooner
      ahead[2 * v / Vectors].fetch(d + 2 * v % Vectors * kElements);
      ahead[(2 * v + 1) / Vectors].fetch(d + (2 * v + 1) % Vectors * kElements);
    }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const Pairs left = as_pairs(load_slots(a, r * lda + d / 2 + v * kVector));
      keep_loaded();
      sum[r * Keys] = multiply_add(left, right[0][v], sum[r * Keys]);
      sum[r * Keys + 1] = multiply_add(left, right[1][v], sum[r * Keys + 1]);
    }
  }
}

/// Part r of the vector to row r. Straight from registers: what goes through memory in pieces of
/// another size waits until all loads before it are done.
template <int Rows>
HWY_INLINE void store_scores(Floats scores, float* to, std::int64_t ld) {
  if constexpr (Rows == 1) {
    _mm512_storeu_ps(to, scores);
  } else if constexpr (Rows == 2) {
    _mm256_storeu_ps(to, _mm512_castps512_ps256(scores));
    _mm256_storeu_ps(to + ld, _mm512_extractf32x8_ps(scores, 1));
  } else {
    _mm_storeu_ps(to, _mm512_castps512_ps128(scores));
    _mm_storeu_ps(to + ld, _mm512_extractf32x4_ps(scores, 1));
    _mm_storeu_ps(to + 2 * ld, _mm512_extractf32x4_ps(scores, 2));
    _mm_storeu_ps(to + 3 * ld, _mm512_extractf32x4_ps(scores, 3));
  }
}

/// Scores of Rows rows of A from `row` on and the kVector / Rows keys from j on from their sums,
/// [row][key]; those of keys past the last one aren't stored.
template <int Rows>
HWY_INLINE void store_sums(const RowProduct& product, std::int64_t row, std::int64_t j,
                           std::int64_t left, const Floats* sum) {
  constexpr int kKeys = static_cast<int>(kVector) / Rows;
  const Floats scores = add_lanes(sum);
  float* c = product.result(row) + j;
  if (left >= kKeys) return store_scores<Rows>(scores, c, product.ldc);
  float all[kVector];
  _mm512_storeu_ps(all, scores);
  for (int r = 0; r < Rows; ++r) std::copy_n(all + r * kKeys, left, c + r * product.ldc);
}

/// Scores of Rows rows of A from `row` on and the keys [begin, end), kVector / Rows at a time: as
/// many dot products as a vector has lanes. Keys past the last one repeat it. WholeRow: a row has
/// kRowVectors vectors, and its place in A is known to the compiler, which has no registers for
/// addresses otherwise. Ahead: asks for what is read later.
template <int Rows, bool WholeRow, bool Ahead>
HWY_INLINE void multiply_keys(const RowProduct& product, const MemoryRows& b, std::int64_t row,
                              std::int64_t begin, std::int64_t end) {
  constexpr int kKeys = static_cast<int>(kVector) / Rows;
  const float* a = product.left(row);
  const std::int64_t lda = WholeRow ? kRowLd : product.lda, columns = b.columns;
  for (std::int64_t j = begin; j < end; j += kKeys) {
    const std::int64_t left = b.count - j;
    Floats sum[kVector];  // [row][key]
#pragma GCC unroll 16
    for (int i = 0; i < kVector; ++i) sum[i] = _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int key = 0; key < kKeys; key += 2) {
      const std::byte* const keys[2] = {b.row(j + min_of<std::int64_t>(key, left - 1)),
                                        b.row(j + min_of<std::int64_t>(key + 1, left - 1))};
      const Prefetcher ahead[2] = {{b, j + key}, {b, j + key + 1}};
      std::int64_t d = 0;
      if constexpr (WholeRow) {
        add_products<Rows, kKeys, kRowVectors, false, Ahead>(a, lda, keys, ahead, d, sum + key);
      } else {
        for (; d + kElements <= columns; d += kElements) {
          add_products<Rows, kKeys, 1, false, Ahead>(a, lda, keys, ahead, d, sum + key);
        }
        if (d < columns) {
          add_products<Rows, kKeys, 1, true, Ahead>(a, lda, keys, ahead, d, sum + key);
        }
      }
    }
    store_sums<Rows>(product, row, j, left, sum);
  }
}

/// Rows rows of A at a time from `row` on and the kVector keys from j on. Returns the first row
/// that is left over. Only the first rows ask for what is read later: for the others the keys are
/// in the first-level cache by now, what is next in the second.
template <int Rows, bool WholeRow>
HWY_INLINE std::int64_t multiply_rows(const RowProduct& product, const MemoryRows& b,
                                      std::int64_t j, std::int64_t row) {
  const std::int64_t end = min_of(j + kVector, b.count);
  for (; row + Rows <= product.rows; row += Rows) {
    if (row == 0) {
      multiply_keys<Rows, WholeRow, true>(product, b, row, j, end);
    } else {
      multiply_keys<Rows, WholeRow, false>(product, b, row, j, end);
    }
  }
  return row;
}

template <bool WholeRow>
HWY_INLINE void multiply_elements(const RowProduct& product, const MemoryRows& b) {
  for (std::int64_t j = 0; j < b.count; j += kVector) {
    std::int64_t row = multiply_rows<4, WholeRow>(product, b, j, 0);
    row = multiply_rows<2, WholeRow>(product, b, j, row);
    multiply_rows<1, WholeRow>(product, b, j, row);
  }
}

/// Keys whose values go through the columns strip by strip: at headdim 128 they take a quarter of
/// the first-level cache.
constexpr std::int64_t kValueKeys = 32;

/// A strip of columns for the keys [begin, end).
struct ValueStrip {
  std::int64_t row = 0;  ///< of A, the first
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t column = 0;
  std::int64_t ahead_row = 0;        ///< whose lines are asked for next,
  const std::byte* ahead = nullptr;  ///< the next of them
  std::int64_t ahead_left = 0;       ///< and elements of the row from there on
};

/// Two rows of B as pairs: lanes of `low` are the columns 0..3, 8..11, 16..19, 24..27 of the
/// vector, those of `high` the others.
struct PairedColumns {
  Pairs low;
  Pairs high;
};

HWY_INLINE PairedColumns pair_columns(__m512i even, __m512i odd) {
  return {as_pairs(_mm512_unpacklo_epi16(even, odd)), as_pairs(_mm512_unpackhi_epi16(even, odd))};
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

/// The weights of keys j and j + 1 of a row, of which the second may be none.
HWY_INLINE Pairs weight_pair(const float* weights, std::int64_t j, bool odd) {
  std::uint32_t bits;
  std::memcpy(&bits, reinterpret_cast<const std::byte*>(weights) + j * 2, sizeof bits);
  return as_pairs(_mm512_set1_epi32(static_cast<int>(odd ? bits : bits & 0xffffu)));
}

/// Asks for the next Vectors lines.
template <int Vectors>
HWY_INLINE void fetch_ahead(const MemoryRows& b, ValueStrip& strip) {
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) prefetch(strip.ahead + v * kElements * 2);
  strip.ahead += Vectors * kElements * 2;
  strip.ahead_left -= Vectors * kElements;
  if (strip.ahead_left > 0) return;
  strip.ahead = b.row_ahead(++strip.ahead_row);
  strip.ahead_left = b.columns;
}

/// Rows rows by Vectors vectors of columns of C: a running sum over pairs of keys of the strip.
template <int Rows, int Vectors, bool Half, bool Ahead>
HWY_INLINE void accumulate_columns(const RowProduct& product, const MemoryRows& b,
                                   ValueStrip& all_strips) {
  ValueStrip strip = all_strips;
  const float* a = product.left(strip.row);
  const std::int64_t lda = product.lda, end = strip.end;
  const std::byte* const* rows = b.rows;
  const std::int64_t offset = b.offset + strip.column * 2;
  Floats low[Rows][Vectors];
  Floats high[Rows][Vectors];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) low[r][v] = high[r][v] = _mm512_setzero_ps();
  }
  for (std::int64_t j = strip.begin; j < end; j += 2) {
    const bool has_odd = j + 1 < end;
    const std::byte* even = rows[j] + offset;
    const std::byte* odd = rows[has_odd ? j + 1 : j] + offset;
    if constexpr (Ahead) {
      fetch_ahead<Vectors>(b, strip);
      fetch_ahead<Vectors>(b, strip);
    }
    Pairs factor[Rows];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) factor[r] = weight_pair(a + r * lda, j, has_odd);
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      const PairedColumns columns = pair_columns(load_elements(even, v * kElements, Half),
                                                 load_elements(odd, v * kElements, Half));
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        low[r][v] = multiply_add(factor[r], columns.low, low[r][v]);
        high[r][v] = multiply_add(factor[r], columns.high, high[r][v]);
      }
    }
  }
  all_strips = strip;
  float* c = product.result(strip.row) + strip.column;
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      add_columns(low[r][v], high[r][v], c + r * product.ldc + v * kElements, Half);
    }
  }
}

/// Columns from strip.column on, in strips of Vectors vectors.
template <int Rows, int Vectors, bool Ahead>
HWY_INLINE void accumulate_strips(const RowProduct& product, const MemoryRows& b,
                                  ValueStrip& strip) {
  for (; strip.column + Vectors * kElements <= b.columns; strip.column += Vectors * kElements) {
    accumulate_columns<Rows, Vectors, false, Ahead>(product, b, strip);
  }
}

/// All columns of Rows rows, in strips as wide as the registers allow. Ahead: asks for what is read
/// later.
template <int Rows, bool Ahead>
HWY_INLINE void accumulate_rows(const RowProduct& product, const MemoryRows& b, ValueStrip& strip) {
  constexpr int kVectors = Rows == 1 ? 4 : 8 / Rows;
  strip.column = 0;
  strip.ahead_row = strip.begin;
  strip.ahead = b.row_ahead(strip.begin);
  strip.ahead_left = b.columns;
  accumulate_strips<Rows, kVectors, Ahead>(product, b, strip);
  if constexpr (kVectors > 2) accumulate_strips<Rows, 2, Ahead>(product, b, strip);
  accumulate_strips<Rows, 1, Ahead>(product, b, strip);
  if (strip.column < b.columns) accumulate_columns<Rows, 1, true, Ahead>(product, b, strip);
}

/// Rows rows at a time from strip.row on.
template <int Rows>
HWY_INLINE void accumulate_all(const RowProduct& product, const MemoryRows& b, ValueStrip& strip) {
  for (; strip.row + Rows <= product.rows; strip.row += Rows) {
    if (strip.row == 0) {
      accumulate_rows<Rows, true>(product, b, strip);
    } else {
      accumulate_rows<Rows, false>(product, b, strip);
    }
  }
}

}  // namespace

void multiply_memory(const RowProduct& product, const MemoryRows& b) {
  if (b.columns == kRowVectors * kElements && product.lda == kRowLd) {
    return multiply_elements<true>(product, b);
  }
  multiply_elements<false>(product, b);
}

void accumulate_memory(const RowProduct& product, const MemoryRows& b) {
  for (std::int64_t j = 0; j < b.count; j += kValueKeys) {
    ValueStrip strip{.begin = j, .end = min_of(j + kValueKeys, b.count)};
    accumulate_all<4>(product, b, strip);
    accumulate_all<2>(product, b, strip);
    accumulate_all<1>(product, b, strip);
  }
}

}  // namespace foveal::cpu::avx512_bf16
FOVEAL_END_AVX512_BF16

#endif  // x86-64
