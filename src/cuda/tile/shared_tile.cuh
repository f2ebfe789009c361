// Tiles in shared memory, laid out so that a warp reads its fragments without bank conflicts. Rows
// are counted in units of 16 bytes: 8 elements of 16 bits, 4 floats.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"

namespace foveal::cuda {

/// Bytes from row to row of a tile. Floats are read one by one, by lanes in rows g = 0..7 and
/// columns t = 0..3: with 16 bytes of padding the banks 4g + t are all different.
FOVEAL_HOST_DEVICE constexpr int tile_row_bytes(int columns, int element_bytes) {
  return columns * element_bytes + (element_bytes == 4 ? 16 : 0);
}

FOVEAL_HOST_DEVICE constexpr int tile_bytes(int rows, int columns, int element_bytes) {
  return rows * tile_row_bytes(columns, element_bytes);
}

#if defined(__CUDACC__)

/// (rows, kColumns) elements at `base`, an address in shared memory. Of 16-bit elements, unit u of
/// row r lies at place u ^ swizzle(r): the same unit of eight rows, which is what one phase of
/// ldmatrix reads, fills all 32 banks once.
template <class Element, int kColumns>
struct SharedTile {
  static constexpr int kElementBytes = static_cast<int>(sizeof(Element));
  static constexpr int kUnitElements = 16 / kElementBytes;
  static constexpr int kUnits = kColumns / kUnitElements;
  static constexpr int kRowBytes = tile_row_bytes(kColumns, kElementBytes);
  static constexpr bool kSwizzled = kElementBytes == 2;
  static_assert(kColumns % 32 == 0, "a row is whole multiples of 64 bytes");

  std::uint32_t base;

  /// Units whose places are exchanged among themselves.
  static constexpr int kPeriod = kUnits % 8 == 0 ? 8 : 4;

  /// What unit numbers of row `row` are combined with by exclusive or. Rows that are an odd
  /// multiple of 64 bytes begin in alternate halves of the banks: there two bits do.
  FOVEAL_DEVICE static constexpr int swizzle(int row) {
    if (!kSwizzled) return 0;
    return kPeriod == 8 ? row & 7 : (row >> 1) & 3;
  }
  FOVEAL_DEVICE constexpr std::uint32_t address(int row, int unit) const {
    return base + static_cast<std::uint32_t>(row * kRowBytes + ((unit ^ swizzle(row)) << 4));
  }
};

/// Addresses around a lane's own (row, unit), at distances that are known when compiling: all but
/// kPeriod of them are then one register and an immediate offset.
template <class Tile>
class LaneAddress {
 public:
  FOVEAL_DEVICE LaneAddress(Tile tile, int row, int unit)
      : origin_(tile.base + static_cast<std::uint32_t>(row * Tile::kRowBytes)),
        lane_unit_(static_cast<std::uint32_t>((unit ^ Tile::swizzle(row)) << 4)) {}

  /// `rows` further down, a multiple of 8, and `units` to the right, which has no bit in common
  /// with the lane's own unit.
  FOVEAL_DEVICE std::uint32_t at(int rows, int units) const {
    const int inside = Tile::kSwizzled ? units % Tile::kPeriod : 0;
    return origin_ + (lane_unit_ ^ static_cast<std::uint32_t>(inside << 4)) +
           static_cast<std::uint32_t>(rows * Tile::kRowBytes + ((units - inside) << 4));
  }

 private:
  std::uint32_t origin_;
  std::uint32_t lane_unit_;
};

#endif

}  // namespace foveal::cuda
