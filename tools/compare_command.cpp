// foveal compare: the gates between two results of foveal bench.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "tools/commands.hpp"
#include "tools/compare_gates.hpp"
#include "tools/mapped_file.hpp"

namespace foveal::tools {
namespace {

struct CompareOptions {
  std::string base_path;
  std::string candidate_path;
  bool json = false;
};

Result<MeasuredManifest> load_measured(const std::string& path) {
  FOVEAL_ASSIGN_OR_RETURN(file, MappedFile::open(path));
  const auto bytes = file.bytes();
  return parse_measured({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

Result<int> compare(const CompareOptions& options) {
  FOVEAL_ASSIGN_OR_RETURN(base, load_measured(options.base_path));
  FOVEAL_ASSIGN_OR_RETURN(candidate, load_measured(options.candidate_path));
  if (base.manifest != candidate.manifest) {
    return Status::invalid_argument(
        fmt::format("{} is of manifest {} and {} of {}: compare takes "
                    "two results of one manifest",
                    options.base_path, base.manifest, options.candidate_path, candidate.manifest));
  }
  FOVEAL_RETURN_IF_ERROR(check_problems(base, candidate));
  if (base.machine != candidate.machine) {
    report_warning(fmt::format("the base was timed on {} and the candidate on {}", base.machine,
                               candidate.machine));
  }
  const std::vector<GateVerdict> verdicts = apply_gates(base, candidate);
  const std::string text =
      options.json
          ? json_text(verdicts_json(verdicts))
          : fmt::format("{}: {} (base) and {} (candidate)\n{}", base.manifest, base.implementation,
                        candidate.implementation, verdicts_text(verdicts));
  std::fwrite(text.data(), 1, text.size(), stdout);
  return all_passed(verdicts) ? kExitOk : kExitCheckFailed;
}

const char* const kFooter =
    "Every result of the candidate must be right. Targets must be faster by the manifest's gate\n"
    "and by more than the noise; protected workloads and guards may be slower by their gate and "
    "the\n"
    "noise of both files, and larger in peak memory by their gate. Gates are the base's.\n"
    "\nExample:\n"
    "  foveal compare base.json candidate.json\n"
    "\nExit codes: 0 all gates passed, 1 one failed, 2 bad input or usage.";

}  // namespace

void add_compare_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* command =
      app.add_subcommand("compare", "Holds a candidate's bench result against a base's.");
  command->footer(kFooter);
  command->add_option("BASE", options->base_path, "A result of foveal bench --json")
      ->required()
      ->type_name("");
  command->add_option("CANDIDATE", options->candidate_path, "Another, of the same manifest")
      ->required()
      ->type_name("");
  command->add_flag("--json", options->json, "Print JSON alone");
  command->callback([options, &exit_code] { exit_code = exit_code_of(compare(*options)); });
}

}  // namespace foveal::tools
