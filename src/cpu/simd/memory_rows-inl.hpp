// Products with rows of k and v where they lie: converted in registers, read once for all rows of A
// as far as there are registers, while the second-level cache is asked for the rows that come next,
// line by line.

#if defined(FOVEAL_CPU_SIMD_MEMORY_ROWS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEAL_CPU_SIMD_MEMORY_ROWS_INL_HPP
#undef FOVEAL_CPU_SIMD_MEMORY_ROWS_INL_HPP
#else
#define FOVEAL_CPU_SIMD_MEMORY_ROWS_INL_HPP
#endif

#include <algorithm>
#include <atomic>

#include "core/half.hpp"
#include "cpu/simd/convert-inl.hpp"
#include "cpu/simd/lanes-inl.hpp"
#include "cpu/tile_math.hpp"

HWY_BEFORE_NAMESPACE();
namespace foveal::cpu::simd::HWY_NAMESPACE {
namespace {

/// A vector of elements from element `index` of a row.
template <class T>
HWY_INLINE Floats load_memory(const std::byte* row, std::int64_t index) {
  return widen(T{}, load_words(row + index * 2));
}
template <>
HWY_INLINE Floats load_memory<float>(const std::byte* row, std::int64_t index) {
  const hn::Repartition<std::uint8_t, FloatTag> bytes;
  return hn::BitCast(FloatTag(),
                     hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(row) + index * 4));
}

constexpr int kCacheLineBytes = 64;

/// Asks the second-level cache for the lines of a row that is read later, a few with each few that
/// are used: all together they would take up what a core may have under way. Rows of one head are
/// often a multiple of 4 KiB apart: in the first level they would drive each other out.
class Prefetcher {
 public:
  Prefetcher() = default;
  /// While row j is used.
  Prefetcher(const MemoryRows& b, std::int64_t j) : row_(b.row_ahead(j)) {}

  /// The lines that begin in the Bytes bytes from byte `begin` on.
  template <int Bytes>
  HWY_INLINE void fetch(std::int64_t begin) const {
#pragma GCC unroll 8
    for (int byte = 0; byte < Bytes; byte += kCacheLineBytes) {
      __builtin_prefetch(row_ + begin + byte, /*rw=*/0, /*locality=*/2);
    }
  }

 private:
  const std::byte* row_ = nullptr;
};

/// Part `part` of `Parts` of the lines that begin in Bytes bytes of each of `Rows` rows from byte
/// `begin` on: row by row, since memory gives neighbours sooner.
template <int Rows, int Bytes, int Parts>
HWY_INLINE void fetch_part(const Prefetcher* rows, std::int64_t begin, int part) {
  constexpr int kLines = Bytes <= kCacheLineBytes ? 1 : Bytes / kCacheLineBytes;  // of a row
  constexpr int kEach = (Rows * kLines + Parts - 1) / Parts;
#pragma GCC unroll 4
  for (int i = 0; i < kEach; ++i) {
    const int line = part * kEach + i;
    if (line >= Rows * kLines) return;
    rows[line / kLines].template fetch<kCacheLineBytes>(begin + line % kLines * kCacheLineBytes);
  }
}

/// What was loaded before stays in its register: the compiler takes an operand from memory once for
/// every use of it, which a core can do no more often than multiply.
HWY_INLINE void keep_loaded() { std::atomic_signal_fence(std::memory_order_seq_cst); }

/// (x0 + x2, y0 + y2, x1 + x3, y1 + y3) of every block of four lanes.
HWY_INLINE Floats add_interleaved(Floats x, Floats y) {
  const FloatTag d;
  return hn::Add(hn::InterleaveLower(d, x, y), hn::InterleaveUpper(d, x, y));
}

/// Block i: its sums of the four vectors, in their order.
HWY_INLINE Floats add_blocks(const Floats* four) {
  const hn::Repartition<double, FloatTag> pairs;
  const auto low = hn::BitCast(pairs, add_interleaved(four[0], four[1]));
  const auto high = hn::BitCast(pairs, add_interleaved(four[2], four[3]));
  return hn::Add(hn::BitCast(FloatTag(), hn::InterleaveLower(pairs, low, high)),
                 hn::BitCast(FloatTag(), hn::InterleaveUpper(pairs, low, high)));
}

/// Lane i: the sum of sums[i], over a tree of the same shape for every i.
HWY_INLINE Floats add_lanes(const Floats* sums) {
#if HWY_MAX_BYTES == 64
  const FloatTag d;
  const Floats x = add_blocks(sums);
  const Floats y = add_blocks(sums + 4);
  const Floats z = add_blocks(sums + 8);
  const Floats w = add_blocks(sums + 12);
  // Blocks x02 x13 z02 z13 and y02 y13 w02 w13, then x y z w.
  const Floats xz = hn::Add(hn::ConcatLowerLower(d, z, x), hn::ConcatUpperUpper(d, z, x));
  const Floats yw = hn::Add(hn::ConcatLowerLower(d, w, y), hn::ConcatUpperUpper(d, w, y));
  return hn::Add(hn::OddEvenBlocks(hn::SwapAdjacentBlocks(yw), xz),
                 hn::OddEvenBlocks(yw, hn::SwapAdjacentBlocks(xz)));
#elif HWY_MAX_BYTES == 32
  const FloatTag d;
  const Floats x = add_blocks(sums);
  const Floats y = add_blocks(sums + 4);
  return hn::Add(hn::ConcatLowerLower(d, y, x), hn::ConcatUpperUpper(d, y, x));
#else
  return add_blocks(sums);
#endif
}

/// Rows of A that share a load of B: with four keys each they fill a vector with dot products.
constexpr int kSharedRows = static_cast<int>(kVector / 4);

/// Keys that share a load of A, and vectors of a row that are done without a loop: what sixteen or
/// thirty-two registers allow.
constexpr int kHeldKeys = kVector == 16 ? 2 : 4;
constexpr int kRowVectors = kVector == 16 ? 8 : 2;

/// The products of Vectors vectors of kHeldKeys keys from element d on: of row r they go to
/// sum[r * Keys] and the next ones.
template <class T, int Rows, int Keys, int Vectors, bool Ahead>
HWY_INLINE void add_products(const float* a, std::int64_t lda, const std::byte* const* keys,
                             const Prefetcher* ahead, std::int64_t d, Floats* sum) {
  constexpr int kBytes = static_cast<int>(kVector * sizeof(T));
  Floats right[kHeldKeys][Vectors];
  // Row by row where there are registers: four rows 512 bytes apart get into each other's way.
  if constexpr (kHeldKeys == 2) {
#pragma GCC unroll 2
    for (int k = 0; k < kHeldKeys; ++k) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) right[k][v] = load_memory<T>(keys[k], d + v * kVector);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < Vectors; ++v) {
    if constexpr (kHeldKeys > 2) {
#pragma GCC unroll 4
      for (int k = 0; k < kHeldKeys; ++k) right[k][v] = load_memory<T>(keys[k], d + v * kVector);
    }
    if constexpr (Ahead) {
      fetch_part<kHeldKeys, Vectors * kBytes, Vectors>(ahead,
                                                       d * static_cast<std::int64_t>(sizeof(T)), v);
    }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const Floats left = load(a + r * lda + d + v * kVector);
      keep_loaded();
#pragma GCC unroll 4
      for (int k = 0; k < kHeldKeys; ++k) {
        sum[r * Keys + k] = hn::MulAdd(left, right[k][v], sum[r * Keys + k]);
      }
    }
  }
}

