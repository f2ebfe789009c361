#include "cpu/tile_math.hpp"

#include <array>
#include <cstddef>

#include "cpu/portable/functions.hpp"
#include "cpu/simd/tables.hpp"

namespace foveal::cpu {
namespace {

constexpr TileMath kPortable = {
    .name = "portable",
    .pack = portable::pack,
    .multiply_packed = portable::multiply_packed,
    .accumulate = portable::accumulate,
    .accumulate_transposed = portable::accumulate_transposed,
    .multiply_memory = portable::multiply_memory,
    .accumulate_memory = portable::accumulate_memory,
    .row_max = portable::row_max,
    .exp_sum = portable::exp_sum,
    .scale = portable::scale,
    .cap = portable::cap,
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
  return 3;  // avx512, avx512_bf16, amx_bf16
}

/// The fastest first, the portable one last.
struct AllTables {
  std::array<const TileMath*, 8> list{};
  std::size_t count = 0;

  AllTables() {
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

const TileMath& tile_math(DType /*dtype*/, std::string_view isa) {
  for (const TileMath* table : tile_maths()) {
    if (isa.empty() || rank(table->name) <= rank(isa)) return *table;
  }
  return kPortable;
}

}  // namespace foveal::cpu
