// The `foveal` command: reads the command line, hands over to the subcommand, and answers errors in
// one form.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "tools/commands.hpp"
#include "tools/message_text.hpp"

namespace {

using namespace foveal::tools;

const char* const kFooter =
    "Example:\n"
    "  foveal run examples/data/smollm2-causal-layer18.safetensors --check\n"
    "\nExit codes: 0 done, 1 a check or gate failed, 2 bad input or usage.\n"
    "foveal COMMAND --help says more, with examples.";

/// CLI11 reports a missing command before the word that is none.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const bool no_command = app.get_subcommands().empty();
  const std::string what = no_command && !app.remaining().empty()
                               ? fmt::format("{}: no such command", in_quotes(app.remaining()[0]))
                               : error.what();
  return what + " (foveal --help says more)";
}

int run(int argc, char** argv) {
  int exit_code = kExitOk;
  CLI::App app("Attention, forward and backward, as a command.", "foveal");
  app.footer(kFooter);
  app.set_version_flag("--version", version());
  app.require_subcommand(1);
  add_run_command(app, exit_code);
  add_explain_command(app, exit_code);
  add_bench_command(app, exit_code);
  add_compare_command(app, exit_code);
  add_devices_command(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_name() == "CallForVersion") {
      std::printf("foveal %s\n", version());
      return kExitOk;
    }
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);
    return report_error(foveal::Status::invalid_argument(usage_message(app, error)));
  }
  return exit_code;
}

/// Output that could not be written is an error too: a full disk, a closed pipe.
int flush_stdout(int exit_code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  return report_error(foveal::Status::io_error(
      fmt::format("standard output can't be written: {}", std::strerror(errno))));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return flush_stdout(run(argc, argv));
  } catch (const std::bad_alloc&) {
    std::fputs("foveal: out of memory\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "foveal: internal error: %s\n", error.what());
  }
  return kExitBadInput;
}
