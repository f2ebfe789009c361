// Long work shows what it is at on a terminal, and leaves the line as it was.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace foveal::tools {
namespace {

/// What `foveal devices --measure` writes to a terminal that is its stderr.
std::string terminal_text() {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  EXPECT_GE(terminal, 0);
  EXPECT_EQ(::grantpt(terminal), 0);
  EXPECT_EQ(::unlockpt(terminal), 0);
  const std::string name = ::ptsname(terminal);
  const pid_t child = ::fork();
  if (child == 0) {
    const int error = ::open(name.c_str(), O_WRONLY | O_NOCTTY);
    const int out = ::open("/dev/null", O_WRONLY);
    ::dup2(error, STDERR_FILENO);
    ::dup2(out, STDOUT_FILENO);
    ::close(error);
    ::execl(FOVEAL_CLI, "foveal", "devices", "--device", "cpu:1", "--measure", nullptr);
    ::_exit(127);
  }
  std::string text;
  char buffer[256];
  for (;;) {  // ends with an error once the child has closed its side
    const ssize_t count = ::read(terminal, buffer, sizeof(buffer));
    if (count <= 0) break;
    text.append(buffer, static_cast<std::size_t>(count));
  }
  int state = 0;
  EXPECT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_EQ(WEXITSTATUS(state), 0);
  ::close(terminal);
  return text;
}

TEST(CliProgressSlow, ShowsWhatItMeasuresAndErasesTheLine) {
  const std::string text = terminal_text();
  EXPECT_NE(text.find("measuring"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("\r\033[K")) << text;
}

}  // namespace
}  // namespace foveal::tools
