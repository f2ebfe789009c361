// Products of tiles of bf16 pairs on AMX: blocks of 32 x 32 of C in four tile registers, fed by two
// tiles of A and two of B. The processor sums the 16 slots of a step by themselves, in fp32; steps
// are added in ascending order.
#include "cpu/amx_bf16/table.hpp"
#if FOVEAL_WITH_AMX_BF16

#include <atomic>
#include <cstdint>

#include "cpu/amx_bf16/functions.hpp"
#include "cpu/avx512_bf16/lanes.hpp"

HWY_PUSH_ATTRIBUTES("amx-tile,amx-bf16")
namespace foveal::cpu::amx_bf16 {
namespace {

enum class AOrder { kRows, kTransposed };
enum class Into { kOverwrite, kAdd };

/// Rows, and slots of a row, of a tile register.
constexpr std::int64_t kTile = 16;
static_assert(kTile == kLane);

// Tile registers: C of (upper, lower) rows x (left, right) columns, A of upper and lower rows, B of
// left and right columns.
#define FOVEAL_AMX_C00 0
#define FOVEAL_AMX_C01 1
#define FOVEAL_AMX_C10 2
#define FOVEAL_AMX_C11 3
#define FOVEAL_AMX_A0 4
#define FOVEAL_AMX_A1 5
#define FOVEAL_AMX_B0 6
#define FOVEAL_AMX_B1 7

/// What ldtilecfg reads: the shapes of all tile registers.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  void set(int tile, std::int64_t num_rows, std::int64_t slots) {
    rows[tile] = static_cast<std::uint8_t>(num_rows);
    row_bytes[tile] = static_cast<std::uint16_t>(4 * slots);
  }
};
static_assert(sizeof(TileConfig) == 64);

/// The intrinsics are opaque to the compiler: memory must be as they see it before and after.
void publish_memory() { std::atomic_signal_fence(std::memory_order_seq_cst); }

/// C's blocks have upper + lower rows, A's and B's tiles `slots` of depth.
void configure(std::int64_t upper, std::int64_t lower, std::int64_t slots) {
  TileConfig config;
  config.set(FOVEAL_AMX_C00, upper, kTile);
  config.set(FOVEAL_AMX_C01, upper, kTile);
  config.set(FOVEAL_AMX_A0, upper, slots);
  config.set(FOVEAL_AMX_B0, slots, kTile);
  config.set(FOVEAL_AMX_B1, slots, kTile);
  if (lower > 0) {
    config.set(FOVEAL_AMX_C10, lower, kTile);
    config.set(FOVEAL_AMX_C11, lower, kTile);
    config.set(FOVEAL_AMX_A1, lower, slots);
  }
  publish_memory();
  _tile_loadconfig(&config);
}

/// A product over `num_steps` steps of depth, whose tiles and strides are in slots.
struct Block {
  const void* a0;
  const void* a1;  ///< Rows kTile and on.
  const void* b;
  float* c;
  std::int64_t num_steps;
  std::int64_t a_row_step;
  std::int64_t a_step;  ///< From a tile to the next along the depth.
  std::int64_t b_row_step;
  std::int64_t b_step;
  std::int64_t b_panel_step;  ///< From kTile columns to the next.
  std::int64_t ldc;
};

/// kRowTiles x kColumnTiles tiles of C.
template <int kRowTiles, int kColumnTiles>
void multiply_block(const Block& block, Into into) {
  const std::int64_t c_bytes = 4 * block.ldc;
  float* c0 = block.c;
  float* c1 = block.c + kTile * block.ldc;
  if (into == Into::kAdd) {
    _tile_loadd(FOVEAL_AMX_C00, c0, c_bytes);
    if constexpr (kColumnTiles == 2) _tile_loadd(FOVEAL_AMX_C01, c0 + kTile, c_bytes);
    if constexpr (kRowTiles == 2) _tile_loadd(FOVEAL_AMX_C10, c1, c_bytes);
    if constexpr (kRowTiles * kColumnTiles == 4) _tile_loadd(FOVEAL_AMX_C11, c1 + kTile, c_bytes);
  } else {
    _tile_zero(FOVEAL_AMX_C00);
    if constexpr (kColumnTiles == 2) _tile_zero(FOVEAL_AMX_C01);
    if constexpr (kRowTiles == 2) _tile_zero(FOVEAL_AMX_C10);
    if constexpr (kRowTiles * kColumnTiles == 4) _tile_zero(FOVEAL_AMX_C11);
  }
  for (std::int64_t step = 0; step < block.num_steps; ++step) {
    const void* b = slot_at(block.b, step * block.b_step);
    _tile_loadd(FOVEAL_AMX_B0, b, 4 * block.b_row_step);
    _tile_loadd(FOVEAL_AMX_A0, slot_at(block.a0, step * block.a_step), 4 * block.a_row_step);
    _tile_dpbf16ps(FOVEAL_AMX_C00, FOVEAL_AMX_A0, FOVEAL_AMX_B0);
    if constexpr (kColumnTiles == 2) {
      _tile_loadd(FOVEAL_AMX_B1, slot_at(b, block.b_panel_step), 4 * block.b_row_step);
      _tile_dpbf16ps(FOVEAL_AMX_C01, FOVEAL_AMX_A0, FOVEAL_AMX_B1);
    }
    if constexpr (kRowTiles == 2) {
      _tile_loadd(FOVEAL_AMX_A1, slot_at(block.a1, step * block.a_step), 4 * block.a_row_step);
      _tile_dpbf16ps(FOVEAL_AMX_C10, FOVEAL_AMX_A1, FOVEAL_AMX_B0);
    }
    if constexpr (kRowTiles * kColumnTiles == 4) {
      _tile_dpbf16ps(FOVEAL_AMX_C11, FOVEAL_AMX_A1, FOVEAL_AMX_B1);
    }
  }
  _tile_stored(FOVEAL_AMX_C00, c0, c_bytes);
  if constexpr (kColumnTiles == 2) _tile_stored(FOVEAL_AMX_C01, c0 + kTile, c_bytes);
  if constexpr (kRowTiles == 2) _tile_stored(FOVEAL_AMX_C10, c1, c_bytes);
  if constexpr (kRowTiles * kColumnTiles == 4) _tile_stored(FOVEAL_AMX_C11, c1 + kTile, c_bytes);
}

