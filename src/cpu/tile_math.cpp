#include "cpu/tile_math.hpp"

#include "cpu/portable/functions.hpp"

namespace foveal::cpu {
namespace {

constexpr TileMath kPortable = {
    .name = "portable",
    .pack = portable::pack,
    .multiply_packed = portable::multiply_packed,
    .accumulate = portable::accumulate,
    .accumulate_transposed = portable::accumulate_transposed,
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

}  // namespace

const TileMath& portable_tile_math() { return kPortable; }

std::span<const TileMath* const> tile_maths() {
  static constexpr const TileMath* kTables[] = {&kPortable};
  return kTables;
}

const TileMath& tile_math(DType /*dtype*/) { return kPortable; }

}  // namespace foveal::cpu
