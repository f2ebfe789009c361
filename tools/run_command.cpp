// foveal run: attention over a file's tensors.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "tools/atomic_file.hpp"
#include "tools/attention_input.hpp"
#include "tools/attention_results.hpp"
#include "tools/commands.hpp"
#include "tools/device_flags.hpp"
#include "tools/element_values.hpp"
#include "tools/gpu_tensors.hpp"
#include "tools/message_text.hpp"
#include "tools/result_check.hpp"
#include "tools/run_report.hpp"
#include "tools/tensor_layout.hpp"
#include "tools/tensor_walk.hpp"

namespace foveal::tools {
namespace {

constexpr std::int64_t kMaxRepeats = 10000;

struct RunOptions {
  std::string path;
  std::string output_path;
  ComputeOptions compute;
  DeviceFlags device;
  std::string dtype;
  std::int64_t repeats = 5;
  bool check = false;
  bool oracle = false;
  bool json = false;
};

/// The oracle's value as fp32 in the layout of the result that it stands for.
Result<ResultTensor> as_float32(const OracleValue& value) {
  ResultTensor tensor{.name = value.result->name,
                      .spec = value.result->spec,
                      .rows = value.result->rows,
                      .heads_first = value.result->heads_first,
                      .buffer = {}};
  tensor.spec.dtype = DType::kFloat32;
  const std::int64_t bytes = tensor.spec.numel() * dtype_bytes(DType::kFloat32);
  FOVEAL_ASSIGN_OR_RETURN(buffer, AlignedBuffer::allocate(bytes, tensor.name));
  for_each_element(tensor.spec, [&](std::int64_t index, std::int64_t offset) {
    store_element(DType::kFloat32, buffer.data(), offset,
                  static_cast<float>(value.values[static_cast<std::size_t>(index)]));
  });
  tensor.buffer = std::move(buffer);
  return tensor;
}

TensorView view_of(const ResultTensor& result) {
  return {.name = result.name,
          .dtype = *to_file_dtype(result.spec.dtype),
          .shape = file_shape(result.spec, result.heads_first),
          .data = result.buffer.bytes()};
}

class Run {
 public:
  explicit Run(const RunOptions& options) : options_(options) { report_.path = options.path; }

  Result<int> run() {
    FOVEAL_RETURN_IF_ERROR(prepare());
    {
      Progress progress;
      FOVEAL_RETURN_IF_ERROR(compute(progress));
    }
    if (options_.check) {
      report_.check = check_results(*input_, results_, oracle_, expected_,
                                    options_.oracle ? Checked::kOracle : Checked::kResults);
    }
    FOVEAL_RETURN_IF_ERROR(write_results());
    const std::string text = options_.json ? json_text(report_json(report_)) : report_text(report_);
    std::fwrite(text.data(), 1, text.size(), stdout);
    return report_.passed() ? kExitOk : kExitCheckFailed;
  }

 private:
  /// Everything that can be refused is refused here, before any work.
  Status prepare() {
    if (!options_.output_path.empty()) {
      FOVEAL_RETURN_IF_ERROR(check_writable_beside(options_.output_path, options_.path));
    }
    FOVEAL_ASSIGN_OR_RETURN(device, device_of(options_.device));
    device_ = device;
    FOVEAL_ASSIGN_OR_RETURN(
        input, load_attention_input(options_.path, options_.compute, dtype_of(options_.dtype)));
    input_ = std::move(input);
    auto results = make_results(*input_);
    if (!results) return in_file(options_.path, results.status());
    results_ = *std::move(results);
    if (options_.check) {
      auto expected = load_expected(input_->file, results_);
      if (!expected) return in_file(options_.path, expected.status());
      expected_ = *std::move(expected);
    }
    if (options_.oracle) return Status::ok();
    FOVEAL_RETURN_IF_ERROR(plan_one(results_.forward));
    if (results_.backward) FOVEAL_RETURN_IF_ERROR(plan_one(*results_.backward));
    return check_forced_kernel();
  }

  /// --kernel forces within its own pass, which must be one that runs.
  Status check_forced_kernel() {
    const std::string& wanted = options_.device.kernel;
    if (wanted.empty()) return Status::ok();
    for (const TimedPass& pass : report_.passes) {
      if (pass.plan.kernel() == wanted) return Status::ok();
    }
    for (const KernelInfo& kernel : kernels()) {
      const bool appends = kernel.pass == Pass::kAppend && results_.forward.k_new.present();
      if (appends && kernel.name == wanted) return Status::ok();
    }
    return Status::invalid_argument(
        fmt::format("--kernel {}: no pass of this file runs it", wanted));
  }

  Status plan_one(const AttentionProblem& problem) {
    FOVEAL_ASSIGN_OR_RETURN(pass, plan_pass(problem, results_.tensors, device_));
    report_.passes.push_back(std::move(pass));
    return Status::ok();
  }

