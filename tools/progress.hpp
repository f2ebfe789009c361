// What long work is at, on one line of a terminal.
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace foveal::tools {

/// Shows `text (12 s)` on stderr while it lives, when stderr is a terminal, and leaves the line
/// empty. The line appears after a delay, so that short work shows nothing.
class Progress {
 public:
  explicit Progress(int descriptor = STDERR_FILENO,
                    std::chrono::milliseconds delay = std::chrono::milliseconds{500});
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(std::string text);

 private:
  void tick();

  const int descriptor_;
  const std::chrono::milliseconds delay_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::string text_;
  bool done_ = false;
  std::thread ticker_;  // only on a terminal
};

}  // namespace foveal::tools
