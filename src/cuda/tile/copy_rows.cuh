// Copies rows of q, k or v from global memory into a shared tile, by all threads of a block: 16
// bytes at a time past the registers where rows allow it, else element by element.
#pragma once

#include <cstdint>
#include <limits>

#include "algorithm/kv_locator.hpp"
#include "algorithm/range.hpp"
#include "core/host_device.hpp"
#include "core/integer.hpp"
#include "cuda/ptx/copy_async.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/special_registers.cuh"
#include "cuda/tile/element.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace foveal::cuda {

/// The elements of a row: columns [0, columns) exist, the tile's others are 0.
struct RowElements {
  const void* data = nullptr;
  std::int64_t dim_stride = 1;
  std::int32_t columns = 0;
  /// Rows begin at multiples of 16 bytes, their elements are adjacent, and `columns` is whole
  /// units: what copy_rows_async needs.
  bool whole_units = false;
};

/// Marks a row that is not there: its elements are 0.
inline constexpr std::int64_t kNoRow = std::numeric_limits<std::int64_t>::min();

/// How the threads of a block walk over a tile: eight (four) neighbours take a line of as many
/// units, which is 128 (64) bytes of a row, others the rows and lines beside it. All that a thread
/// visits lies at distances known when compiling.
template <int kRows, int kThreads, class Tile>
struct TileWalk {
  static constexpr int kLineUnits = Tile::kPeriod;
  static constexpr int kLines = Tile::kUnits / kLineUnits;
  static constexpr int kPassRows = min_of(kRows, kThreads / kLineUnits);
  static constexpr int kPassLines = kThreads / kLineUnits / kPassRows;
  static_assert(kPassRows % 8 == 0 && kRows % kPassRows == 0 && kLines % kPassLines == 0);

  int row;
  int unit;

  FOVEAL_DEVICE static TileWalk of_thread() {
    const int thread = ptx::thread_index_anew();
    const int line = thread / kLineUnits / kPassRows;
    return {thread / kLineUnits % kPassRows, line * kLineUnits + thread % kLineUnits};
  }
  static constexpr int kRowSteps = kRows / kPassRows;
  static constexpr int kLineSteps = kLines / kPassLines;
  FOVEAL_DEVICE static constexpr int row_step(int step) { return step * kPassRows; }
  FOVEAL_DEVICE static constexpr int unit_step(int step) { return step * kPassLines * kLineUnits; }
};

/// kRows rows into `tile`. row_offset(r) is the offset of row r's column 0 in elements, or kNoRow;
/// columns begin at `first_column`. The bytes are there after copy_async_wait and a barrier.
template <int kRows, int kThreads, class Element, int kColumns, class RowOffset>
FOVEAL_DEVICE void copy_rows_async(SharedTile<Element, kColumns> tile, const RowElements& elements,
                                   int first_column, const RowOffset& row_offset) {
  using Tile = SharedTile<Element, kColumns>;
  using Walk = TileWalk<kRows, kThreads, Tile>;
  const Walk walk = Walk::of_thread();
  const std::uint32_t to = tile.address(walk.row, walk.unit);
  const auto* data = static_cast<const Element*>(elements.data);
  const int column = first_column + walk.unit * Tile::kUnitElements;
#pragma unroll
  for (int i = 0; i < Walk::kRowSteps; ++i) {
    const std::int64_t offset = row_offset(walk.row + Walk::row_step(i));
    const bool there = offset != kNoRow;
    const Element* from = there ? data + offset + column : data;
#pragma unroll
    for (int j = 0; j < Walk::kLineSteps; ++j) {
      const int step = Walk::unit_step(j);
      const bool valid = there && column + step * Tile::kUnitElements < elements.columns;
      ptx::copy_async_16(to + Walk::row_step(i) * Tile::kRowBytes + 16 * step,
                         valid ? from + step * Tile::kUnitElements : data, valid);
    }
  }
}

/// The same for rows of any stride and alignment, through registers.
template <int kRows, int kThreads, class Element, int kColumns, class RowOffset>
FOVEAL_DEVICE void copy_rows_by_element(SharedTile<Element, kColumns> tile,
                                        const RowElements& elements, int first_column,
                                        const RowOffset& row_offset) {
  using Tile = SharedTile<Element, kColumns>;
  constexpr int kUnits = kRows * Tile::kUnits;
  const auto* data = static_cast<const Element*>(elements.data);
#pragma unroll 1
  for (int index = ptx::thread_index_anew(); index < kUnits; index += kThreads) {
    const int row = index / Tile::kUnits;
    const int unit = index % Tile::kUnits;
    const int column = first_column + unit * Tile::kUnitElements;
    const std::int64_t offset = row_offset(row);
    const int count = offset == kNoRow ? 0 : elements.columns - column;
    alignas(16) Element values[Tile::kUnitElements];
#pragma unroll
    for (int e = 0; e < Tile::kUnitElements; ++e) {
      values[e] =
          e < count ? data[offset + (column + e) * elements.dim_stride] : from_float<Element>(0.0f);
    }
    ptx::store_shared_16(tile.address(row, unit), *reinterpret_cast<const uint4*>(values));
  }
}

template <int kRows, int kThreads, class Element, int kColumns, class RowOffset>
FOVEAL_DEVICE void copy_rows(SharedTile<Element, kColumns> tile, const RowElements& elements,
                             int first_column, const RowOffset& row_offset) {
  if (elements.whole_units) {
    copy_rows_async<kRows, kThreads>(tile, elements, first_column, row_offset);
  } else {
    copy_rows_by_element<kRows, kThreads>(tile, elements, first_column, row_offset);
  }
}

/// Keys of one sequence and KV head: where they lie, and which of them may be read. The others are
/// 0 in the tile, so that nothing of them reaches a result.
struct KeyRows {
  RowElements elements;
  algorithm::KvLocator at;
  algorithm::Range readable;
};

/// Keys [first_key, first_key + kRows).
template <int kRows, int kThreads, class Element, int kColumns>
FOVEAL_DEVICE void copy_keys(SharedTile<Element, kColumns> tile, const KeyRows& keys,
                             std::int64_t first_key, int first_column) {
  const std::int64_t begin = max_of(first_key, keys.readable.min);
  const std::int64_t end = min_of(first_key + kRows, keys.readable.max);
  const int row_min = static_cast<int>(min_of<std::int64_t>(begin - first_key, kRows));
  const int row_max = static_cast<int>(max_of<std::int64_t>(end - first_key, 0));
  const bool any = begin < end;
  if (!any || keys.at.contiguous_rows(begin, end - begin) >= end - begin) {
    const std::int64_t origin = any ? keys.at.row_offset(begin) : 0;
    const std::int64_t stride = keys.at.layout.row_stride;
    copy_rows<kRows, kThreads>(tile, keys.elements, first_column, [=](int row) {
      return row >= row_min && row < row_max ? origin + (row - row_min) * stride : kNoRow;
    });
  } else {
    copy_rows<kRows, kThreads>(tile, keys.elements, first_column, [&](int row) {
      return row >= row_min && row < row_max ? keys.at.row_offset(first_key + row) : kNoRow;
    });
  }
}

}  // namespace foveal::cuda
