// Tiles in the block's shared memory, by their offset in it, and the copies that fill them. All
// tiles are swizzled: unlike tile/shared_tile.cuh also those of floats, which with padded rows
// would not fit 512 columns into 99 KiB, and those with rows of 16 or 32 bytes.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/portable/bwd/args.hpp"
#include "cuda/ptx/copy_async.cuh"
#include "cuda/ptx/special_registers.cuh"
#include "cuda/tile/copy_rows.cuh"
#include "cuda/tile/element.cuh"

namespace foveal::cuda::bwd {

extern __shared__ __align__(1024) unsigned char block_memory[];

template <class T>
FOVEAL_DEVICE T* memory_at(std::uint32_t offset) {
  return reinterpret_cast<T*>(block_memory + offset);
}

// Addresses of fragments take fewer instructions than they would take registers all along.
// Unsigned, so that halves and quarters of it are single shifts.
FOVEAL_DEVICE int lane_of_warp() {
  return static_cast<int>(static_cast<unsigned>(ptx::thread_index_anew()) % 32);
}
FOVEAL_DEVICE int warp_of_block() { return static_cast<int>(threadIdx.x) / 32; }

/// Row-major rows of kColumns elements, in units of 16 bytes. Unit u of row r lies at u ^ spread(r)
/// so that the same unit of eight rows (a phase of ldmatrix) fills every bank once: of rows that
/// are whole multiples of 128 bytes three bits of u differ from row to row, of shorter ones fewer.
template <class Element, int kColumns>
struct TileLayout {
  static constexpr int kUnitElements = 16 / static_cast<int>(sizeof(Element));
  static constexpr int kUnits = kColumns / kUnitElements;
  static constexpr int kRowBytes = 16 * kUnits;
  static constexpr int kSpread = kUnits % 8 == 0   ? 8
                                 : kUnits % 4 == 0 ? 4
                                 : kUnits % 2 == 0 ? 2
                                                   : 1;
  static constexpr int kRowsASpread = 8 / kSpread;
  static constexpr int kPeriod = kSpread;  ///< For TileWalk.

  static FOVEAL_DEVICE constexpr std::uint32_t offset(int row, int unit) {
    const int spread = (row / kRowsASpread) % kSpread;
    return static_cast<std::uint32_t>(row * kRowBytes + ((unit ^ spread) << 4));
  }
  /// From the address of unit 0 or 1 of a row to that of `units` more, an even number. Rows may be
  /// added by kRowBytes as long as they are multiples of 8.
  static FOVEAL_DEVICE constexpr std::uint32_t moved(std::uint32_t address, int units) {
    constexpr std::uint32_t kMask = 16 * kSpread - 1;
    const auto bytes = static_cast<std::uint32_t>(units) << 4;
    return (address ^ (bytes & kMask)) + (bytes & ~kMask);
  }
  static FOVEAL_DEVICE const Element* element(std::uint32_t tile, int row, int column) {
    return memory_at<const Element>(tile + offset(row, column / kUnitElements)) +
           column % kUnitElements;
  }
};

/// The rows of one sequence and head of an operand, from index 0.
struct OperandRows {
  const void* data = nullptr;
  std::int64_t offset = 0;  ///< Of row 0, in elements.
  std::int64_t row_stride = 0;
  std::int64_t dim_stride = 1;
  int columns = 0;
  ElementsInfo info;
};

/// Half-open, of indices within a sequence: those are below 2^31.
struct IntRange {
  int min = 0;
  int max = 0;

  FOVEAL_DEVICE bool contains(int i) const { return min <= i && i < max; }
};

FOVEAL_DEVICE float load_as_float(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::kFloat16: return to_float(static_cast<const __half*>(data)[index]);
    case DType::kBFloat16: return to_float(static_cast<const __nv_bfloat16*>(data)[index]);
    default: return static_cast<const float*>(data)[index];
  }
}

FOVEAL_DEVICE void store_as(DType dtype, void* data, std::int64_t index, float value) {
  switch (dtype) {
    case DType::kFloat16: static_cast<__half*>(data)[index] = from_float<__half>(value); break;
    case DType::kBFloat16:
      static_cast<__nv_bfloat16*>(data)[index] = from_float<__nv_bfloat16>(value);
      break;
    default: static_cast<float*>(data)[index] = value; break;
  }
}

/// Row i of an operand, of its column 0.
template <class Element>
FOVEAL_DEVICE const Element* row_of(const OperandRows& rows, int i) {
  return static_cast<const Element*>(rows.data) + rows.offset + i * rows.row_stride;
}

