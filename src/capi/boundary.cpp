#include "capi/boundary.hpp"

#include <cstdlib>
#include <string>

namespace foveal::capi {
namespace {

/// The last failure of a thread. `fixed` stands in where there was no memory for `text`.
struct LastError {
  std::string text;
  const char* fixed = nullptr;

  void set(const std::string& message) noexcept {
    try {
      text = message;
      fixed = nullptr;
    } catch (...) {
      fixed = "out of memory while keeping an error message";
    }
  }
};

LastError& last_error() {
  thread_local LastError error;
  return error;
}

}  // namespace

foveal_status report(const Status& status) noexcept {
  if (!status.is_ok()) last_error().set(status.message());
  return static_cast<foveal_status>(status.code());
}

foveal_status report(StatusCode code, const char* message) noexcept {
  try {
    return report(Status(code, message));
  } catch (...) {
    last_error().fixed = "out of memory while keeping an error message";
    return static_cast<foveal_status>(code);
  }
}

Status give_string(std::string_view text, char** given) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return Status::out_of_memory("no memory for a string");
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  *given = copy;
  return Status::ok();
}

}  // namespace foveal::capi

extern "C" {

const char* foveal_last_error(void) {
  const foveal::capi::LastError& error = foveal::capi::last_error();
  return error.fixed != nullptr ? error.fixed : error.text.c_str();
}

void foveal_string_free(char* string) { std::free(string); }

}  // extern "C"
