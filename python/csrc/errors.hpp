// How an error crosses the dispatcher: as a std::runtime_error whose text begins with the name of
// the Python class that foveal._errors makes of it.
#pragma once

#include <stdexcept>
#include <string>

#include <foveal/status.hpp>

namespace foveal::python {

[[noreturn]] inline void raise(const Status& status) {
  const char* kind = "foveal.InternalError: ";
  if (status.code() == StatusCode::kInvalidArgument) kind = "foveal.InvalidArgument: ";
  if (status.code() == StatusCode::kUnsupported) kind = "foveal.Unsupported: ";
  if (status.code() == StatusCode::kOutOfMemory) kind = "foveal.OutOfMemory: ";
  if (status.code() == StatusCode::kDeviceError) kind = "foveal.DeviceError: ";
  throw std::runtime_error(kind + status.message());
}

[[noreturn]] inline void raise_invalid(std::string message) {
  raise(Status::invalid_argument(std::move(message)));
}

inline void raise_unless_ok(const Status& status) {
  if (!status) raise(status);
}

}  // namespace foveal::python
