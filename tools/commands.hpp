// The subcommands of `foveal`, and what they share: exit codes and the one form of an error.
//
// Each command is one function that puts its subcommand on `app`. When the command line names it,
// CLI11 runs its callback while `app` parses, and the callback leaves the exit code:
//
//   void add_run_command(CLI::App& app, int& exit_code) {
//     auto options = std::make_shared<RunOptions>();
//     CLI::App* command = app.add_subcommand("run", "...");
//     command->add_option("FILE", options->path, "...")->required();
//     command->callback([options, &exit_code] { exit_code = exit_code_of(run(*options)); });
//   }
#pragma once

#include <string>

#include <foveal/status.hpp>

namespace CLI {
class App;
}

namespace foveal::tools {

inline constexpr int kExitOk = 0;
inline constexpr int kExitCheckFailed = 1;  ///< A check against a reference, or a gate.
inline constexpr int kExitBadInput = 2;     ///< Usage, input, or a machine that can't do it.

/// "0.1.0"
const char* version();

/// Writes `foveal: <message>` on one line of stderr and returns kExitBadInput.
int report_error(const Status& status);

/// Writes `foveal: warning: <message>` to stderr.
void report_warning(const std::string& message);

/// The value, or report_error of the error.
int exit_code_of(const Result<int>& result);

void add_run_command(CLI::App& app, int& exit_code);
void add_explain_command(CLI::App& app, int& exit_code);
void add_bench_command(CLI::App& app, int& exit_code);
void add_compare_command(CLI::App& app, int& exit_code);
void add_devices_command(CLI::App& app, int& exit_code);

}  // namespace foveal::tools
