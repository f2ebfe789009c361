// The two products of attention on a warp's fragments. Accumulators have the layout of mma's c:
// lane (g, t) = (lane / 4, lane % 4) holds rows g and g + 8 of each 16, columns 2t and 2t + 1 of
// each 8.
//
// 16-bit elements: mma.m16n8k16. Floats: three TF32 products for each (tf32_product.cuh).
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/special_registers.cuh"
#include "cuda/tile/shared_tile.cuh"
#include "cuda/tile/tf32_product.cuh"

namespace foveal::cuda {

FOVEAL_DEVICE int lane_index() { return static_cast<int>(threadIdx.x) % 32; }

/// Rows [row, row + 16 * kRowTiles) of `a` times rows [key, key + 8 * kKeyTiles) of `b`,
/// transposed: c[i][j] += sum over the columns of b. Unit `a_unit` of a, a multiple of 8, meets
/// unit 0 of b.
template <int kRowTiles, int kKeyTiles, class Element, int kColumnsA, int kColumnsB>
FOVEAL_DEVICE void multiply_scores(float (&c)[kRowTiles][kKeyTiles][4],
                                   SharedTile<Element, kColumnsA> a, int row, int a_unit,
                                   SharedTile<Element, kColumnsB> b, int key) {
  static_assert(kKeyTiles % 2 == 0);
  const int lane = static_cast<int>(ptx::thread_index_anew() % 32);
  a.base += static_cast<std::uint32_t>(16 * a_unit);
  const LaneAddress rows_at(a, row + lane % 16, lane / 16);
  const LaneAddress keys_at(b, key + lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
  for (int step = 0; step < kColumnsB / 16; ++step) {
    std::uint32_t rows[kRowTiles][4];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) ptx::ldmatrix_x4(rows[i], rows_at.at(16 * i, 2 * step));
#pragma unroll
    for (int j = 0; j < kKeyTiles; j += 2) {
      std::uint32_t keys[4];
      ptx::ldmatrix_x4(keys, keys_at.at(8 * j, 2 * step));
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        ptx::mma_m16n8k16<Element>(c[i][j], rows[i], keys[0], keys[1]);
        ptx::mma_m16n8k16<Element>(c[i][j + 1], rows[i], keys[2], keys[3]);
      }
    }
  }
}

/// The weights of 16 keys as mma's a, from the accumulators of their two column tiles.
template <class Element>
FOVEAL_DEVICE void pack_weights(std::uint32_t (&a)[4], const float (&left)[4],
                                const float (&right)[4]) {
  a[0] = ptx::pack_pair<Element>(left[0], left[1]);
  a[1] = ptx::pack_pair<Element>(left[2], left[3]);
  a[2] = ptx::pack_pair<Element>(right[0], right[1]);
  a[3] = ptx::pack_pair<Element>(right[2], right[3]);
}

/// The columns that a warp accumulates where kGroups warps share its rows: group `group` has pairs
/// of column tiles group, group + kGroups, ..., so that all groups read whole lines of v.
template <int kGroups>
FOVEAL_HOST_DEVICE constexpr int group_column(int group, int column_tile) {
  return 16 * (column_tile / 2 * kGroups + group) + 8 * (column_tile % 2);
}

/// Where a lane reads values in accumulate_keys: rows of `b` from its first on, columns of `group`.
template <int kGroups, class Element, int kColumnsB>
FOVEAL_DEVICE LaneAddress<SharedTile<Element, kColumnsB>> values_address(
    SharedTile<Element, kColumnsB> b, int group) {
  const int lane = static_cast<int>(ptx::thread_index_anew() % 32);
  if constexpr (sizeof(Element) == 2) return {b, lane % 16, 2 * group + lane / 16};
  b.base += static_cast<std::uint32_t>(4 * (lane / 4));
  return {b, 2 * (lane % 4), group_column<kGroups>(group, 0) / 4};
}

/// c[i][j] += weights . rows [key, key + 16) of v, columns group_column<kGroups>(group, j).
template <int kGroups, int kRowTiles, int kColumnTiles, class Element, int kColumnsB>
FOVEAL_DEVICE void accumulate_keys(float (&c)[kRowTiles][kColumnTiles][4],
                                   const std::uint32_t (&weights)[kRowTiles][4],
                                   const LaneAddress<SharedTile<Element, kColumnsB>>& values_at,
                                   int key) {
  static_assert(kColumnTiles % 2 == 0);
#pragma unroll
  for (int j = 0; j < kColumnTiles; j += 2) {
    std::uint32_t values[4];
    ptx::ldmatrix_x4_trans(values, values_at.at(key, j * kGroups));
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      ptx::mma_m16n8k16<Element>(c[i][j], weights[i], values[0], values[1]);
      ptx::mma_m16n8k16<Element>(c[i][j + 1], weights[i], values[2], values[3]);
    }
  }
}

/// The same product for floats.
template <int kRowTiles, int kKeyTiles, int kColumnsA, int kColumnsB>
FOVEAL_DEVICE void multiply_scores(float (&c)[kRowTiles][kKeyTiles][4],
                                   SharedTile<float, kColumnsA> a, int row, int a_unit,
                                   SharedTile<float, kColumnsB> b, int key) {
  const int lane = static_cast<int>(ptx::thread_index_anew() % 32);
  const int g = lane / 4;
  const auto t_bytes = static_cast<std::uint32_t>(4 * (lane % 4));
  const LaneAddress rows_at(a, row + g, a_unit);
  const LaneAddress keys_at(b, key + g, 0);
#pragma unroll 4
  for (int step = 0; step < kColumnsB / 8; ++step) {
    Tf32Pair rows[kRowTiles][4];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        rows[i][e] = split_tf32(
            ptx::load_shared_float(rows_at.at(16 * i + 8 * (e % 2), 2 * step + e / 2) + t_bytes));
      }
    }
#pragma unroll
    for (int j = 0; j < kKeyTiles; ++j) {
      const Tf32Pair left =
          split_tf32(ptx::load_shared_float(keys_at.at(8 * j, 2 * step) + t_bytes));
      const Tf32Pair right =
          split_tf32(ptx::load_shared_float(keys_at.at(8 * j, 2 * step + 1) + t_bytes));
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) add_tf32_product(c[i][j], rows[i], left, right);
    }
  }
}

/// c[i][j] += weights . rows [key, key + 8) of v, columns group_column<kGroups>(group, j).
/// `weights` has mma's c layout: keys are taken in the order 0, 2, 4, 6, 1, 3, 5, 7, so that
/// registers fit mma's a without an exchange.
template <int kGroups, int kRowTiles, int kColumnTiles, int kColumnsB>
FOVEAL_DEVICE void accumulate_keys(float (&c)[kRowTiles][kColumnTiles][4],
                                   const float (&weights)[kRowTiles][4],
                                   const LaneAddress<SharedTile<float, kColumnsB>>& values_at,
                                   int key) {
  Tf32Pair a[kRowTiles][4];
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    a[i][0] = split_tf32(weights[i][0]);
    a[i][1] = split_tf32(weights[i][2]);
    a[i][2] = split_tf32(weights[i][1]);
    a[i][3] = split_tf32(weights[i][3]);
  }
#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j) {
    const std::uint32_t address = values_at.at(key, group_column<kGroups>(0, j) / 4);
    const Tf32Pair even = split_tf32(ptx::load_shared_float(address));
    const Tf32Pair odd =
        split_tf32(ptx::load_shared_float(address + SharedTile<float, kColumnsB>::kRowBytes));
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) add_tf32_product(c[i][j], a[i], even, odd);
  }
}

}  // namespace foveal::cuda