  Status compute(Progress& progress) {
    if (device_.type == DeviceType::kCuda) {
      FOVEAL_RETURN_IF_ERROR(run_passes_on_gpu(progress));
    } else {
      for (TimedPass& pass : report_.passes) {
        FOVEAL_RETURN_IF_ERROR(run_pass(pass, results_.tensors, options_.repeats, progress));
      }
    }
    if (!options_.check && !options_.oracle) return Status::ok();
    FOVEAL_ASSIGN_OR_RETURN(values,
                            oracle_values(*input_, results_, device_.num_threads, progress));
    oracle_ = std::move(values);
    if (!options_.oracle) return Status::ok();
    for (const OracleValue& value : oracle_) report_.summaries.push_back(summarize(value));
    return Status::ok();
  }

  Status run_passes_on_gpu(Progress& progress) {
    if (report_.passes.empty()) return Status::ok();  // --oracle
    progress.show("copying to the GPU");
    std::vector<AttentionProblem> problems{results_.forward};
    if (results_.backward) problems.push_back(*results_.backward);
    FOVEAL_ASSIGN_OR_RETURN(session, GpuSession::open(device_.index));
    FOVEAL_ASSIGN_OR_RETURN(copy, GpuTensors::copy_of(problems, results_.tensors, *session));
    for (TimedPass& pass : report_.passes) {
      FOVEAL_RETURN_IF_ERROR(
          run_pass_on_gpu(pass, copy.tensors(), options_.repeats, *session, progress));
    }
    return copy.download(problems, results_.tensors, *session);
  }

  Status write_results() {
    if (options_.output_path.empty()) return Status::ok();
    std::vector<ResultTensor> oracle_results;
    if (options_.oracle) {
      for (const OracleValue& value : oracle_) {
        FOVEAL_ASSIGN_OR_RETURN(tensor, as_float32(value));
        oracle_results.push_back(std::move(tensor));
      }
    }
    std::vector<TensorView> views;
    for (const ResultTensor& result : options_.oracle ? oracle_results : results_.results) {
      views.push_back(view_of(result));
      report_.written.push_back(result.name);
    }
    SafetensorsMetadata metadata{{"layout", std::string(tensor_layout_name(input_->layout))}};
    metadata["kernel"] =
        options_.oracle ? "fp64 oracle" : std::string(report_.passes.front().plan.kernel());
    FOVEAL_RETURN_IF_ERROR(write_safetensors(options_.output_path, views, metadata));
    report_.output_path = options_.output_path;
    return Status::ok();
  }

  const RunOptions& options_;
  Device device_;
  std::optional<AttentionInput> input_;
  AttentionResults results_;
  std::vector<ExpectedAnswer> expected_;
  std::vector<OracleValue> oracle_;
  RunReport report_;
};

const char* const kDescription =
    "Attention over the tensors of a safetensors file: q, k, v, and what else it holds of dout,\n"
    "dlse, bias, sinks, alibi_slopes, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, "
    "leftpad_k,\n"
    "block_table, cache_batch_idx, k_new, v_new, rotary_cos and rotary_sin. With dout the "
    "backward\n"
    "runs too. Metadata says layout, causal, softmax_scale, ...; a flag overrides it.";

std::string footer() {
  return std::string("Errors that --check accepts:\n") + kErrorRule +
         "\n\nExamples:\n"
         "  foveal run examples/data/smollm2-causal-layer18.safetensors --check\n"
         "  foveal run layer.safetensors --dtype bf16 --window 127,0 -o out.safetensors\n"
         "\nExit codes: 0 done, 1 a check failed, 2 bad input or usage.";
}

void add_flags(CLI::App& command, RunOptions& options) {
  command.add_option("FILE", options.path, "The tensors")->required()->type_name("");
  command
      .add_option("-o,--output", options.output_path,
                  "Write out, lse, dq, dk, dv, ... there, in the inputs' layout and dtype")
      ->type_name("FILE");
  command.add_flag(
      "--check", options.check,
      "Compare with the fp64 oracle and the file's expected_*; exit 1 past the limits");
  command.add_flag("--oracle", options.oracle,
                   "The fp64 oracle's values (F32) in place of a kernel's");
  command.add_option("--dtype", options.dtype, "Convert the inputs first")
      ->check(CLI::IsMember({"fp16", "bf16", "fp32"}).description(""))
      ->type_name("fp16|bf16|fp32");
  add_device_flags(command, options.device);
  command.add_option("--repeats", options.repeats, "Timed runs, after one that warms up")
      ->check(CLI::Range(std::int64_t{1}, kMaxRepeats).description(""))
      ->type_name("N")
      ->capture_default_str();
  command.add_flag("--json", options.json, "Print JSON alone");
  add_compute_flags(command, options.compute);
}

}  // namespace

void add_run_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", kDescription);
  command->footer(footer());
  add_flags(*command, *options);
  command->callback([options, &exit_code] { exit_code = exit_code_of(Run(*options).run()); });
}

}  // namespace foveal::tools
