// The log callback: off by default, so that a library user sees nothing unasked.
#pragma once

#include <string>

#include <foveal/plan.hpp>

namespace foveal {

/// True when somebody listens; build a message only then.
[[nodiscard]] bool log_enabled();

void log_message(LogLevel level, const std::string& message);

}  // namespace foveal
