#include <array>
#include <cstring>

#include "core/host_device.hpp"
#include "cpu/portable/functions.hpp"

namespace foveal::cpu::portable {
namespace {

/// A row of the largest head size as floats.
using RowBuffer = std::array<float, kMaxHeaddim>;

void load_row(const MemoryRows& b, std::int64_t j, RowBuffer& row) {
  FOVEAL_ASSERT(b.columns <= kMaxHeaddim);
  switch (b.dtype) {
    case DType::kFloat16: return load_fp16(b.row(j), b.columns, row.data());
    case DType::kBFloat16: return load_bf16(b.row(j), b.columns, row.data());
    default: std::memcpy(row.data(), b.row(j), static_cast<std::size_t>(b.columns) * sizeof(float));
  }
}

}  // namespace

void multiply_memory(const RowProduct& product, const MemoryRows& b) {
  const auto* a = static_cast<const float*>(product.a);
  RowBuffer row;
  for (std::int64_t j = 0; j < b.count; ++j) {
    load_row(b, j, row);
    for (std::int64_t r = 0; r < product.rows; ++r) {
      product.c[r * product.ldc + j] = dot(a + r * product.lda, row.data(), b.columns);
    }
  }
}

void accumulate_memory(const RowProduct& product, const MemoryRows& b) {
  const auto* a = static_cast<const float*>(product.a);
  RowBuffer row;
  for (std::int64_t j = 0; j < b.count; ++j) {
    load_row(b, j, row);
    for (std::int64_t r = 0; r < product.rows; ++r) {
      const float factor = a[r * product.lda + j];
      float* c = product.c + r * product.ldc;
      for (std::int64_t d = 0; d < b.columns; ++d) c[d] += factor * row[static_cast<size_t>(d)];
    }
  }
}

}  // namespace foveal::cpu::portable
