// Products of rows of A with rows of k where they lie: converted in registers, read once for all
// rows of A as far as there are registers.

#if defined(FOVEAL_CPU_SIMD_MEMORY_SCORES_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEAL_CPU_SIMD_MEMORY_SCORES_INL_HPP
#undef FOVEAL_CPU_SIMD_MEMORY_SCORES_INL_HPP
#else
#define FOVEAL_CPU_SIMD_MEMORY_SCORES_INL_HPP
#endif

#include <algorithm>

#include "cpu/simd/memory_reads-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace foveal::cpu::simd::HWY_NAMESPACE {
namespace {

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
constexpr int kLoopVectors = kVector == 16 ? 4 : 2;

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

/// Scores of Rows rows of A from `row` on and the kVector / Rows keys from j on from their sums,
/// [row][key]; those of keys past the last one aren't stored.
template <int Rows>
HWY_INLINE void store_sums(const RowProduct& product, std::int64_t row, std::int64_t j,
                           std::int64_t left, const Floats* sum) {
  constexpr int kKeys = static_cast<int>(kVector) / Rows;
  const Floats scores = add_lanes(sum);
  float* c = product.result(row) + j;
  if (left >= kKeys) return store_scores<Rows>(FloatTag(), scores, c, product.ldc);
  float all[kVector];
  store(scores, all);
  for (int r = 0; r < Rows; ++r) std::copy_n(all + r * kKeys, left, c + r * product.ldc);
}

/// Scores of Rows rows of A from `row` on and the keys [begin, end), kVector / Rows at a time: as
/// many dot products as a vector has lanes. Keys past the last one repeat it. Ahead: asks for what
/// is read later.
template <class T, int Rows, bool Ahead>
HWY_INLINE void multiply_keys(const RowProduct& product, const MemoryRows& b, std::int64_t row,
                              std::int64_t begin, std::int64_t end) {
  constexpr int kKeys = static_cast<int>(kVector) / Rows;
  const float* a = product.left(row);
  const std::int64_t lda = product.lda, columns = b.columns;
  for (std::int64_t j = begin; j < end; j += kKeys) {
    const std::int64_t left = b.count - j;
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
      for (; d + kLoopVectors * kVector <= columns; d += kLoopVectors * kVector) {
        add_products<T, Rows, kKeys, kLoopVectors, Ahead>(a, lda, keys, ahead, d, sum + key);
      }
      for (; d < columns; d += kVector) {
        add_products<T, Rows, kKeys, 1, Ahead>(a, lda, keys, ahead, d, sum + key);
      }
    }
    store_sums<Rows>(product, row, j, left, sum);
  }
}

/// The row that most models have: so many vectors, done without a loop over it. Its place in A is
/// known to the compiler, which has no registers for addresses otherwise.
constexpr int kRowVectors = 8;
constexpr std::int64_t kRowLd = tile_ld(kRowVectors * kVector);

template <class T>
HWY_INLINE void load_row(const std::byte* row, Floats* held) {
#pragma GCC unroll 8
  for (int v = 0; v < kRowVectors; ++v) held[v] = load_memory<T>(row, v * kVector);
  keep_loaded();
}

template <class T>
constexpr bool kConverted = sizeof(T) < sizeof(float);

/// Scores of the kVector / Rows keys from j on. `held` is key j and then the key behind these. What
/// has to be converted is loaded vector by vector as registers become free, so that conversions
/// are spread over the products; all else row by row, since memory gives neighbours sooner.
template <class T, int Rows, bool Ahead>
HWY_INLINE void multiply_held(const RowProduct& product, const MemoryRows& b, std::int64_t row,
                              std::int64_t j, Floats* held) {
  constexpr int kKeys = static_cast<int>(kVector) / Rows;
  constexpr int kBytes = kRowVectors * static_cast<int>(kVector * sizeof(T));
  const float* a = product.left(row);
  const std::int64_t left = b.count - j;
  Floats sum[kVector];  // [row][key]
#pragma GCC unroll 8
  for (int key = 0; key < kKeys; key += 2) {
    const std::byte* second = b.row(j + min_of<std::int64_t>(key + 1, left - 1));
    const std::byte* next = b.row(j + min_of<std::int64_t>(key + 2, left - 1));
    const Prefetcher ahead[2] = {{b, j + key}, {b, j + key + 1}};
#pragma GCC unroll 8
    for (int v = 0; v < kRowVectors; ++v) {
      const Floats right = load_memory<T>(second, v * kVector);
      if constexpr (Ahead) fetch_part<2, kBytes, kRowVectors>(ahead, 0, v);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const Floats q = load(a + r * kRowLd + v * kVector);
        keep_loaded();
        Floats* to = sum + r * kKeys + key;
        to[0] = v == 0 ? hn::Mul(q, held[v]) : hn::MulAdd(q, held[v], to[0]);
        to[1] = v == 0 ? hn::Mul(q, right) : hn::MulAdd(q, right, to[1]);
      }
      if constexpr (kConverted<T>) held[v] = load_memory<T>(next, v * kVector);
    }
    if constexpr (!kConverted<T>) load_row<T>(next, held);
  }
  store_sums<Rows>(product, row, j, left, sum);
}

/// multiply_keys for rows of kRowVectors vectors.
template <class T, int Rows, bool Ahead>
HWY_INLINE void multiply_whole_keys(const RowProduct& product, const MemoryRows& b,
                                    std::int64_t row, std::int64_t begin, std::int64_t end) {
  Floats held[kRowVectors];
  load_row<T>(b.row(begin), held);
  for (std::int64_t j = begin; j < end; j += kVector / Rows) {
    multiply_held<T, Rows, Ahead>(product, b, row, j, held);
  }
}

/// Rows rows of A at a time from `row` on and the kVector keys from j on. Returns the first row
/// that is left over. Only the first rows ask for what is read later: for the others the keys are
/// in the first-level cache by now, what is next in the second.
template <class T, int Rows, bool WholeRow>
HWY_INLINE std::int64_t multiply_rows(const RowProduct& product, const MemoryRows& b,
                                      std::int64_t j, std::int64_t row) {
  const std::int64_t end = min_of(j + kVector, b.count);
  for (; row + Rows <= product.rows; row += Rows) {
    if constexpr (WholeRow) {
      if (row == 0) {
        multiply_whole_keys<T, Rows, true>(product, b, row, j, end);
      } else {
        multiply_whole_keys<T, Rows, false>(product, b, row, j, end);
      }
    } else {
      if (row == 0) {
        multiply_keys<T, Rows, true>(product, b, row, j, end);
      } else {
        multiply_keys<T, Rows, false>(product, b, row, j, end);
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
  if constexpr (kVector == 16) {  // thirty-two registers
    if (b.columns == kRowVectors * kVector && product.lda == kRowLd) {
      return multiply_elements<T, true>(product, b);
    }
  }
  multiply_elements<T, false>(product, b);
}

}  // namespace
}  // namespace foveal::cpu::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
