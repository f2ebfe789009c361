// Version, names, strides and the log of foveal.h.
#include <cstdint>
#include <mutex>

#include <foveal/foveal.h>
#include <foveal/plan.hpp>
#include <foveal/status.hpp>

namespace foveal::capi {
namespace {

static_assert(FOVEAL_OK == static_cast<int>(StatusCode::kOk));
static_assert(FOVEAL_INVALID_ARGUMENT == static_cast<int>(StatusCode::kInvalidArgument));
static_assert(FOVEAL_UNSUPPORTED == static_cast<int>(StatusCode::kUnsupported));
static_assert(FOVEAL_OUT_OF_MEMORY == static_cast<int>(StatusCode::kOutOfMemory));
static_assert(FOVEAL_DEVICE_ERROR == static_cast<int>(StatusCode::kDeviceError));
static_assert(FOVEAL_IO_ERROR == static_cast<int>(StatusCode::kIoError));
static_assert(FOVEAL_INTERNAL == static_cast<int>(StatusCode::kInternal));
static_assert(FOVEAL_FORWARD == static_cast<int>(Pass::kForward));
static_assert(FOVEAL_BACKWARD == static_cast<int>(Pass::kBackward));
static_assert(FOVEAL_APPEND == static_cast<int>(Pass::kAppend));
static_assert(FOVEAL_MERGE == static_cast<int>(Pass::kMerge));
static_assert(FOVEAL_LOG_INFO == static_cast<int>(LogLevel::kInfo));
static_assert(FOVEAL_LOG_WARNING == static_cast<int>(LogLevel::kWarning));

/// The C listener. The C++ log calls forward_log(), which knows both its parts; they change
/// together.
struct Listener {
  std::mutex mutex;
  foveal_log_callback callback = nullptr;
  void* context = nullptr;
};

Listener& listener() {
  static Listener instance;
  return instance;
}

void forward_log(void*, LogLevel level, const char* message) {
  foveal_log_callback callback = nullptr;
  void* context = nullptr;
  {
    const std::lock_guard lock(listener().mutex);
    callback = listener().callback;
    context = listener().context;
  }
  if (callback != nullptr) callback(context, static_cast<std::int32_t>(level), message);
}

}  // namespace
}  // namespace foveal::capi

extern "C" {

int32_t foveal_abi_version(void) { return FOVEAL_ABI_VERSION; }

const char* foveal_version(void) { return FOVEAL_VERSION_STRING; }

const char* foveal_status_name(foveal_status status) {
  return foveal::status_code_name(static_cast<foveal::StatusCode>(status));
}

void foveal_bhsd_strides(const int64_t shape[4], int64_t strides[4]) {
  const int64_t seqlen = shape[1];
  const int64_t heads = shape[2];
  const int64_t dim = shape[3];
  strides[0] = heads * seqlen * dim;
  strides[1] = dim;
  strides[2] = seqlen * dim;
  strides[3] = 1;
}

void foveal_set_log_callback(foveal_log_callback callback, void* context) {
  namespace capi = foveal::capi;
  const std::lock_guard lock(capi::listener().mutex);
  capi::listener().callback = callback;
  capi::listener().context = context;
  foveal::set_log_callback(callback != nullptr ? capi::forward_log : nullptr, nullptr);
}

}  // extern "C"
