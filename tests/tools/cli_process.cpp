#include "tests/tools/cli_process.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdlib>

#include "tests/tools/temporary_directory.hpp"

namespace foveal::tools {
namespace {

constexpr int kCouldNotStart = 127;

/// In the child: only calls that are allowed between fork and exec.
void redirect(const char* path, int descriptor) {
  const int file = ::open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file < 0 || ::dup2(file, descriptor) < 0) ::_exit(kCouldNotStart);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

std::vector<std::string> environment_with(const std::vector<std::string>& additions) {
  std::vector<std::string> all = additions;
  for (char** entry = environ; *entry != nullptr; ++entry) all.emplace_back(*entry);
  return all;
}

}  // namespace

CliRun run_cli(const std::vector<std::string>& arguments, const CliSetting& setting) {
  const TemporaryDirectory directory;
  const std::string out_path =
      setting.stdout_path.empty() ? directory.file("out") : setting.stdout_path;
  const std::string err_path = directory.file("err");
  const char* moved = std::getenv("FOVEAL_CLI");  // where the tests run without the build tree
  std::vector<std::string> texts{moved != nullptr && *moved != '\0' ? moved : FOVEAL_CLI};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = environment_with(setting.environment);
  const std::vector<char*> argv = pointers(texts);
  const std::vector<char*> envp = pointers(environment);

  const pid_t child = ::fork();
  if (child == 0) {
    redirect(out_path.c_str(), STDOUT_FILENO);
    redirect(err_path.c_str(), STDERR_FILENO);
    if (setting.address_space) {
      const rlimit limit{*setting.address_space, *setting.address_space};
      if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(kCouldNotStart);
    }
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(kCouldNotStart);
  }
  CliRun run;
  int state = 0;
  EXPECT_GT(child, 0);
  EXPECT_EQ(::waitpid(child, &state, 0), child);
  if (WIFEXITED(state)) run.exit_code = WEXITSTATUS(state);
  if (setting.stdout_path.empty()) run.out = directory.read("out");
  run.err = directory.read("err");
  return run;
}

bool is_one_error_line(const std::string& text) {
  return text.starts_with("foveal: ") && text.find('\n') == text.size() - 1;
}

}  // namespace foveal::tools
