#include "cpu/tile_math.hpp"

#include <cstring>

#include "core/half.hpp"
#include "cpu/portable/functions.hpp"

namespace foveal::cpu {
namespace {

template <class T>
void load_elements(const std::byte* from, std::int64_t count, float* to) {
  for (std::int64_t j = 0; j < count; ++j) {
    T element;
    std::memcpy(&element, from + j * static_cast<std::int64_t>(sizeof element), sizeof element);
    to[j] = to_float(element);
  }
}

template <class T>
void store_elements(const float* from, std::int64_t count, std::byte* to) {
  for (std::int64_t j = 0; j < count; ++j) {
    const T element = from_float<T>(from[j]);
    std::memcpy(to + j * static_cast<std::int64_t>(sizeof element), &element, sizeof element);
  }
}

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
    .load_fp16 = load_elements<Half>,
    .load_bf16 = load_elements<BFloat16>,
    .store_fp16 = store_elements<Half>,
    .store_bf16 = store_elements<BFloat16>,
};

}  // namespace

const TileMath& portable_tile_math() { return kPortable; }

const TileMath& tile_math(DType /*dtype*/) { return kPortable; }

}  // namespace foveal::cpu
