// Errors are values. Every fallible function of foveal returns a Status or a Result<T>; nothing
// throws, prints or aborts. Both types are [[nodiscard]]: an error can't be dropped by accident.
//
//   foveal::Result<foveal::Plan> plan = foveal::plan(problem, foveal::Device::cpu());
//   if (!plan) return report(plan.status().message());
//   use(*plan);
#pragma once

#include <cassert>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace foveal {

/// Why a call failed. The values are those of the C ABI's `foveal_status`.
enum class StatusCode : std::int32_t {
  kOk = 0,
  kInvalidArgument = 1,  ///< The caller's problem or tensors contradict themselves or the contract.
  kUnsupported = 2,      ///< A valid request that no kernel, device or build here can carry out.
  kOutOfMemory = 3,      ///< An allocation failed, or a caller's workspace is too small.
  kDeviceError = 4,      ///< The driver or runtime refused (launch failure, lost device).
  kIoError = 5,          ///< A file could not be read or written (command line only).
  kInternal = 6,         ///< A fault of foveal's own; please report it.
};

/// "ok", "invalid argument", ... : a fixed name for each code.
[[nodiscard]] constexpr const char* status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid argument";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kOutOfMemory: return "out of memory";
    case StatusCode::kDeviceError: return "device error";
    case StatusCode::kIoError: return "i/o error";
    case StatusCode::kInternal: return "internal error";
  }
  return "unknown";
}

/// A code and, when it is not kOk, one sentence that names the argument, the value given and what
/// is allowed: `headdim 520: at most 512`.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status ok() { return {}; }
  static Status invalid_argument(std::string message) {
    return {StatusCode::kInvalidArgument, std::move(message)};
  }
  static Status unsupported(std::string message) {
    return {StatusCode::kUnsupported, std::move(message)};
  }
  static Status out_of_memory(std::string message) {
    return {StatusCode::kOutOfMemory, std::move(message)};
  }
  static Status device_error(std::string message) {
    return {StatusCode::kDeviceError, std::move(message)};
  }
  static Status io_error(std::string message) { return {StatusCode::kIoError, std::move(message)}; }
  static Status internal(std::string message) {
    return {StatusCode::kInternal, std::move(message)};
  }

  [[nodiscard]] bool is_ok() const { return code_ == StatusCode::kOk; }
  explicit operator bool() const { return is_ok(); }
  [[nodiscard]] StatusCode code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

/// A value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    assert(!status_.is_ok() && "a Result without a value needs an error");
  }

  [[nodiscard]] bool is_ok() const { return value_.has_value(); }
  explicit operator bool() const { return is_ok(); }
  [[nodiscard]] const Status& status() const { return status_; }

  /// The value; only after is_ok() was seen to be true.
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace foveal

/// Returns the error of a Status or Result expression from the enclosing function.
#define FOVEAL_RETURN_IF_ERROR(expression)                                 \
  do {                                                                     \
    if (::foveal::Status foveal_status_ = (expression); !foveal_status_) { \
      return foveal_status_;                                               \
    }                                                                      \
  } while (false)

/// Declares `variable` as the value of a Result expression, or returns its error.
#define FOVEAL_ASSIGN_OR_RETURN(variable, expression)          \
  auto variable##_result_ = (expression);                      \
  if (!variable##_result_) return variable##_result_.status(); \
  auto& variable = *variable##_result_
