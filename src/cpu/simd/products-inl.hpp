// Products of tiles: blocks of C that stay in registers, fed by a broadcast of A and whole vectors
// of B. Budget, schedule and measurements: docs/kernels/cpu_tile_math.md.

#if defined(FOVEAL_CPU_SIMD_PRODUCTS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEAL_CPU_SIMD_PRODUCTS_INL_HPP
#undef FOVEAL_CPU_SIMD_PRODUCTS_INL_HPP
#else
#define FOVEAL_CPU_SIMD_PRODUCTS_INL_HPP
#endif

#include "cpu/simd/lanes-inl.hpp"
#include "cpu/tile_math.hpp"

HWY_BEFORE_NAMESPACE();
namespace foveal::cpu::simd::HWY_NAMESPACE {
namespace {

enum class AOrder { kRows, kTransposed };
enum class Into { kOverwrite, kAdd };

/// Rows and vectors of a full block. Two vectors by twelve rows leave eight of thirty-two registers
/// to B and the broadcast; two by six leave four of sixteen.
constexpr int kBlockVectors = 2;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_NEON
constexpr int kBlockRows = 12;
#else
constexpr int kBlockRows = 6;
#endif

/// A product and how to step through its operands, in floats: from one row of the block to the
/// next, one term to the next, and from one vector of B to the next.
struct Block {
  const float* a;
  const float* b;
  float* c;
  std::int64_t depth;
  std::int64_t a_row_step;
  std::int64_t a_term_step;
  std::int64_t b_term_step;
  std::int64_t b_vector_step;
  std::int64_t ldc;
};

/// Rows rows by Vectors vectors of C. Every element is a running sum of fused multiply-adds over
/// the depth in ascending order, run by run, whatever the block's shape and place.
template <int Rows, int Vectors, AOrder Order, Into Write>
HWY_INLINE void multiply_block(const Block& block) {
  const float* HWY_RESTRICT a = block.a;
  const float* HWY_RESTRICT b = block.b;
  float* HWY_RESTRICT c = block.c;
  const std::int64_t a_row_step = Order == AOrder::kRows ? block.a_row_step : 1;
  const std::int64_t a_term_step = Order == AOrder::kRows ? 1 : block.a_term_step;
  const std::int64_t b_term_step = block.b_term_step;
  const std::int64_t b_vector_step = block.b_vector_step;
  bool adds = Write == Into::kAdd;
  for (std::int64_t left = block.depth; left > 0; left -= kDepthRun) {
    Floats sum[Rows][Vectors];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) sum[r][v] = hn::Zero(FloatTag());
    }
    for (std::int64_t k = min_of(left, kDepthRun); k > 0; --k) {
      Floats right[Vectors];
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) right[v] = load(b + v * b_vector_step);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const Floats factor = broadcast(a[r * a_row_step]);
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) sum[r][v] = hn::MulAdd(factor, right[v], sum[r][v]);
      }
      a += a_term_step;
      b += b_term_step;
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) {
        float* to = c + r * block.ldc + v * kVector;
        store(adds ? hn::Add(load(to), sum[r][v]) : sum[r][v], to);
      }
    }
    adds = true;
  }
}

/// All rows of Vectors vectors of columns.
template <int Vectors, AOrder Order, Into Write>
void multiply_rows(Block block, std::int64_t rows) {
  const auto step = [&block](std::int64_t count) {
    block.a += count * block.a_row_step;
    block.c += count * block.ldc;
  };
  for (; rows >= kBlockRows; rows -= kBlockRows) {
    multiply_block<kBlockRows, Vectors, Order, Write>(block);
    step(kBlockRows);
  }
  for (; rows >= 4; rows -= 4) {
    multiply_block<4, Vectors, Order, Write>(block);
    step(4);
  }
  if (rows >= 2) {
    multiply_block<2, Vectors, Order, Write>(block);
    step(2);
    rows -= 2;
  }
  if (rows == 1) multiply_block<1, Vectors, Order, Write>(block);
}