/// Begins to copy kRows rows, all there and of whole units as wide as the tile, from `data` on.
template <class Element, int kColumns, int kRows, int kThreads>
FOVEAL_DEVICE void copy_plain_rows(std::uint32_t tile, const void* data, std::int64_t row_stride) {
  using Layout = TileLayout<Element, kColumns>;
  using Walk = TileWalk<kRows, kThreads, Layout>;
  const Walk walk = Walk::of_thread();
  const std::uint32_t to =
      ptx::shared_address(block_memory) + tile + Layout::offset(walk.row, walk.unit);
  const Element* from =
      static_cast<const Element*>(data) + walk.row * row_stride + walk.unit * Layout::kUnitElements;
  const std::int64_t step = Walk::row_step(1) * row_stride;
#pragma unroll
  for (int i = 0; i < Walk::kRowSteps; ++i) {
#pragma unroll
    for (int j = 0; j < Walk::kLineSteps; ++j) {
      ptx::copy_async_16(to + Walk::row_step(i) * Layout::kRowBytes + 16 * Walk::unit_step(j),
                         from + Walk::unit_step(j) * Layout::kUnitElements);
    }
    from += step;
  }
}

/// Begins to copy rows [first, first + kRows) into the tile at `tile`, by all threads; rows outside
/// `readable` and columns past the operand's become 0. Complete after copy_async_wait and a
/// barrier.
template <class Element, int kColumns, int kRows, int kThreads>
FOVEAL_DEVICE void copy_whole_units(std::uint32_t tile, const OperandRows& rows, int first,
                                    const IntRange& readable) {
  using Layout = TileLayout<Element, kColumns>;
  const std::uint32_t to = ptx::shared_address(block_memory) + tile;
  const auto* data = static_cast<const Element*>(rows.data);
  const int begin = readable.min - first;
  const int end = readable.max - first;
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kThreads % Layout::kUnits == 0 && (kThreads / Layout::kUnits) % 8 == 0) {
    // A thread keeps its unit and moves on by whole spreads: one address, then constants.
    constexpr int kRowStep = kThreads / Layout::kUnits;
    const int unit = thread % Layout::kUnits;
    const int row = thread / Layout::kUnits;
    const bool in_columns = unit * Layout::kUnitElements < rows.columns;
    const Element* from =
        data + rows.offset + (first + row) * rows.row_stride + unit * Layout::kUnitElements;
    const std::uint32_t address = to + Layout::offset(row, unit);
#pragma unroll
    for (int step = 0; step < kRows; step += kRowStep) {
      if (kRows % kRowStep != 0 && row + step >= kRows) break;
      const bool valid = in_columns && row + step >= begin && row + step < end;
      ptx::copy_async_16(address + step * Layout::kRowBytes, valid ? from : data, valid);
      from += kRowStep * rows.row_stride;
    }
  } else {
    constexpr int kTotal = kRows * Layout::kUnits;
#pragma unroll
    for (int base = 0; base < kTotal; base += kThreads) {
      const int index = base + thread;
      if (kTotal % kThreads != 0 && index >= kTotal) break;
      const int row = index / Layout::kUnits;
      const int column = index % Layout::kUnits * Layout::kUnitElements;
      const bool valid = column < rows.columns && row >= begin && row < end;
      const std::int64_t from = rows.offset + (first + row) * rows.row_stride + column;
      ptx::copy_async_16(to + Layout::offset(row, index % Layout::kUnits),
                         valid ? data + from : data, valid);
    }
  }
}

/// The same for any strides, alignment and dtype, through registers.
template <class Element, int kColumns, int kRows, int kThreads>
FOVEAL_DEVICE void copy_by_element(std::uint32_t tile, const OperandRows& rows, int first,
                                   const IntRange& readable) {
  using Layout = TileLayout<Element, kColumns>;
  const int begin = readable.min - first;
  const int end = readable.max - first;
#pragma unroll 1
  for (int index = static_cast<int>(threadIdx.x); index < kRows * Layout::kUnits;
       index += kThreads) {
    const int row = index / Layout::kUnits;
    const int column = index % Layout::kUnits * Layout::kUnitElements;
    const int count = row >= begin && row < end ? rows.columns - column : 0;
    const std::int64_t from =
        rows.offset + (first + row) * rows.row_stride + column * rows.dim_stride;
    alignas(16) Element values[Layout::kUnitElements];
#pragma unroll
    for (int e = 0; e < Layout::kUnitElements; ++e) {
      values[e] = from_float<Element>(
          e < count ? load_as_float(rows.info.dtype, rows.data, from + e * rows.dim_stride) : 0.0f);
    }
    *memory_at<uint4>(tile + Layout::offset(row, index % Layout::kUnits)) =
        *reinterpret_cast<const uint4*>(values);
  }
}

template <class Element, int kColumns, int kRows, int kThreads>
FOVEAL_DEVICE void copy_rows(std::uint32_t tile, const OperandRows& rows, int first,
                             const IntRange& readable) {
  if (rows.info.whole_units) {
    copy_whole_units<Element, kColumns, kRows, kThreads>(tile, rows, first, readable);
  } else {
    copy_by_element<Element, kColumns, kRows, kThreads>(tile, rows, first, readable);
  }
}

}  // namespace foveal::cuda::bwd
