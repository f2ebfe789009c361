// Products with rows of k and v where they lie: converted in registers, read once for all rows of A
// as far as there are registers.

#if defined(FOVEAL_CPU_SIMD_MEMORY_ROWS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEAL_CPU_SIMD_MEMORY_ROWS_INL_HPP
#undef FOVEAL_CPU_SIMD_MEMORY_ROWS_INL_HPP
#else
#define FOVEAL_CPU_SIMD_MEMORY_ROWS_INL_HPP
#endif

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

HWY_INLINE const float* left_row(const RowProduct& product, std::int64_t r) {
  return static_cast<const float*>(product.a) + r * product.lda;
}

/// Asks the second-level cache for the row that is read after row j's tile. Rows of one head are
/// often a multiple of 4 KiB apart: in the first level they would drive each other out.
HWY_INLINE void prefetch_ahead(const MemoryRows& b, std::int64_t j, std::int64_t row_bytes) {
  constexpr std::int64_t kCacheLineBytes = 64;
  if (j >= b.num_ahead) return;
  for (std::int64_t byte = 0; byte < row_bytes; byte += kCacheLineBytes) {
    __builtin_prefetch(b.ahead[j] + byte, /*rw=*/0, /*locality=*/2);
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

/// sum += products of Vectors vectors from element d on, row by row of B: a cache line of B is used
/// up at once, for sixteen rows that are a multiple of 4 KiB apart share the eight ways of a set.
template <class T, int Rows, int Keys, int Vectors>
HWY_INLINE void add_products(const RowProduct& product, const std::byte* const* keys,
                             std::int64_t d, Floats* sum) {
  Floats left[Rows][Vectors];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) {
      left[r][v] = load(left_row(product, r) + d + v * kVector);
    }
  }
#pragma GCC unroll 16
  for (int key = 0; key < Keys; ++key) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) {
      const Floats right = load_memory<T>(keys[key], d + v * kVector);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        sum[r * Keys + key] = hn::MulAdd(left[r][v], right, sum[r * Keys + key]);
      }
    }
  }
}

/// Scores of Rows rows of A and the kVector / Rows keys from j on: as many dot products as a vector
/// has lanes, all under way at once. Keys past the last one repeat it and aren't stored.
template <class T, int Rows>
HWY_INLINE void multiply_keys(const RowProduct& product, const MemoryRows& b, std::int64_t j) {
  constexpr int kKeys = static_cast<int>(kVector) / Rows;
  const std::byte* keys[kKeys];
  for (int key = 0; key < kKeys; ++key) keys[key] = b.rows[min_of(j + key, b.count - 1)];
  Floats sum[kVector];
#pragma GCC unroll 16
  for (int i = 0; i < kVector; ++i) sum[i] = hn::Zero(FloatTag());
  std::int64_t d = 0;
  for (; d + 2 * kVector <= b.columns; d += 2 * kVector) {
    add_products<T, Rows, kKeys, 2>(product, keys, d, sum);
  }
  if (d < b.columns) add_products<T, Rows, kKeys, 1>(product, keys, d, sum);
  float scores[kVector];
  store(add_lanes(sum), scores);
  const int count = static_cast<int>(min_of<std::int64_t>(kKeys, b.count - j));
  for (int r = 0; r < Rows; ++r) {
    for (int key = 0; key < count; ++key) {
      product.c[r * product.ldc + j + key] = scores[r * kKeys + key];
    }
  }
}

/// Rows of A that share a load of B: with four keys each they fill a vector with dot products.
constexpr int kSharedRows = static_cast<int>(kVector / 4);

template <class T>
HWY_INLINE void multiply_elements(RowProduct product, const MemoryRows& b) {
  const std::int64_t row_bytes = b.columns * static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t j = 0; j < b.count; j += kVector) {
    for (std::int64_t key = j; key < j + kVector; ++key) prefetch_ahead(b, key, row_bytes);
    RowProduct rows = product;
    for (; rows.rows >= kSharedRows; rows.rows -= kSharedRows) {
      for (std::int64_t key = j; key < min_of(j + kVector, b.count); key += kVector / kSharedRows) {
        multiply_keys<T, kSharedRows>(rows, b, key);
      }
      rows.a = slot_at(rows.a, kSharedRows * rows.lda);
      rows.c += kSharedRows * rows.ldc;
    }
    for (; rows.rows > 0; --rows.rows) {
      multiply_keys<T, 1>(rows, b, j);
      rows.a = slot_at(rows.a, rows.lda);
      rows.c += rows.ldc;
    }
  }
}

/// Rows rows by Vectors vectors of C: a running sum over the rows of B, as products-inl.hpp has it.
template <class T, int Rows, int Vectors>
HWY_INLINE void accumulate_columns(const RowProduct& product, const MemoryRows& b,
                                   std::int64_t column) {
  Floats sum[Rows][Vectors];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sum[r][v] = hn::Zero(FloatTag());
  }
  const std::int64_t row_bytes = b.columns * static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t j = 0; j < b.count; ++j) {
    prefetch_ahead(b, j, row_bytes);
    Floats factor[Rows];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) factor[r] = broadcast(left_row(product, r)[j]);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const Floats right = load_memory<T>(b.rows[j], column + v * kVector);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) sum[r][v] = hn::MulAdd(factor[r], right, sum[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      float* to = product.c + r * product.ldc + column + v * kVector;
      store(hn::Add(load(to), sum[r][v]), to);
    }
  }
}

/// Rows rows, over the columns in strips as wide as the registers allow.
template <class T, int Rows>
HWY_INLINE void accumulate_strips(const RowProduct& product, MemoryRows b) {
  constexpr int kVectors = Rows == 1 ? 8 : 4;
  std::int64_t column = 0;
  for (; column + kVectors * kVector <= b.columns; column += kVectors * kVector) {
    accumulate_columns<T, Rows, kVectors>(product, b, column);
    b.num_ahead = 0;  // asked for once
  }
  for (; column < b.columns; column += kVector) {
    accumulate_columns<T, Rows, 1>(product, b, column);
    b.num_ahead = 0;
  }
}

template <class T>
HWY_INLINE void accumulate_elements(RowProduct product, MemoryRows b) {
  constexpr int kRows = kVector == 16 ? 4 : 2;
  for (; product.rows >= kRows; product.rows -= kRows) {
    accumulate_strips<T, kRows>(product, b);
    product.a = slot_at(product.a, kRows * product.lda);
    product.c += kRows * product.ldc;
    b.num_ahead = 0;
  }
  for (; product.rows > 0; --product.rows) {
    accumulate_strips<T, 1>(product, b);
    product.a = slot_at(product.a, product.lda);
    product.c += product.ldc;
    b.num_ahead = 0;
  }
}

void multiply_memory(const RowProduct& product, const MemoryRows& b) {
  switch (b.dtype) {
    case DType::kFloat16: return multiply_elements<Half>(product, b);
    case DType::kBFloat16: return multiply_elements<BFloat16>(product, b);
    default: return multiply_elements<float>(product, b);
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
