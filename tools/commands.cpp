#include "tools/commands.hpp"

#include <cstdio>
#include <string>

namespace foveal::tools {

int report_error(const Status& status) {
  std::fprintf(stderr, "foveal: %s\n", status.message().c_str());
  return kExitBadInput;
}

void report_warning(const std::string& message) {
  std::fprintf(stderr, "foveal: warning: %s\n", message.c_str());
}

int exit_code_of(const Result<int>& result) {
  return result ? *result : report_error(result.status());
}

}  // namespace foveal::tools
