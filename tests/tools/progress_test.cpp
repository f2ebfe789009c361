// Long work shows what it is at on a terminal, and leaves the line as it was.
#include "tools/progress.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "tests/tools/temporary_directory.hpp"

namespace foveal::tools {
namespace {

using std::chrono::milliseconds;

/// A terminal of its own: what is written to `user` can be read from `screen`.
class Terminal {
 public:
  Terminal() : screen_(::posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_EQ(::grantpt(screen_), 0);
    EXPECT_EQ(::unlockpt(screen_), 0);
    user_ = ::open(::ptsname(screen_), O_RDWR | O_NOCTTY);
    EXPECT_GE(user_, 0);
    EXPECT_EQ(::fcntl(screen_, F_SETFL, O_NONBLOCK), 0);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    ::close(user_);
    ::close(screen_);
  }

  [[nodiscard]] int user() const { return user_; }
  /// What is new on the screen; empty when nothing is.
  std::string read() const {
    char buffer[4096];
    const ssize_t count = ::read(screen_, buffer, sizeof(buffer));
    return count > 0 ? std::string(buffer, static_cast<std::size_t>(count)) : "";
  }

 private:
  int screen_;
  int user_ = -1;
};

TEST(Progress, ShowsTheTextAndErasesTheLine) {
  const Terminal terminal;
  std::string text;
  {
    Progress progress(terminal.user(), milliseconds{1});
    progress.show("forward: run 3 of 6");
    while (text.find("run 3 of 6 (0 s)") == std::string::npos) text += terminal.read();
  }
  text += terminal.read();
  EXPECT_TRUE(text.starts_with("\r\033[K")) << text;
  EXPECT_TRUE(text.ends_with("\r\033[K")) << text;
}

TEST(Progress, ShortWorkShowsNothing) {
  const Terminal terminal;
  {
    Progress progress(terminal.user(), milliseconds{60'000});
    progress.show("forward");
  }
  EXPECT_EQ(terminal.read(), "");
}

TEST(Progress, FileGetsNothing) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("log", "");
  const int file = ::open(path.c_str(), O_WRONLY);
  {
    Progress progress(file, milliseconds{0});
    progress.show("forward");
    ::usleep(20'000);
  }
  ::close(file);
  EXPECT_EQ(directory.read("log"), "");
}

}  // namespace
}  // namespace foveal::tools
