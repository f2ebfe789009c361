#include "cpu/portable/functions.hpp"
#include "cpu/portable/lanes.hpp"

namespace foveal::cpu::portable {
namespace {

enum class AOrder { kRows, kTransposed };
enum class Into { kOverwrite, kAdd };

/// A TileProduct of floats.
struct FloatProduct {
  explicit FloatProduct(const TileProduct& product)
      : rows(product.rows),
        columns(product.columns),
        depth(product.depth),
        a(static_cast<const float*>(product.a)),
        lda(product.lda),
        b(static_cast<const float*>(product.b)),
        ldb(product.ldb),
        c(product.c),
        ldc(product.ldc) {}

  std::int64_t rows, columns, depth;
  const float* a;
  std::int64_t lda;
  const float* b;
  std::int64_t ldb;
  float* c;
  std::int64_t ldc;
};

/// A register block: Rows rows by 4 * Vectors columns. Every element is one running sum over the
/// depth in ascending order, whatever the block's shape and place.
template <int Rows, int Vectors, AOrder Order, Into Write>
void multiply_block(const FloatProduct& block) {
  Float4 sum[Rows][Vectors] = {};
  const float* a = block.a;
  const float* b = block.b;
  for (std::int64_t k = 0; k < block.depth; ++k) {
    Float4 right[Vectors];
    for (int v = 0; v < Vectors; ++v) right[v] = load(b + v * kVector);
    for (int r = 0; r < Rows; ++r) {
      const Float4 left = broadcast(Order == AOrder::kRows ? a[r * block.lda] : a[r]);
      for (int v = 0; v < Vectors; ++v) sum[r][v] += left * right[v];
    }
    a += Order == AOrder::kRows ? 1 : block.lda;
    b += block.ldb;
  }
  for (int r = 0; r < Rows; ++r) {
    float* c = block.c + r * block.ldc;
    for (int v = 0; v < Vectors; ++v) {
      const Float4 value = Write == Into::kAdd ? load(c + v * kVector) + sum[r][v] : sum[r][v];
      store(value, c + v * kVector);
    }
  }
}

/// All rows of one panel of kLane columns. Four rows by eight columns fill the sixteen registers of
/// SSE2; fewer rows take more columns, to have enough sums under way.
template <AOrder Order, Into Write>
void multiply_panel(FloatProduct panel) {
  const std::int64_t row_step = Order == AOrder::kRows ? panel.lda : 1;
  std::int64_t rows = panel.rows;
  for (; rows >= 4; rows -= 4) {
    FloatProduct block = panel;
    multiply_block<4, 2, Order, Write>(block);
    block.b += 2 * kVector;
    block.c += 2 * kVector;
    multiply_block<4, 2, Order, Write>(block);
    panel.a += 4 * row_step;
    panel.c += 4 * panel.ldc;
  }
  if (rows >= 2) {
    multiply_block<2, 4, Order, Write>(panel);
    panel.a += 2 * row_step;
    panel.c += 2 * panel.ldc;
    rows -= 2;
  }
  if (rows == 1) multiply_block<1, 4, Order, Write>(panel);
}

/// One panel, run by run of the depth.
template <AOrder Order, Into Write>
void multiply_runs(FloatProduct panel) {
  const std::int64_t a_step = Order == AOrder::kRows ? 1 : panel.lda;
  const std::int64_t depth = panel.depth;
  panel.depth = min_of(depth, kDepthRun);
  multiply_panel<Order, Write>(panel);
  for (std::int64_t k = kDepthRun; k < depth; k += kDepthRun) {
    panel.a += kDepthRun * a_step;
    panel.b += kDepthRun * panel.ldb;
    panel.depth = min_of(depth - k, kDepthRun);
    multiply_panel<Order, Into::kAdd>(panel);
  }
}

template <AOrder Order, Into Write>
void multiply_panels(const TileProduct& product, std::int64_t b_panel_step) {
  FloatProduct panel(product);
  for (std::int64_t column = 0; column < product.columns; column += kLane) {
    multiply_runs<Order, Write>(panel);
    panel.b += b_panel_step;
    panel.c += kLane;
  }
}

/// Four rows of four become four columns of four.
void transpose_4x4(const float* rows, std::int64_t ld, float* to, std::int64_t to_ld) {
  const Float4 r0 = load(rows);
  const Float4 r1 = load(rows + ld);
  const Float4 r2 = load(rows + 2 * ld);
  const Float4 r3 = load(rows + 3 * ld);
  const Float4 low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
  const Float4 high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
  const Float4 low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
  const Float4 high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
  store(__builtin_shufflevector(low01, low23, 0, 1, 4, 5), to);
  store(__builtin_shufflevector(low01, low23, 2, 3, 6, 7), to + to_ld);
  store(__builtin_shufflevector(high01, high23, 0, 1, 4, 5), to + 2 * to_ld);
  store(__builtin_shufflevector(high01, high23, 2, 3, 6, 7), to + 3 * to_ld);
}

}  // namespace

/// Packed layout: panels of kLane rows; within a panel [round_up(d, kLane)][kLane], so that a
/// product reads it from one end to the other.
void pack(const void* rows_of_b, std::int64_t ld, std::int64_t n, std::int64_t slots, void* to) {
  const auto* rows = static_cast<const float*>(rows_of_b);
  auto* packed = static_cast<float*>(to);
  const std::int64_t depth = round_up(slots, kLane);
  for (std::int64_t panel = 0; panel < n; panel += kLane) {
    for (std::int64_t row = 0; row < kLane; row += kVector) {
      const float* from = rows + (panel + row) * ld;
      for (std::int64_t k = 0; k < depth; k += kVector) {
        transpose_4x4(from + k, ld, packed + k * kLane + row, kLane);
      }
    }
    packed += depth * kLane;
  }
}

void multiply_packed(const TileProduct& product) {
  TileProduct panels = product;
  panels.ldb = kLane;
  multiply_panels<AOrder::kRows, Into::kOverwrite>(panels, round_up(product.depth, kLane) * kLane);
}

void accumulate(const TileProduct& product) {
  multiply_panels<AOrder::kRows, Into::kAdd>(product, kLane);
}

void accumulate_transposed(const TileProduct& product) {
  multiply_panels<AOrder::kTransposed, Into::kAdd>(product, kLane);
}

}  // namespace foveal::cpu::portable
