#include "core/log.hpp"

#include <atomic>
#include <mutex>

namespace foveal {
namespace {

std::atomic<bool> enabled{false};

// A callback and its context change together; one lock covers both, taken only while enabled.
struct Listener {
  std::mutex mutex;
  LogCallback callback = nullptr;
  void* context = nullptr;
};

Listener& listener() {
  static Listener instance;
  return instance;
}

}  // namespace

bool log_enabled() { return enabled.load(std::memory_order_relaxed); }

void log_message(LogLevel level, const std::string& message) {
  if (!log_enabled()) return;
  LogCallback callback = nullptr;
  void* context = nullptr;
  {
    const std::lock_guard lock(listener().mutex);
    callback = listener().callback;
    context = listener().context;
  }
  if (callback != nullptr) callback(context, level, message.c_str());
}

void set_log_callback(LogCallback callback, void* context) {
  const std::lock_guard lock(listener().mutex);
  listener().callback = callback;
  listener().context = context;
  enabled.store(callback != nullptr, std::memory_order_relaxed);
}

}  // namespace foveal
