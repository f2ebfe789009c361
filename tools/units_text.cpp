#include "tools/units_text.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>

namespace foveal::tools {
namespace {

struct Unit {
  double size;
  const char* name;
};

/// In the largest unit that leaves a number of 1 or more, to three digits; `units` go down in size.
template <std::size_t N>
std::string in_unit(double value, const std::array<Unit, N>& units) {
  for (const Unit& unit : units) {
    if (value >= unit.size) return fmt::format("{:.3g} {}", value / unit.size, unit.name);
  }
  return fmt::format("{:.3g} {}", value / units.back().size, units.back().name);
}

}  // namespace

std::string time_text(double microseconds) {
  return in_unit(microseconds,
                 std::array<Unit, 4>{{{1e6, "s"}, {1e3, "ms"}, {1, "us"}, {1e-3, "ns"}}});
}

std::string bytes_text(double bytes) {
  return in_unit(
      bytes, std::array<Unit, 4>{{{0x1p30, "GiB"}, {0x1p20, "MiB"}, {0x1p10, "KiB"}, {1, "B"}}});
}

std::string flops_rate_text(double flops, double microseconds) {
  return in_unit(flops / microseconds * 1e6,
                 std::array<Unit, 3>{{{1e12, "TFLOP/s"}, {1e9, "GFLOP/s"}, {1e6, "MFLOP/s"}}});
}

std::string bytes_rate_text(double bytes, double microseconds) {
  return in_unit(bytes / microseconds * 1e6,
                 std::array<Unit, 3>{{{1e12, "TB/s"}, {1e9, "GB/s"}, {1e6, "MB/s"}}});
}

}  // namespace foveal::tools
