#include "tools/commands.hpp"

#include <cstdio>
#include <string>

namespace foveal::tools {

namespace {

/// Messages can quote what a user or a file gave: a line break or another control character would
/// make two lines of one sentence.
std::string on_one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

}  // namespace

const char* version() { return FOVEAL_VERSION_STRING; }

int report_error(const Status& status) {
  std::fprintf(stderr, "foveal: %s\n", on_one_line(status.message()).c_str());
  return kExitBadInput;
}

void report_warning(const std::string& message) {
  std::fprintf(stderr, "foveal: warning: %s\n", on_one_line(message).c_str());
}

int exit_code_of(const Result<int>& result) {
  return result ? *result : report_error(result.status());
}

}  // namespace foveal::tools