/// All columns of up to two tiles of rows.
template <int kRowTiles>
void multiply_columns(Block block, std::int64_t columns, Into into) {
  std::int64_t panels = ceil_div(columns, kTile);
  for (; panels >= 2; panels -= 2) {
    multiply_block<kRowTiles, 2>(block, into);
    block.b = slot_at(block.b, 2 * block.b_panel_step);
    block.c += 2 * kTile;
  }
  if (panels == 1) multiply_block<kRowTiles, 1>(block, into);
}

/// Tiles of A^T for 2 kTile rows, over as much depth as is multiplied at a time.
struct TransposedTiles {
  static constexpr std::int64_t kSteps = 8;
  static constexpr std::int64_t kTileSlots = kTile * kTile;

  alignas(64) std::uint32_t tiles[2][kSteps][kTileSlots];

  /// Rows [row, row + rows) of A^T, slots [begin, begin + slots) of its depth.
  void fill(const TileProduct& product, std::int64_t row, std::int64_t rows, std::int64_t begin,
            std::int64_t slots) {
    for (std::int64_t half = 0; half * kTile < rows; ++half) {
      for (std::int64_t from = 0; from < slots; from += kTile) {
        const void* a = slot_at(product.a, (begin + from) * product.lda + row + half * kTile);
        transpose_slots(a, product.lda, min_of(slots - from, kTile), tiles[half][from / kTile]);
      }
    }
    publish_memory();
  }
};

/// Where a product's right operand lies, in slots.
struct RightSteps {
  std::int64_t row;
  std::int64_t panel;
};

/// Slots [begin, begin + num_steps * slots) of the depth; `slots` < kTile for the last, ragged
/// ones.
template <AOrder Order>
void multiply_depth(const TileProduct& product, const RightSteps& right, std::int64_t begin,
                    std::int64_t num_steps, std::int64_t slots, Into into) {
  TransposedTiles transposed;
  std::int64_t configured = 0;
  for (std::int64_t row = 0; row < product.rows; row += 2 * kTile) {
    const std::int64_t rows = min_of(product.rows - row, 2 * kTile);
    const std::int64_t upper = min_of(rows, kTile);
    if (rows != configured) configure(upper, rows - upper, slots);
    configured = rows;
    Block block{.a0 = nullptr,
                .a1 = nullptr,
                .b = slot_at(product.b, begin * right.row),
                .c = product.c + row * product.ldc,
                .num_steps = num_steps,
                .a_row_step = product.lda,
                .a_step = kTile,
                .b_row_step = right.row,
                .b_step = kTile * right.row,
                .b_panel_step = right.panel,
                .ldc = product.ldc};
    if constexpr (Order == AOrder::kRows) {
      block.a0 = slot_at(product.a, row * product.lda + begin);
      block.a1 = slot_at(block.a0, kTile * product.lda);
    } else {
      transposed.fill(product, row, rows, begin, num_steps * slots);
      block.a0 = transposed.tiles[0];
      block.a1 = transposed.tiles[1];
      block.a_row_step = kTile;
      block.a_step = TransposedTiles::kTileSlots;
    }
    if (rows > kTile) {
      multiply_columns<2>(block, product.columns, into);
    } else {
      multiply_columns<1>(block, product.columns, into);
    }
  }
}

template <AOrder Order>
void multiply(const TileProduct& product, const RightSteps& right, std::int64_t depth, Into into) {
  constexpr std::int64_t kMaxSteps =
      Order == AOrder::kTransposed ? TransposedTiles::kSteps : kMaxHeaddim;
  publish_memory();
  std::int64_t begin = 0;
  for (std::int64_t steps = depth / kTile; steps > 0; steps -= kMaxSteps) {
    const std::int64_t count = min_of(steps, kMaxSteps);
    multiply_depth<Order>(product, right, begin, count, kTile, into);
    begin += count * kTile;
    into = Into::kAdd;
  }
  if (begin < depth) multiply_depth<Order>(product, right, begin, 1, depth - begin, into);
  _tile_release();
  publish_memory();
}

}  // namespace

void multiply_packed(const TileProduct& product) {
  const std::int64_t depth = round_up(product.depth, kLane);  // both operands are 0 from there on
  multiply<AOrder::kRows>(product, {kLane, depth * kLane}, depth, Into::kOverwrite);
}

void accumulate(const TileProduct& product) {
  multiply<AOrder::kRows>(product, {product.ldb, kLane}, product.depth, Into::kAdd);
}

void accumulate_transposed(const TileProduct& product) {
  multiply<AOrder::kTransposed>(product, {product.ldb, kLane}, product.depth, Into::kAdd);
}

}  // namespace foveal::cpu::amx_bf16
HWY_POP_ATTRIBUTES

#endif  // x86-64 Linux
