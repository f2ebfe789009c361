// Products with rows of k and v where they lie: memory_scores-inl.hpp, and here the sums of weights
// * v, which are read once for all rows of A as far as there are registers.

#if defined(FOVEAL_CPU_SIMD_MEMORY_ROWS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEAL_CPU_SIMD_MEMORY_ROWS_INL_HPP
#undef FOVEAL_CPU_SIMD_MEMORY_ROWS_INL_HPP
#else
#define FOVEAL_CPU_SIMD_MEMORY_ROWS_INL_HPP
#endif

#include "cpu/simd/memory_reads-inl.hpp"
#include "cpu/simd/memory_scores-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace foveal::cpu::simd::HWY_NAMESPACE {
namespace {

/// Keys whose values go through the columns strip by strip: at headdim 128 they take a quarter of
/// the first-level cache.
template <class T>
constexpr std::int64_t kValueKeys = 64 / static_cast<std::int64_t>(sizeof(T));

/// A strip of columns for the keys [begin, end).
struct ValueStrip {
  std::int64_t row = 0;  ///< of A, the first
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t column = 0;
  std::int64_t ahead_row = 0;        ///< whose lines are asked for next,
  const std::byte* ahead = nullptr;  ///< the next of them
  std::int64_t ahead_left = 0;       ///< and bytes of the row from there on
};

/// Asks for the lines that begin in the next Bytes bytes.
template <class T, int Bytes>
HWY_INLINE void fetch_ahead(const MemoryRows& b, ValueStrip& strip) {
#pragma GCC unroll 8
  for (int byte = 0; byte < Bytes; byte += kCacheLineBytes) prefetch(strip.ahead + byte);
  strip.ahead += Bytes;
  strip.ahead_left -= Bytes;
  if (strip.ahead_left > 0) return;
  strip.ahead = b.row_ahead(++strip.ahead_row);
  strip.ahead_left = b.columns * static_cast<std::int64_t>(sizeof(T));
}

/// Rows rows by Vectors vectors of C: a running sum over the keys of the strip.
template <class T, int Rows, int Vectors, bool Ahead>
HWY_INLINE void accumulate_columns(const RowProduct& product, const MemoryRows& b,
                                   ValueStrip& all_strips) {
  ValueStrip strip = all_strips;
  const float* a = product.left(strip.row);
  const std::int64_t lda = product.lda, end = strip.end;
  const std::byte* const* rows = b.rows;
  const std::int64_t offset = b.offset + strip.column * static_cast<std::int64_t>(sizeof(T));
  Floats sum[Rows][Vectors];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sum[r][v] = hn::Zero(FloatTag());
  }
  for (std::int64_t j = strip.begin; j < end; ++j) {
    const std::byte* from = rows[j] + offset;
    if constexpr (Ahead) fetch_ahead<T, static_cast<int>(Vectors * kVector * sizeof(T))>(b, strip);
    Floats factor[Rows];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) factor[r] = broadcast(a[r * lda + j]);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const Floats right = load_memory<T>(from, v * kVector);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) sum[r][v] = hn::MulAdd(factor[r], right, sum[r][v]);
    }
  }
  all_strips = strip;
  float* c = product.result(strip.row) + strip.column;
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      float* to = c + r * product.ldc + v * kVector;
      store(hn::Add(load(to), sum[r][v]), to);
    }
  }
}

/// Columns from strip.column on, in strips of Vectors vectors.
template <class T, int Rows, int Vectors, bool Ahead>
HWY_INLINE void accumulate_strips(const RowProduct& product, const MemoryRows& b,
                                  ValueStrip& strip) {
  for (; strip.column + Vectors * kVector <= b.columns; strip.column += Vectors * kVector) {
    accumulate_columns<T, Rows, Vectors, Ahead>(product, b, strip);
  }
}

/// All columns of Rows rows, in strips as wide as the registers allow. Ahead: asks for what is read
/// later.
template <class T, int Rows, bool Ahead>
HWY_INLINE void accumulate_rows(const RowProduct& product, const MemoryRows& b, ValueStrip& strip) {
  constexpr int kVectors = Rows == 1 ? 8 : (kVector == 16 ? 16 : 8) / Rows;
  strip.column = 0;
  strip.ahead_row = strip.begin;
  strip.ahead = b.row_ahead(strip.begin);
  strip.ahead_left = b.columns * static_cast<std::int64_t>(sizeof(T));
  accumulate_strips<T, Rows, kVectors, Ahead>(product, b, strip);
  if constexpr (kVectors > 4) accumulate_strips<T, Rows, 4, Ahead>(product, b, strip);
  accumulate_strips<T, Rows, 1, Ahead>(product, b, strip);
}

/// Rows rows at a time from strip.row on.
template <class T, int Rows>
HWY_INLINE void accumulate_all(const RowProduct& product, const MemoryRows& b, ValueStrip& strip) {
  for (; strip.row + Rows <= product.rows; strip.row += Rows) {
    if (strip.row == 0) {
      accumulate_rows<T, Rows, true>(product, b, strip);
    } else {
      accumulate_rows<T, Rows, false>(product, b, strip);
    }
  }
}

template <class T>
HWY_INLINE void accumulate_elements(const RowProduct& product, const MemoryRows& b) {
  constexpr int kRows = kVector == 16 ? 4 : 2;
  for (std::int64_t j = 0; j < b.count; j += kValueKeys<T>) {
    ValueStrip strip{.begin = j, .end = min_of(j + kValueKeys<T>, b.count)};
    accumulate_all<T, kRows>(product, b, strip);
    if constexpr (kRows > 2) accumulate_all<T, 2>(product, b, strip);
    accumulate_all<T, 1>(product, b, strip);
  }
}

void multiply_memory(const RowProduct& product, const MemoryRows& b) {
  switch (b.dtype) {
    case DType::kFloat16: return multiply_any<Half>(product, b);
    case DType::kBFloat16: return multiply_any<BFloat16>(product, b);
    default: return multiply_any<float>(product, b);
  }
}

void accumulate_memory(const RowProduct& product, const MemoryRows& b) {
  switch (b.dtype) {
    case DType::kFloat16: return accumulate_elements<Half>(product, b);
    case DType::kBFloat16: return accumulate_elements<BFloat16>(product, b);
    default: return accumulate_elements<float>(product, b);
  }
}

}  // namespace
}  // namespace foveal::cpu::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
