#include "tools/message_text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace foveal::tools {
namespace {

constexpr std::size_t kMaxQuotedBytes = 80;
constexpr std::size_t kMaxListedValues = 8;

/// C0, DEL and C1: a terminal may obey them.
bool is_control(std::string_view sequence) {
  const auto first = static_cast<unsigned char>(sequence[0]);
  if (sequence.size() == 1) return first < 0x20 || first == 0x7F;
  return first == 0xC2 && static_cast<unsigned char>(sequence[1]) < 0xA0;
}

}  // namespace

std::size_t utf8_sequence_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned first = byte(0);
  const unsigned second = byte(1);
  if (text.empty()) return 0;
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;  // a continuation, or an overlong form of ASCII
  if (first < 0xE0) return continues(1) ? 2 : 0;
  if (first < 0xF0) {
    const bool overlong = first == 0xE0 && second < 0xA0;
    const bool surrogate = first == 0xED && second >= 0xA0;
    return continues(1) && continues(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first < 0xF5) {
    const bool overlong = first == 0xF0 && second < 0x90;
    const bool past_the_last = first == 0xF4 && second >= 0x90;
    return continues(1) && continues(2) && continues(3) && !overlong && !past_the_last ? 4 : 0;
  }
  return 0;
}

std::string in_quotes(std::string_view text) {
  std::string out = "'";
  std::size_t done = 0;
  while (done < text.size() && done < kMaxQuotedBytes) {
    const std::size_t bytes = std::max<std::size_t>(1, utf8_sequence_bytes(text.substr(done)));
    const std::string_view sequence = text.substr(done, bytes);
    const bool readable = utf8_sequence_bytes(sequence) != 0 && !is_control(sequence);
    if (readable) out += sequence;
    for (const char c : readable ? std::string_view{} : sequence) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
    done += bytes;
  }
  return out + (done < text.size() ? "...'" : "'");
}

std::string list_text(std::span<const std::int64_t> values) {
  const auto shown = values.first(std::min(values.size(), kMaxListedValues));
  return fmt::format("[{}{}]", fmt::join(shown, ", "), shown.size() < values.size() ? ", ..." : "");
}

}  // namespace foveal::tools
