// The arithmetic of a tile: the one seam between the CPU kernels and an instruction set. A kernel
// holds a `const TileMath&` and never multiplies, exponentiates or converts a row by itself, so a
// new instruction set is one more table and no change in a kernel.
//
// Tiles live in a worker's slab and consist of slots of four bytes. Scores and sums are fp32, one a
// slot. Operands of products are what the table says: one fp32, or a pair of bf16 that are
// neighbours along the depth of the product (slot_terms 1 or 2).
//   A tile is row-major, each row begins on a 64-byte boundary and is `tile_ld(slots)` slots long,
//   an odd number of cache lines, so that the rows of a power-of-two head size spread over all
//   sets; a tile has storage for round_up(rows, kLane) rows; slots [slots, round_up(slots, kLane))
//   of an operand's row are 0 (tile_load.hpp sees to it) and are computed along with the others, so
//   that no loop has a ragged end in its columns; any number of rows >= 1 is allowed: the value of
//   an element doesn't depend on how many rows or columns its tile has, nor on where in the tile it
//   stands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <foveal/tensor.hpp>

#include "core/integer.hpp"

namespace foveal::cpu {

/// Slots of a cache line. Columns are padded to it; tile.n of a kernel is a multiple of it.
inline constexpr std::int64_t kLane = 16;
/// Elements of the longest row: the limit of headdim and headdim_v.
inline constexpr std::int64_t kMaxHeaddim = 512;
/// Terms that one running sum of a product takes; the sums of longer depths are added up. Rounding
/// errors then grow with the square root of this, not of headdim.
inline constexpr std::int64_t kDepthRun = 128;
/// Alignment of tiles and slabs in bytes.
inline constexpr std::size_t kTileAlignment = 64;

/// Leading dimension of a tile of so many columns, in slots.
constexpr std::int64_t tile_ld(std::int64_t columns) {
  return (ceil_div(columns, kLane) | 1) * kLane;
}

/// Slots of a row-major tile.
constexpr std::int64_t tile_floats(std::int64_t rows, std::int64_t columns) {
  return round_up(rows, kLane) * tile_ld(columns);
}

/// Slots of a packed right operand of `TileMath::multiply_packed`, for `n` rows of `depth` slots.
constexpr std::int64_t packed_floats(std::int64_t n, std::int64_t depth) {
  return round_up(n, kLane) * round_up(depth, kLane);
}

/// C[rows, columns] from the operands A and B over `depth` slots. C has storage for, and the
/// product writes, round_up(columns, kLane) columns; B has as many. Only `rows` rows of C are
/// touched. A, B and C don't overlap. Leading dimensions count slots.
struct TileProduct {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t depth = 0;
  const void* a = nullptr;
  std::int64_t lda = 0;
  const void* b = nullptr;
  std::int64_t ldb = 0;
  float* c = nullptr;
  std::int64_t ldc = 0;
};

/// Rows of k or v where they lie in memory, in their own dtype and at any alignment. `columns` is a
/// multiple of kLane and the elements of a row lie side by side.
struct MemoryRows {
  const std::byte* const* rows = nullptr;
  std::int64_t count = 0;
  std::int64_t columns = 0;
  DType dtype = DType::kNone;
  std::int64_t offset = 0;  ///< bytes from each of `rows` to where the row begins
  /// Rows of as many bytes that are read next: the caches are asked for them meanwhile.
  const std::byte* const* ahead = nullptr;
  std::int64_t num_ahead = 0;
  std::int64_t ahead_offset = 0;

  [[nodiscard]] const std::byte* row(std::int64_t j) const { return rows[j] + offset; }
  /// What to ask for while row j is used: where nothing is read later, that row.
  [[nodiscard]] const std::byte* row_ahead(std::int64_t j) const {
    return j < num_ahead ? ahead[j] + ahead_offset : row(min_of(j, count - 1));
  }
};

/// The left operand and the result of a product with rows in memory; A and C are tiles.
struct RowProduct {
  std::int64_t rows = 0;
  const void* a = nullptr;
  std::int64_t lda = 0;
  float* c = nullptr;
  std::int64_t ldc = 0;

  /// Where a row begins.
  [[nodiscard]] const float* left(std::int64_t row) const {
    return static_cast<const float*>(a) + row * lda;
  }
  [[nodiscard]] float* result(std::int64_t row) const { return c + row * ldc; }
};

struct TileMath {
  const char* name;

  /// Terms of a product in a slot of an operand: 1 of fp32 or 2 of bf16.
  std::int64_t slot_terms;
  /// Slots of depth that are summed together before they are added to the sum so far: a product
  /// that leaves out leading zeros has the same bits where it leaves out a multiple of these.
  std::int64_t depth_step;

  // Products. q.k^T and dout.v^T go through a packed right operand, whose layout is the table's
  // own (at most packed_floats slots). The others take a right operand whose rows are terms: with
  // one term a slot it is v or k as it was loaded, with two it comes from pair_rows, as does the
  // left operand of accumulate_transposed.

