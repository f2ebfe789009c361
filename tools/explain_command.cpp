// foveal explain: the plan for a problem, and why.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <foveal/plan.hpp>

#include "tools/attention_input.hpp"
#include "tools/attention_results.hpp"
#include "tools/commands.hpp"
#include "tools/device_flags.hpp"
#include "tools/plan_json.hpp"
#include "tools/problem_flags.hpp"
#include "tools/units_text.hpp"

namespace foveal::tools {
namespace {

struct ExplainOptions {
  std::string path;
  ProblemFlags problem;
  std::vector<const CLI::Option*> problem_options;
  ComputeOptions compute;
  DeviceFlags device;
  bool json = false;
};

/// An explanation, and the work of the lengths that are known here and not to the planner.
struct ExplainedPass {
  Explanation explanation;
  AttentionWork work_of_lengths;
};

Status explain_one(const AttentionProblem& problem, const AttentionTensors* tensors,
                   const DeviceInfo& device, std::vector<ExplainedPass>& passes) {
  FOVEAL_ASSIGN_OR_RETURN(explanation, explain(problem, device));
  passes.push_back(
      {.explanation = std::move(explanation), .work_of_lengths = attention_work(problem, tensors)});
  return Status::ok();
}

/// A file has shapes of its own.
Status refuse_problem_flags(const ExplainOptions& options) {
  for (const CLI::Option* option : options.problem_options) {
    if (option->count() == 0) continue;
    return Status::invalid_argument(
        fmt::format("{} is given with a file: the file says it", option->get_name()));
  }
  return Status::ok();
}

Result<std::vector<ExplainedPass>> explain_file(const ExplainOptions& options,
                                                const DeviceInfo& device) {
  FOVEAL_RETURN_IF_ERROR(refuse_problem_flags(options));
  FOVEAL_ASSIGN_OR_RETURN(input, load_attention_input(options.path, options.compute, std::nullopt));
  auto results = describe_results(input);
  if (!results) return in_file(options.path, results.status());
  std::vector<ExplainedPass> passes;
  FOVEAL_RETURN_IF_ERROR(explain_one(results->forward, &results->tensors, device, passes));
  if (results->backward) {
    FOVEAL_RETURN_IF_ERROR(explain_one(*results->backward, &results->tensors, device, passes));
  }
  return passes;
}

Result<std::vector<ExplainedPass>> explain_flags(const ExplainOptions& options,
                                                 const DeviceInfo& device) {
  FOVEAL_ASSIGN_OR_RETURN(made, problem_from_flags(options.problem, options.compute));
  FOVEAL_RETURN_IF_ERROR(validate(made.problem));
  AttentionTensors tensors;
  tensors.cu_seqlens_q = made.cu_seqlens_q.data();
  tensors.cu_seqlens_k = made.cu_seqlens_k.data();
  const bool lengths_known =
      made.problem.cu_seqlens_q.present() && made.problem.cu_seqlens_k.present();
  std::vector<ExplainedPass> passes;
  FOVEAL_RETURN_IF_ERROR(
      explain_one(made.problem, lengths_known ? &tensors : nullptr, device, passes));
  return passes;
}

std::string pass_text(const ExplainedPass& pass) {
  std::string text = to_string(pass.explanation);
  const AttentionWork& work = pass.work_of_lengths;
  const AttentionWork& planned = pass.explanation.work;
  if (work.flops == planned.flops && work.read_bytes == planned.read_bytes) return text;
  return text + fmt::format("lengths    by those given it is {:.3g} GFLOP, {}\n", work.flops / 1e9,
                            bytes_text(work.read_bytes + work.written_bytes));
}

OrderedJson passes_json(const std::vector<ExplainedPass>& passes) {
  OrderedJson list = OrderedJson::array();
  for (const ExplainedPass& pass : passes) {
    list.push_back(to_json(pass.explanation));
    list.back()["work_of_lengths"] = to_json(pass.work_of_lengths);
  }
  return {{"passes", list}};
}

Result<int> run(const ExplainOptions& options) {
  FOVEAL_ASSIGN_OR_RETURN(device, device_info_of(options.device));
  FOVEAL_ASSIGN_OR_RETURN(passes, options.path.empty() ? explain_flags(options, device)
                                                       : explain_file(options, device));
  std::string text;
  if (options.json) {
    text = json_text(passes_json(passes));
  } else {
    for (const ExplainedPass& pass : passes) text += (text.empty() ? "" : "\n") + pass_text(pass);
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  return kExitOk;
}

const char* const kFooter =
    "Examples:\n"
    "  foveal explain --seqlen-q 1 --seqlen-k 8192 --nheads-q 32 --nheads-k 8 --dtype bf16\n"
    "  foveal explain --doc-lens 4096,1024,512 --causal --headdim 512 --pass backward\n"
    "  foveal explain --seqlen-k 16384 --causal --device sm_120\n"
    "  foveal explain examples/data/smollm2-causal-layer18.safetensors --json";

}  // namespace

void add_explain_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ExplainOptions>();
  CLI::App* command = app.add_subcommand(
      "explain",
      "The plan for a problem, given by flags or by a file: the kernel, the reasons against the\n"
      "others, the workspace and the time at the device's limits.");
  command->footer(kFooter);
  command->add_option("FILE", options->path, "Take the problem from these tensors")->type_name("");
  options->problem_options = add_problem_flags(*command, options->problem);
  add_compute_flags(*command, options->compute);
  add_device_flags(*command, options->device);
  command->add_flag("--json", options->json, "Print JSON alone");
  command->callback([options, &exit_code] { exit_code = exit_code_of(run(*options)); });
}

}  // namespace foveal::tools
