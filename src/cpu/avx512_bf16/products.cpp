// Products of tiles of bf16 pairs, laid out as those of fp32 (cpu/simd/products-inl.hpp): blocks of
// C that stay in registers, fed by a broadcast pair of A and whole vectors of B.
#include "cpu/avx512_bf16/table.hpp"
#if FOVEAL_WITH_AVX512_BF16

#include "cpu/avx512_bf16/functions.hpp"
#include "cpu/avx512_bf16/lanes.hpp"

FOVEAL_BEGIN_AVX512_BF16
namespace foveal::cpu::avx512_bf16 {
namespace {

enum class AOrder { kRows, kTransposed };
enum class Into { kOverwrite, kAdd };

/// Rows and vectors of a full block: 24 accumulators of 32 registers.
constexpr int kBlockRows = 12;
constexpr int kBlockVectors = 2;

/// Slots that one running sum takes.
constexpr std::int64_t kSlotRun = kDepthRun / 2;

/// A product and how to step through its operands, in slots.
struct Block {
  const void* a;
  const void* b;
  float* c;
  std::int64_t depth;
  std::int64_t a_row_step;
  std::int64_t a_term_step;
  std::int64_t b_term_step;
  std::int64_t b_vector_step;
  std::int64_t ldc;
};

/// Rows rows by Vectors vectors of C: a running sum over the depth in ascending order, run by run,
/// whatever the block's shape and place.
template <int Rows, int Vectors, AOrder Order, Into Write>
HWY_INLINE void multiply_block(const Block& block) {
  const void* a = block.a;
  const void* b = block.b;
  const std::int64_t a_row_step = Order == AOrder::kRows ? block.a_row_step : 1;
  const std::int64_t a_term_step = Order == AOrder::kRows ? 1 : block.a_term_step;
  bool adds = Write == Into::kAdd;
  for (std::int64_t left = block.depth; left > 0; left -= kSlotRun) {
    Floats sum[Rows][Vectors];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) sum[r][v] = _mm512_setzero_ps();
    }
    for (std::int64_t k = min_of(left, kSlotRun); k > 0; --k) {
      Pairs right[Vectors];
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) right[v] = as_pairs(load_slots(b, v * block.b_vector_step));
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const Pairs factor = broadcast_pair(a, r * a_row_step);
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) sum[r][v] = multiply_add(factor, right[v], sum[r][v]);
      }
      a = slot_at(a, a_term_step);
      b = slot_at(b, block.b_term_step);
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) {
        float* to = block.c + r * block.ldc + v * kVector;
        _mm512_storeu_ps(to, adds ? _mm512_add_ps(_mm512_loadu_ps(to), sum[r][v]) : sum[r][v]);
      }
    }
    adds = true;
  }
}

/// All rows of Vectors vectors of columns.
template <int Vectors, AOrder Order, Into Write>
void multiply_rows(Block block, std::int64_t rows) {
  const auto step = [&block](std::int64_t count) {
    block.a = slot_at(block.a, count * block.a_row_step);
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
  Block block{.a = product.a,
              .b = product.b,
              .c = product.c,
              .depth = product.depth,
              .a_row_step = Order == AOrder::kRows ? product.lda : 1,
              .a_term_step = Order == AOrder::kRows ? 1 : product.lda,
              .b_term_step = ldb,
              .b_vector_step = panel_step,
              .ldc = product.ldc};
  std::int64_t panels = ceil_div(product.columns, kLane);
  for (; panels >= kBlockVectors; panels -= kBlockVectors) {
    multiply_rows<kBlockVectors, Order, Write>(block, product.rows);
    block.b = slot_at(block.b, kBlockVectors * panel_step);
    block.c += kBlockVectors * kLane;
  }
  if (panels == 1) multiply_rows<1, Order, Write>(block, product.rows);
}

}  // namespace

void multiply_packed(const TileProduct& product) {
  multiply<AOrder::kRows, Into::kOverwrite>(product, kLane, round_up(product.depth, kLane) * kLane);
}

void accumulate(const TileProduct& product) {
  multiply<AOrder::kRows, Into::kAdd>(product, product.ldb, kLane);
}

void accumulate_transposed(const TileProduct& product) {
  multiply<AOrder::kTransposed, Into::kAdd>(product, product.ldb, kLane);
}

}  // namespace foveal::cpu::avx512_bf16
FOVEAL_END_AVX512_BF16

#endif  // x86-64