/// Part r of the vector to row r. Straight from registers: what goes through memory in pieces of
/// another size waits until all loads before it are done.
template <int Rows, class Tag>
HWY_INLINE void store_scores(Tag d, hn::Vec<Tag> scores, float* to, std::int64_t ld) {
  if constexpr (Rows == 1) {
    hn::StoreU(scores, d, to);
  } else {
    const hn::Half<Tag> half;
    store_scores<Rows / 2>(half, hn::LowerHalf(half, scores), to, ld);
    store_scores<Rows / 2>(half, hn::UpperHalf(half, scores), to + Rows / 2 * ld, ld);
  }
}

/// Scores of Rows rows of A from `row` on and the kVector / Rows keys from j on: as many dot
/// products as a vector has lanes. Keys past the last one repeat it and aren't stored. WholeRow: a
/// row has kRowVectors vectors. Ahead: asks for what is read later.
template <class T, int Rows, bool WholeRow, bool Ahead>
HWY_INLINE void multiply_keys(const RowProduct& product, const MemoryRows& b, std::int64_t row,
                              std::int64_t j) {
  constexpr int kKeys = static_cast<int>(kVector) / Rows;
  const float* a = product.left(row);
  const std::int64_t lda = product.lda, columns = b.columns, left = b.count - j;
  Floats sum[kVector];  // [row][key]
#pragma GCC unroll 16
  for (int i = 0; i < kVector; ++i) sum[i] = hn::Zero(FloatTag());
#pragma GCC unroll 8
  for (int key = 0; key < kKeys; key += kHeldKeys) {
    const std::byte* keys[kHeldKeys];
    Prefetcher ahead[kHeldKeys];
#pragma GCC unroll 4
    for (int k = 0; k < kHeldKeys; ++k) {
      keys[k] = b.row(j + min_of<std::int64_t>(key + k, left - 1));
      ahead[k] = Prefetcher(b, j + key + k);
    }
    std::int64_t d = 0;
    if constexpr (WholeRow) {
      add_products<T, Rows, kKeys, kRowVectors, Ahead>(a, lda, keys, ahead, d, sum + key);
    } else {
      constexpr int kVectors = min_of(kRowVectors, 4);
      for (; d + kVectors * kVector <= columns; d += kVectors * kVector) {
        add_products<T, Rows, kKeys, kVectors, Ahead>(a, lda, keys, ahead, d, sum + key);
      }
      for (; d < columns; d += kVector) {
        add_products<T, Rows, kKeys, 1, Ahead>(a, lda, keys, ahead, d, sum + key);
      }
    }
  }
  const Floats scores = add_lanes(sum);
  float* c = product.result(row) + j;
  if (left >= kKeys) return store_scores<Rows>(FloatTag(), scores, c, product.ldc);
  float all[kVector];
  store(scores, all);
  for (int r = 0; r < Rows; ++r) std::copy_n(all + r * kKeys, left, c + r * product.ldc);
}