/// `panel_step`: from a panel of kLane columns of B to the next.
template <AOrder Order, Into Write>
void multiply(const TileProduct& product, std::int64_t ldb, std::int64_t panel_step) {
  const auto* b = static_cast<const float*>(product.b);
  Block block{.a = static_cast<const float*>(product.a),
              .b = b,
              .c = product.c,
              .depth = product.depth,
              .a_row_step = Order == AOrder::kRows ? product.lda : 1,
              .a_term_step = Order == AOrder::kRows ? 1 : product.lda,
              .b_term_step = ldb,
              .b_vector_step = kLaneVectors == 1 ? panel_step : kVector,
              .ldc = product.ldc};
  std::int64_t panels = ceil_div(product.columns, kLane);
  if constexpr (kLaneVectors == 1) {  // a block is two panels wide
    for (; panels >= kBlockVectors; panels -= kBlockVectors) {
      multiply_rows<kBlockVectors, Order, Write>(block, product.rows);
      block.b += kBlockVectors * panel_step;
      block.c += kBlockVectors * kLane;
    }
    if (panels == 1) multiply_rows<1, Order, Write>(block, product.rows);
  } else {
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      for (std::int64_t v = 0; v < kLaneVectors; v += kBlockVectors) {
        block.b = b + panel * panel_step + v * kVector;
        block.c = product.c + panel * kLane + v * kVector;
        multiply_rows<kBlockVectors, Order, Write>(block, product.rows);
      }
    }
  }
}

/// Four elements of kVector rows that lie kVector / 4 blocks of four rows apart: block i of the
/// vector is row 4 * i.
HWY_INLINE Floats load_every_fourth_row(const float* from, std::int64_t ld) {
#if HWY_MAX_BYTES == 64
  const hn::Half<FloatTag> half;
  const hn::Half<decltype(half)> quarter;
  const auto low = hn::Combine(half, hn::LoadU(quarter, from + 4 * ld), hn::LoadU(quarter, from));
  const auto high =
      hn::Combine(half, hn::LoadU(quarter, from + 12 * ld), hn::LoadU(quarter, from + 8 * ld));
  return hn::Combine(FloatTag(), high, low);
#elif HWY_MAX_BYTES == 32
  const hn::Half<FloatTag> half;
  return hn::Combine(FloatTag(), hn::LoadU(half, from + 4 * ld), hn::LoadU(half, from));
#else
  static_cast<void>(ld);
  return load(from);
#endif
}

/// kVector rows of four elements become four rows of kVector.
HWY_INLINE void transpose(const float* from, std::int64_t ld, float* to, std::int64_t to_ld) {
  const FloatTag d;
  const hn::Repartition<double, FloatTag> pairs;
  const auto as_pairs = [&](Floats value) HWY_ATTR { return hn::BitCast(pairs, value); };
  const Floats r0 = load_every_fourth_row(from, ld);
  const Floats r1 = load_every_fourth_row(from + ld, ld);
  const Floats r2 = load_every_fourth_row(from + 2 * ld, ld);
  const Floats r3 = load_every_fourth_row(from + 3 * ld, ld);
  const auto low01 = as_pairs(hn::InterleaveLower(d, r0, r1));
  const auto high01 = as_pairs(hn::InterleaveUpper(d, r0, r1));
  const auto low23 = as_pairs(hn::InterleaveLower(d, r2, r3));
  const auto high23 = as_pairs(hn::InterleaveUpper(d, r2, r3));
  store(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), to);
  store(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), to + to_ld);
  store(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), to + 2 * to_ld);
  store(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), to + 3 * to_ld);
}

/// Packed layout: panels of kLane rows; within a panel [round_up(d, kLane)][kLane], so that a
/// product reads it from one end to the other.
void pack(const void* rows_of_b, std::int64_t ld, std::int64_t n, std::int64_t slots, void* to) {
  const auto* rows = static_cast<const float*>(rows_of_b);
  auto* packed = static_cast<float*>(to);
  const std::int64_t depth = round_up(slots, kLane);
  for (std::int64_t panel = 0; panel < n; panel += kLane) {
    for (std::int64_t row = 0; row < kLane; row += kVector) {
      const float* from = rows + (panel + row) * ld;
      for (std::int64_t k = 0; k < depth; k += 4) {
        transpose(from + k, ld, packed + k * kLane + row, kLane);
      }
    }
    packed += depth * kLane;
  }
}

void multiply_packed(const TileProduct& product) {
  multiply<AOrder::kRows, Into::kOverwrite>(product, kLane, round_up(product.depth, kLane) * kLane);
}

void accumulate(const TileProduct& product) {
  multiply<AOrder::kRows, Into::kAdd>(product, product.ldb, kLane);
}

void accumulate_transposed(const TileProduct& product) {
  multiply<AOrder::kTransposed, Into::kAdd>(product, product.ldb, kLane);
}

}  // namespace
}  // namespace foveal::cpu::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
