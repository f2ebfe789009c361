#include "cpu/tile_math.hpp"

#include <array>
#include <cstddef>

#include "cpu/amx_bf16/table.hpp"
#include "cpu/avx512_bf16/table.hpp"
#include "cpu/portable/functions.hpp"
#include "cpu/simd/tables.hpp"

namespace foveal::cpu {
namespace {

constexpr TileMath kPortable = {
    .name = "portable",
    .slot_terms = 1,
    .depth_step = 1,
    .pack = portable::pack,
    .pair_rows = nullptr,
    .narrow = nullptr,
    .narrow_pairs = nullptr,
    .multiply_packed = portable::multiply_packed,
    .accumulate = portable::accumulate,
    .accumulate_transposed = portable::accumulate_transposed,
    .multiply_memory = portable::multiply_memory,
    .accumulate_memory = portable::accumulate_memory,
    .row_max = portable::row_max,
    .exp_sum = portable::exp_sum,
    .scale = portable::scale,
    .cap = portable::cap,
    .score_gradients = portable::score_gradients,
    .dot = portable::dot,
    .load_fp16 = portable::load_fp16,
    .load_bf16 = portable::load_bf16,
    .store_fp16 = portable::store_fp16,
    .store_bf16 = portable::store_bf16,
};

/// Sets with a table come after those that include them; what is above the best table ranks with
/// it.
int rank(std::string_view isa) {
  if (isa == "portable") return 0;
  if (isa == "sse4" || isa == "neon") return 1;
  if (isa == "avx2") return 2;
  if (isa == "avx512") return 3;
  return isa == "avx512_bf16" ? 4 : 5;  // amx_bf16
}

/// The fastest first, the portable one last.
struct AllTables {
  std::array<const TileMath*, 8> list{};
  std::size_t count = 0;

  AllTables() {
    if (const TileMath* table = amx_bf16::table()) list[count++] = table;
    if (const TileMath* table = avx512_bf16::table()) list[count++] = table;
    for (const TileMath* table : simd::tables()) list[count++] = table;
    list[count++] = &kPortable;
  }
};

}  // namespace

const TileMath& portable_tile_math() { return kPortable; }

std::span<const TileMath* const> tile_maths() {
  static const AllTables all;
  return {all.list.data(), all.count};
}

const TileMath& tile_math(DType dtype, std::string_view isa) {
  for (const TileMath* table : tile_maths()) {
    if (table->slot_terms == 2 && dtype != DType::kBFloat16) continue;
    if (isa.empty() || rank(table->name) <= rank(isa)) return *table;
  }
  return kPortable;
}

}  // namespace foveal::cpu
