// Messages from pieces: concat("headdim ", 520, ": at most ", 512).
#pragma once

#include <concepts>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

namespace foveal {

inline void append_piece(std::string& text, std::string_view piece) { text += piece; }
inline void append_piece(std::string& text, std::integral auto value) {
  text += std::to_string(value);
}
/// Shortest form that a reader wants: 6 significant digits.
inline void append_piece(std::string& text, double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.6g", value);
  text += buffer;
}
/// `[2, 128, 16, 64]`
inline void append_piece(std::string& text, std::span<const std::int64_t> shape) {
  text += '[';
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  text += ']';
}

template <class... Pieces>
[[nodiscard]] std::string concat(const Pieces&... pieces) {
  std::string text;
  (append_piece(text, pieces), ...);
  return text;
}

}  // namespace foveal