  /// Packs rows[n, depth slots] (n padded with zero rows to kLane) as the right operand of
  /// multiply_packed.
  void (*pack)(const void* rows, std::int64_t ld, std::int64_t n, std::int64_t depth, void* packed);
  /// Two terms a slot: slot [i, column] becomes rows 2i and 2i + 1 of element `column`; an odd last
  /// row is paired with 0. `count` elements, a multiple of kLane; null with one term a slot.
  void (*pair_rows)(const void* rows, std::int64_t ld, std::int64_t n, std::int64_t count,
                    void* pairs, std::int64_t ld_pairs);
  /// Two terms a slot: fp32 to a row of an operand, subnormals to 0; `count` is a multiple of
  /// kLane. Null with one term a slot, where a row of fp32 is an operand.
  void (*narrow)(const float* from, std::int64_t count, void* to);
  /// pair_rows of rows of fp32, each narrowed.
  void (*narrow_pairs)(const float* rows, std::int64_t ld, std::int64_t n, std::int64_t count,
                       void* pairs, std::int64_t ld_pairs);
  /// C = A[rows, depth] . Bt[columns, depth]^T. `b` is the packed Bt; `ldb` is not used.
  void (*multiply_packed)(const TileProduct& product);
  /// C += A[rows, depth] . B[depth, columns]
  void (*accumulate)(const TileProduct& product);
  /// C += A[depth, rows]^T . B[depth, columns]
  void (*accumulate_transposed)(const TileProduct& product);

  // Products with rows in memory, read once: for tiles of a few rows, whose time is that of the
  // memory. Here too an element's value doesn't depend on the other rows and columns.

  /// C[rows, b.count] = A[rows, b.columns] . B^T; nothing is written past b.count.
  void (*multiply_memory)(const RowProduct& product, const MemoryRows& b);
  /// C[rows, b.columns] += A[rows, b.count] . B, some 16 or 32 keys at a time: a call for a
  /// multiple of 32 keys and one for the others have the bits of one for all.
  void (*accumulate_memory)(const RowProduct& product, const MemoryRows& b);

  // Rows. `count` is a multiple of kLane and rows are 64-byte aligned, save where said otherwise.

  /// The largest element; NaN is passed over, and -inf is the answer for nothing but NaN.
  float (*row_max)(const float* row, std::int64_t count);
  /// row = exp(factor * row - offset), factor > 0, and the sum of it. exp(-inf) is 0, exp(0) is 1,
  /// NaN stays NaN.
  float (*exp_sum)(float* row, std::int64_t count, float factor, float offset);
  /// row = row * factor
  void (*scale)(float* row, std::int64_t count, float factor);
  /// row = softcap * tanh(row / softcap), softcap > 0
  void (*cap)(float* row, std::int64_t count, float softcap);
  /// ds = p * (ds - delta)
  void (*score_gradients)(const float* p, float delta, float* ds, std::int64_t count);
  /// sum of a * b, any count
  float (*dot)(const float* a, const float* b, std::int64_t count);

  // Conversion of `count` (any) elements that lie side by side. The memory side needs no alignment.

  void (*load_fp16)(const std::byte* from, std::int64_t count, float* to);
  void (*load_bf16)(const std::byte* from, std::int64_t count, float* to);
  void (*store_fp16)(const float* from, std::int64_t count, std::byte* to);
  void (*store_bf16)(const float* from, std::int64_t count, std::byte* to);

  /// Slots of an operand's row of so many terms.
  [[nodiscard]] constexpr std::int64_t slots(std::int64_t terms) const {
    return ceil_div(terms, slot_terms);
  }
  /// Term `index` of an operand's row.
  [[nodiscard]] const void* term_at(const void* row, std::int64_t index) const {
    return static_cast<const std::byte*>(row) + index * 4 / slot_terms;
  }
};

/// The slot at `offset` slots from the beginning of an operand.
inline const void* slot_at(const void* operand, std::int64_t offset) {
  return static_cast<const std::byte*>(operand) + offset * 4;
}
inline void* slot_at(void* operand, std::int64_t offset) {
  return static_cast<std::byte*>(operand) + offset * 4;
}

/// The fastest table for operands of `dtype` that needs no more than instruction set `isa`, a name
/// as in DeviceInfo::isa or KernelConfig::isa; empty: than the processor has. A plan has the name
/// of its table, so that equal plans have equal bits.
[[nodiscard]] const TileMath& tile_math(DType dtype, std::string_view isa = {});

/// The table that every compiler can build.
[[nodiscard]] const TileMath& portable_tile_math();

/// All tables that this machine can run, the fastest first; the tests hold each of them to what is
/// said above.
[[nodiscard]] std::span<const TileMath* const> tile_maths();

}  // namespace foveal::cpu
