// What every C function does at its edge: no exception leaves, a failure's sentence is kept for the
// thread, and structs of another version's size are taken over field by field.
#pragma once

#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <foveal/foveal.h>
#include <foveal/status.hpp>

#include "core/format.hpp"

namespace foveal::capi {

/// Keeps the message for foveal_last_error() and gives the code. An OK status is kept nowhere.
foveal_status report(const Status& status) noexcept;

/// The same for a message that needs no memory.
foveal_status report(StatusCode code, const char* message) noexcept;

/// Runs `body`, which returns a Status, for a C function.
template <class Body>
foveal_status guarded(Body&& body) noexcept {
  try {
    return report(std::forward<Body>(body)());
  } catch (const std::bad_alloc&) {
    return report(StatusCode::kOutOfMemory, "out of memory");
  } catch (const std::length_error&) {  // a container asked for more than any memory
    return report(StatusCode::kOutOfMemory, "out of memory");
  } catch (const std::exception& error) {
    return report(StatusCode::kInternal, error.what());
  } catch (...) {
    return report(StatusCode::kInternal, "an exception that is no std::exception");
  }
}

/// An argument that must not be null is.
[[nodiscard]] inline Status null_argument(const char* name) {
  return Status::invalid_argument(concat(name, " is null"));
}

/// `given` as this version's struct: fields that the caller's version lacks are 0, and those that
/// only the caller's version has must be 0. Every version's size is a multiple of a pointer's, and
/// a size above kMaxStructBytes was never set.
inline constexpr std::size_t kMaxStructBytes = 4096;

template <class Struct>
[[nodiscard]] Status take_struct(const char* name, const Struct* given, Struct& taken) {
  if (given == nullptr) return null_argument(name);
  const std::size_t bytes = given->struct_size;
  if (bytes < sizeof(std::size_t) || bytes % alignof(Struct) != 0 || bytes > kMaxStructBytes) {
    return Status::invalid_argument(concat(name, ".struct_size is ", bytes, ": it must be sizeof(",
                                           name, "), here ", sizeof(Struct)));
  }
  taken = Struct{};
  if (bytes <= sizeof(Struct)) {
    std::memcpy(&taken, given, bytes);
    return Status::ok();
  }
  std::memcpy(&taken, given, sizeof(Struct));
  const auto* tail = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof(Struct); i < bytes; ++i) {
    if (tail[i] != 0) {
      return Status::unsupported(
          concat(name, " has a field at byte ", i,
                 " that this version of foveal doesn't know (its struct has ", sizeof(Struct),
                 " bytes): only 0 is allowed there"));
    }
  }
  return Status::ok();
}

/// A copy of `text` that foveal_string_free() frees.
[[nodiscard]] Status give_string(std::string_view text, char** given);

}  // namespace foveal::capi
