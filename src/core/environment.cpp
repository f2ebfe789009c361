#include "core/environment.hpp"

#include <charconv>
#include <cstdlib>

namespace foveal {

std::optional<std::string_view> environment_text(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string_view(value);
}

std::optional<std::int64_t> environment_integer(const char* name) {
  const auto text = environment_text(name);
  if (!text) return std::nullopt;
  std::int64_t value = 0;
  const char* end = text->data() + text->size();
  const auto [last, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc{} || last != end) return std::nullopt;
  return value;
}

}  // namespace foveal
