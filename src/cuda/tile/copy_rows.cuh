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
    const unsigned thread = ptx::thread_index_anew();
    const unsigned line = thread / kLineUnits / kPassRows;
    return {static_cast<int>(thread / kLineUnits % kPassRows),
            static_cast<int>(line * kLineUnits + thread % kLineUnits)};
  }
  static constexpr int kRowSteps = kRows / kPassRows;
  static constexpr int kLineSteps = kLines / kPassLines;
  FOVEAL_DEVICE static constexpr int row_step(int step) { return step * kPassRows; }
  FOVEAL_DEVICE static constexpr int unit_step(int step) { return step * kPassLines * kLineUnits; }
};

/// kRows rows of whole units that are all there, as wide as the tile, `row_stride` elements apart
/// from `data` on. The bytes are there after copy_async_wait and a barrier.
template <int kRows, int kThreads, class Element, int kColumns>
FOVEAL_DEVICE void copy_whole_rows(SharedTile<Element, kColumns> tile, const Element* data,
                                   std::int64_t row_stride) {
  using Tile = SharedTile<Element, kColumns>;
  using Walk = TileWalk<kRows, kThreads, Tile>;
  const Walk walk = Walk::of_thread();
  const std::uint32_t to = tile.address(walk.row, walk.unit);
  const Element* from = data + walk.row * row_stride + walk.unit * Tile::kUnitElements;
  const std::int64_t step = Walk::row_step(1) * row_stride;
#pragma unroll
  for (int i = 0; i < Walk::kRowSteps; ++i) {
#pragma unroll
    for (int j = 0; j < Walk::kLineSteps; ++j) {
      ptx::copy_async_16(to + Walk::row_step(i) * Tile::kRowBytes + 16 * Walk::unit_step(j),
                         from + Walk::unit_step(j) * Tile::kUnitElements);
    }
    from += step;
  }
}

/// kRows rows of whole units into `tile`. row_offset(r) is the offset of row r's column 0 in
/// elements, or kNoRow; columns begin at `first_column`.
template <int kRows, int kThreads, class Element, int kColumns, class RowOffset>
FOVEAL_DEVICE void copy_rows_async(SharedTile<Element, kColumns> tile, const RowElements& elements,
                                   int first_column, const RowOffset& row_offset) {
  using Tile = SharedTile<Element, kColumns>;
  using Walk = TileWalk<kRows, kThreads, Tile>;
  const Walk walk = Walk::of_thread();
  const auto* data = static_cast<const Element*>(elements.data);
  const int column = first_column + walk.unit * Tile::kUnitElements;
#pragma unroll 1
  for (int i = 0; i < Walk::kRowSteps; ++i) {
    const int row = walk.row + Walk::row_step(i);
    const std::int64_t offset = row_offset(row);
    const std::uint32_t to = tile.address(row, walk.unit);
#pragma unroll
    for (int j = 0; j < Walk::kLineSteps; ++j) {
      const int step = Walk::unit_step(j);
      const int at = column + step * Tile::kUnitElements;
      const bool valid = offset != kNoRow && at < elements.columns;
      ptx::copy_async_16(to + 16 * step, valid ? data + offset + at : data, valid);
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
  for (int index = static_cast<int>(ptx::thread_index_anew()); index < kUnits; index += kThreads) {
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
  /// Keys [plain_min, plain_max) may be read and lie in whole units of full width, key j at
  /// plain_origin + j * row stride: most tiles of most problems, told by two comparisons.
  const void* plain_origin = nullptr;
  std::int32_t plain_min = 0;
  std::int32_t plain_max = 0;

  RowElements elements;
  algorithm::KvLocator at;
  algorithm::Range readable;
};

/// Of tiles kWidth columns wide. `seen` are the keys that may be read.
template <class Element, int kWidth>
FOVEAL_DEVICE KeyRows key_rows(const RowElements& elements, const algorithm::KvLocator& at,
                               algorithm::Range seen) {
  KeyRows keys;
  keys.elements = elements;
  keys.at = at;
  keys.readable = seen;
  if (elements.whole_units && elements.columns == kWidth && at.pages == nullptr) {
    keys.plain_origin = static_cast<const Element*>(elements.data) + at.row_offset(0);
    keys.plain_min = static_cast<std::int32_t>(seen.min);
    keys.plain_max = static_cast<std::int32_t>(seen.max);
  }
  return keys;
}

/// Keys [first_key, first_key + kRows) into `tile`, columns from `first_column` on. `row_stride` is
/// that of the operand's layout, from where reading it costs least.
template <int kRows, int kThreads, class Element, int kColumns>
FOVEAL_DEVICE void copy_keys(SharedTile<Element, kColumns> tile, const KeyRows& keys,
                             std::int64_t row_stride, std::int32_t first_key, int first_column) {
  if (first_key >= keys.plain_min && first_key + kRows <= keys.plain_max) {
    const auto* origin = static_cast<const Element*>(keys.plain_origin);
    copy_whole_rows<kRows, kThreads>(tile, origin + first_key * row_stride + first_column,
                                     row_stride);
    return;
  }
  const std::int64_t end_key = std::int64_t{first_key} + kRows;
  const bool whole = keys.elements.whole_units &&
                     first_column + kColumns <= keys.elements.columns &&
                     first_key >= keys.readable.min && end_key <= keys.readable.max;
  if (whole && keys.at.contiguous_rows(first_key, kRows) >= kRows) {
    const auto* data = static_cast<const Element*>(keys.elements.data);
    copy_whole_rows<kRows, kThreads>(tile, data + keys.at.row_offset(first_key) + first_column,
                                     row_stride);
    return;
  }
  copy_rows<kRows, kThreads>(tile, keys.elements, first_column, [&](int row) {
    const std::int64_t key = std::int64_t{first_key} + row;
    return keys.readable.contains(key) ? keys.at.row_offset(key) : kNoRow;
  });
}

}  // namespace foveal::cuda
