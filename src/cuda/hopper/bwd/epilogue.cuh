// How dk and dv leave the registers.
#pragma once

#include <cstdint>

#include "cuda/hopper/bwd/shared_memory.cuh"
#include "cuda/portable/bwd/epilogue.cuh"
#include "cuda/ptx/special_registers.cuh"

namespace foveal::cuda::hopper::bwd {

/// Where a warp's 16 keys go: rows of the tile from `row` on, times scale.
struct GradientRows {
  const KeyOperand& gradient;
  const cuda::bwd::GradientInfo& info;
  bool in_units;
  const cuda::bwd::HeldTile& tile;
  int row;
  int columns;  ///< Of the head.
  float scale;
};

/// Lane t of four has word t of each of four units; afterwards it has the whole of unit t.
FOVEAL_DEVICE void transpose_quad(std::uint32_t (&w)[4]) {
  const bool odd = threadIdx.x % 2 != 0;
  const bool upper = threadIdx.x % 4 >= 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t got = __shfl_xor_sync(~0u, odd ? w[i] : w[i + 1], 1);
    (odd ? w[i] : w[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t got = __shfl_xor_sync(~0u, upper ? w[i] : w[i + 2], 2);
    (upper ? w[i] : w[i + 2]) = got;
  }
}

/// One row in units of 16 bytes. All lanes take part.
template <class Element, int kSums>
FOVEAL_DEVICE void store_units(Element* to, bool stored, bool used, int columns, float scale,
                               int half, const float (&sums)[kSums]) {
  const int first = 8 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
  for (int j = 0; j < kSums / 4; j += 4) {
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = &sums[4 * (j + i) + 2 * half];
      words[i] = used ? ptx::pack_pair<Element>(scale * pair[0], scale * pair[1]) : 0u;
    }
    transpose_quad(words);
    const int column = 8 * j + first;
    if (stored && column < columns) {
      *reinterpret_cast<uint4*>(to + column) = {words[0], words[1], words[2], words[3]};
    }
  }
}

/// Keys that are not used met nothing: their sums are 0.
template <class Element, int kSums>
FOVEAL_DEVICE void store_gradient(const GradientRows& at, const float (&sums)[kSums]) {
  if (at.info.dtype == DType::kNone) return;
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  const cuda::bwd::OperandRows rows =
      cuda::bwd::key_rows(at.gradient, {}, at.columns, at.tile.sequence, at.tile.head);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = at.tile.first + at.row + lane / 4 + 8 * half;
    const bool stored = at.tile.stored.contains(key);
    const bool used = at.tile.used.contains(key);
    const std::int64_t offset = rows.offset + key * rows.row_stride;
    auto* data = const_cast<void*>(rows.data);
    if (at.in_units) {
      store_units(static_cast<Element*>(data) + offset, stored, used, at.columns, at.scale, half,
                  sums);
    } else if (stored) {
#pragma unroll
      for (int j = 0; j < kSums / 4; ++j) {
        const int column = 8 * j + 2 * (lane % 4);
        cuda::bwd::store_pair(data, at.info, offset + column * rows.dim_stride, rows.dim_stride,
                              at.columns - column, used ? at.scale * sums[4 * j + 2 * half] : 0.0f,
                              used ? at.scale * sums[4 * j + 2 * half + 1] : 0.0f);
      }
    }
  }
}

/// Rows of any type and strides, by way of `scratch`: one such loop for all columns would be
/// unrolled with them.
template <int kSums>
FOVEAL_DEVICE void store_elements(const GradientRows& at, const cuda::bwd::OperandRows& rows,
                                  float* scratch, const float (&sums)[kSums]) {
  constexpr int kColumns = 32;
  const auto lane = static_cast<int>(ptx::thread_index_anew()) % 32;
#pragma unroll
  for (int first = 0; first < 2 * kSums; first += kColumns) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
      const int row = lane / 4 + i % 4 / 2 * 8;
      const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      scratch[row * kColumns + column] = sums[first / 2 + i];
    }
    __syncwarp();
    const int column = first + lane;
#pragma unroll 1
    for (int row = 0; row < 16; ++row) {
      const int key = at.tile.first + at.row + row;
      if (column >= at.columns || !at.tile.stored.contains(key)) continue;
      const float sum = at.tile.used.contains(key) ? scratch[row * kColumns + lane] : 0.0f;
      cuda::bwd::store_as(at.info.dtype, const_cast<void*>(rows.data),
                          rows.offset + key * rows.row_stride + column * rows.dim_stride,
                          at.scale * sum);
    }
    __syncwarp();
  }
}

/// The same between tiles of keys of a loop, where code is short and keeps nothing from before the
/// loop. `scratch`: 2 KiB of shared memory of the warp.
template <class Element, int kSums>
FOVEAL_DEVICE void store_gradient(const GradientRows& at, float* scratch,
                                  const float (&sums)[kSums]) {
  if (at.info.dtype == DType::kNone) return;
  const auto lane = static_cast<int>(ptx::thread_index_anew()) % 32;
  const cuda::bwd::OperandRows rows =
      cuda::bwd::key_rows(at.gradient, {}, at.columns, at.tile.sequence, at.tile.head);
  if (!at.in_units) {
    store_elements(at, rows, scratch, sums);
    return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = at.tile.first + at.row + lane / 4 + 8 * half;
    auto* to = static_cast<Element*>(const_cast<void*>(rows.data)) + rows.offset;
    store_units(to + key * rows.row_stride, at.tile.stored.contains(key),
                at.tile.used.contains(key), at.columns, at.scale, half, sums);
  }
}

}  // namespace foveal::cuda::hopper::bwd
