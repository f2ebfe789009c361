// Operands of wgmma in shared memory as the copy engine leaves them: panels of 64, 32 or 16 columns
// side by side, each (rows, columns) row-major with rows of 128, 64 or 32 bytes, whose units of 16
// bytes are exchanged by exclusive or with the number of the 128-byte line, modulo 8, 4 or 2.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "core/integer.hpp"

namespace foveal::cuda {

/// (rows, columns) 16-bit elements; panels are 1024-byte aligned where rows are multiples of 32 (of
/// 16 where panels have 32 columns or more).
struct PanelLayout {
  int rows = 0;
  int columns = 0;
  int widest_panel = 64;  ///< Columns: 16 where parts of 16 columns are operands.

  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int panel_columns() const {
    return min_of(widest_panel, columns % 64 == 0 ? 64 : 32);
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int panels() const {
    return columns / panel_columns();
  }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int row_bytes() const { return 2 * panel_columns(); }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int panel_bytes() const { return rows * row_bytes(); }
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int bytes() const { return panels() * panel_bytes(); }
  /// Where the 8 elements of a row from column 8 unit on lie, in bytes.
  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr int unit_offset(int row, int unit) const {
    const int units = row_bytes() / 16;
    const int place = unit % units ^ row * row_bytes() / 128 % units;
    return unit / units * panel_bytes() + row * row_bytes() + 16 * place;
  }
};

#if defined(__CUDACC__)

/// What wgmma is told of an operand: the address of its first element, and the strides in bytes
/// between its 8x8 matrices, each in units of 16. PTX ISA, "matrix descriptor".
template <PanelLayout kLayout>
class PanelOperand {
 public:
  /// From row `row` on, a multiple of 8 (of 16 where rows have 64 bytes); panels of 16 columns
  /// begin at row 0.
  FOVEAL_DEVICE PanelOperand(std::uint32_t base, int row)
      : low_(((base + row * kLayout.row_bytes()) & 0x3ffff) >> 4 | kPanelStride >> 4 << 16) {}

  /// Factors adjacent: columns 16 step to 16 step + 15.
  FOVEAL_DEVICE std::uint64_t columns(int step) const {
    constexpr int kSteps = kLayout.panel_columns() / 16;
    return at(step / kSteps * kLayout.panel_bytes() + step % kSteps * 32);
  }
  /// Factors apart: rows 16 step to 16 step + 15, all columns.
  FOVEAL_DEVICE std::uint64_t rows(int step) const { return rows(step, 0); }
  /// The same from a panel on.
  FOVEAL_DEVICE std::uint64_t rows(int step, int panel) const {
    return at(panel * kLayout.panel_bytes() + step * 16 * kLayout.row_bytes());
  }

 private:
  static constexpr std::uint32_t kSwizzle = kLayout.panel_columns() == 64   ? 1
                                            : kLayout.panel_columns() == 32 ? 2
                                                                            : 3;
  /// From panel to panel (not looked at where factors are adjacent), and from 8 rows to the next.
  static constexpr std::uint32_t kPanelStride = kLayout.panel_bytes();
  static constexpr std::uint32_t kRowsStride = 8 * kLayout.row_bytes();
  static_assert(kPanelStride >> 4 <= 0x3fff, "14 bits");

  /// An addition to the lower half, which does not overflow its 14 bits, and nothing else.
  FOVEAL_DEVICE std::uint64_t at(int bytes) const {
    constexpr std::uint64_t kHigh = kRowsStride >> 4 | kSwizzle << 30;
    return kHigh << 32 | (low_ + static_cast<std::uint32_t>(bytes / 16));
  }

  std::uint32_t low_;
};

#endif

}  // namespace foveal::cuda
