// Quantities for people: 12.3 ms, 4.5 MiB, 67.8 GFLOP/s.
#pragma once

#include <string>

namespace foveal::tools {

std::string time_text(double microseconds);
std::string bytes_text(double bytes);
/// 1e9 operations a second and more.
std::string flops_rate_text(double flops, double microseconds);
/// 1e9 bytes a second and more.
std::string bytes_rate_text(double bytes, double microseconds);

}  // namespace foveal::tools
