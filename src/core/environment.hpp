// The environment variables of foveal, read at each call so that a program may change them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace foveal {

/// The value of a variable; absent and empty are the same.
[[nodiscard]] std::optional<std::string_view> environment_text(const char* name);

/// The value as a whole number; absent where it is none.
[[nodiscard]] std::optional<std::int64_t> environment_integer(const char* name);

}  // namespace foveal