/// Rows rows of A at a time from `row` on and the kVector keys from j on. Returns the first row
/// that is left over.
template <class T, int Rows, bool WholeRow>
HWY_INLINE std::int64_t multiply_rows(const RowProduct& product, const MemoryRows& b,
                                      std::int64_t j, std::int64_t row) {
  const std::int64_t end = min_of(j + kVector, b.count);
  for (; row + Rows <= product.rows; row += Rows) {
    for (std::int64_t key = j; key < end; key += kVector / Rows) {
      if (row == 0) {
        multiply_keys<T, Rows, WholeRow, true>(product, b, row, key);
      } else {  // the keys are in the first-level cache by now, what is next in the second
        multiply_keys<T, Rows, WholeRow, false>(product, b, row, key);
      }
    }
  }
  return row;
}

template <class T, bool WholeRow>
HWY_INLINE void multiply_elements(const RowProduct& product, const MemoryRows& b) {
  for (std::int64_t j = 0; j < b.count; j += kVector) {
    std::int64_t row = multiply_rows<T, kSharedRows, WholeRow>(product, b, j, 0);
    if constexpr (kSharedRows > 2) row = multiply_rows<T, 2, WholeRow>(product, b, j, row);
    if constexpr (kSharedRows > 1) multiply_rows<T, 1, WholeRow>(product, b, j, row);
  }
}

template <class T>
HWY_INLINE void multiply_any(const RowProduct& product, const MemoryRows& b) {
  if constexpr (kVector == 16) {  // the row that most models have, without a loop over it
    if (b.columns == kRowVectors * kVector) return multiply_elements<T, true>(product, b);
  }
  multiply_elements<T, false>(product, b);
}

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
  std::int64_t ahead_row = 0;  ///< what is asked for next
  std::int64_t ahead_byte = 0;
};

/// Rows rows by Vectors vectors of C: a running sum over the keys of the strip.
template <class T, int Rows, int Vectors>
HWY_INLINE void accumulate_columns(const RowProduct& product, const MemoryRows& b,
                                   ValueStrip& strip) {
  constexpr int kBytes = static_cast<int>(Vectors * kVector * sizeof(T));
  const std::int64_t row_bytes = b.columns * static_cast<std::int64_t>(sizeof(T));
  const float* a = product.left(strip.row);
  const std::int64_t lda = product.lda, column = strip.column;
  Floats sum[Rows][Vectors];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sum[r][v] = hn::Zero(FloatTag());
  }
  for (std::int64_t j = strip.begin; j < strip.end; ++j) {
    const std::byte* from = b.row(j);
    if (strip.row == 0) {
      Prefetcher(b, strip.ahead_row).template fetch<kBytes>(strip.ahead_byte);
      strip.ahead_byte += kBytes;
      if (strip.ahead_byte >= row_bytes) {
        strip.ahead_byte = 0;
        ++strip.ahead_row;
      }
    }
    Floats factor[Rows];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) factor[r] = broadcast(a[r * lda + j]);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const Floats right = load_memory<T>(from, column + v * kVector);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) sum[r][v] = hn::MulAdd(factor[r], right, sum[r][v]);
    }
  }
  float* c = product.result(strip.row) + column;
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
template <class T, int Rows, int Vectors>
HWY_INLINE void accumulate_strips(const RowProduct& product, const MemoryRows& b,
                                  ValueStrip& strip) {
  for (; strip.column + Vectors * kVector <= b.columns; strip.column += Vectors * kVector) {
    accumulate_columns<T, Rows, Vectors>(product, b, strip);
  }
}

/// Rows rows at a time from strip.row on, in strips as wide as the registers allow.
template <class T, int Rows>
HWY_INLINE void accumulate_rows(const RowProduct& product, const MemoryRows& b, ValueStrip& strip) {
  constexpr int kVectors = Rows == 1 ? 8 : (kVector == 16 ? 16 : 8) / Rows;
  for (; strip.row + Rows <= product.rows; strip.row += Rows) {
    strip.column = strip.ahead_byte = 0;
    strip.ahead_row = strip.begin;
    accumulate_strips<T, Rows, kVectors>(product, b, strip);
    if constexpr (kVectors > 4) accumulate_strips<T, Rows, 4>(product, b, strip);
    accumulate_strips<T, Rows, 1>(product, b, strip);
  }
}

template <class T>
HWY_INLINE void accumulate_elements(const RowProduct& product, const MemoryRows& b) {
  constexpr int kRows = kVector == 16 ? 4 : 2;
  for (std::int64_t j = 0; j < b.count; j += kValueKeys<T>) {
    ValueStrip strip{.begin = j, .end = min_of(j + kValueKeys<T>, b.count)};
    accumulate_rows<T, kRows>(product, b, strip);
    if constexpr (kRows > 2) accumulate_rows<T, 2>(product, b, strip);
    accumulate_rows<T, 1>(product, b, strip);
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
