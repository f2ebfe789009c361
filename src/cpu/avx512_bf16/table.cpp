#include "cpu/avx512_bf16/table.hpp"

#include <optional>
#include <string_view>

#include "cpu/avx512_bf16/functions.hpp"
#include "cpu/simd/tables.hpp"

namespace foveal::cpu::avx512_bf16 {

#if FOVEAL_WITH_AVX512_BF16
namespace {

std::optional<TileMath> make_table() {
  if (!__builtin_cpu_supports("avx512bf16")) return std::nullopt;
  for (const TileMath* avx512 : simd::tables()) {
    if (std::string_view(avx512->name) != "avx512") continue;
    TileMath table = *avx512;
    table.name = "avx512_bf16";
    table.slot_terms = 2;
    table.pair_rows = pair_rows;
    table.narrow = narrow;
    table.narrow_pairs = narrow_pairs;
    table.multiply_packed = multiply_packed;
    table.accumulate = accumulate;
    table.accumulate_transposed = accumulate_transposed;
    table.multiply_memory = multiply_memory;
    table.accumulate_memory = accumulate_memory;
    return table;  // its pack moves slots, whatever they hold
  }
  return std::nullopt;
}

}  // namespace

const TileMath* table() {
  static const std::optional<TileMath> available = make_table();
  return available ? &*available : nullptr;
}
#else
const TileMath* table() { return nullptr; }
#endif

}  // namespace foveal::cpu::avx512_bf16
