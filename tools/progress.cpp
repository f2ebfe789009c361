#include "tools/progress.hpp"

#include <cstdio>
#include <system_error>
#include <utility>

namespace foveal::tools {
namespace {

constexpr std::chrono::milliseconds kPeriod{200};
constexpr const char* kEraseLine = "\r\033[K";

}  // namespace

Progress::Progress(int descriptor, std::chrono::milliseconds delay)
    : descriptor_(descriptor), delay_(delay) {
  if (::isatty(descriptor) == 0) return;
  try {
    ticker_ = std::thread([this] { tick(); });
  } catch (const std::system_error&) {
    // Without a thread there is no line: the work itself goes on.
  }
}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_all();
  if (ticker_.joinable()) ticker_.join();
}

void Progress::show(std::string text) {
  const std::lock_guard lock(mutex_);
  text_ = std::move(text);
}

void Progress::tick() {
  const auto begin = std::chrono::steady_clock::now();
  bool shown = false;
  std::unique_lock lock(mutex_);
  auto period = delay_;
  while (!wake_.wait_for(lock, period, [this] { return done_; })) {
    period = kPeriod;
    const auto elapsed = std::chrono::steady_clock::now() - begin;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(elapsed).count();
    ::dprintf(descriptor_, "%s%s (%lld s)", kEraseLine, text_.c_str(),
              static_cast<long long>(seconds));
    shown = true;
  }
  if (shown) ::dprintf(descriptor_, "%s", kEraseLine);
}

}  // namespace foveal::tools
