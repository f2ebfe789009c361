// The `foveal` command as a child process: its exit code and what it printed.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace foveal::tools {

struct CliRun {
  int exit_code = -1;  ///< -1: ended by a signal.
  std::string out;
  std::string err;

  /// `out` as JSON; discarded() where it is not JSON and nothing else.
  [[nodiscard]] nlohmann::json json() const {
    return nlohmann::json::parse(out, nullptr, /*allow_exceptions=*/false);
  }
};

struct CliSetting {
  std::vector<std::string> environment;             ///< Additions, as "NAME=value".
  std::optional<std::uint64_t> address_space = {};  ///< RLIMIT_AS in bytes.
  std::string stdout_path = {};                     ///< In place of capturing it.
};

/// Runs the command with `arguments` and waits for it.
CliRun run_cli(const std::vector<std::string>& arguments, const CliSetting& setting = {});

/// Whether the text is `foveal: ` and one sentence on one line.
bool is_one_error_line(const std::string& text);

}  // namespace foveal::tools
