#include "plan/planner.hpp"

#include <string_view>

#include "core/environment.hpp"
#include "core/format.hpp"
#include "core/integer.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::planner {
namespace {

constexpr auto kAlignment = static_cast<std::int64_t>(kWorkspaceAlignment);

struct Candidate {
  const KernelEntry* entry = nullptr;
  KernelConfig config;
  double predicted_time_us = 0;
};

/// The choice of one step, with a verdict for every kernel of the table.
struct Choice {
  Candidate chosen;
  std::vector<KernelVerdict> verdicts;
};

/// Whether `name` stands in a comma-separated list.
bool list_has(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    if (list.substr(0, comma) == name) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
  return false;
}

std::string kernel_names() {
  std::string names;
  for (const KernelEntry* entry : kernel_table()) {
    if (!names.empty()) names += ", ";
    names += entry->name;
  }
  return names;
}

Status check_override(std::string_view list) {
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    const std::string_view name = list.substr(0, comma);
    if (find_kernel(name) == nullptr) {
      return Status::invalid_argument(concat(
          "FOVEAL_FORCE_KERNEL=", name, ": no kernel has this name; there are ", kernel_names()));
    }
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  return Status::ok();
}

/// True when the override names a kernel of this pass: other passes choose freely.
bool pass_is_forced(const Overrides& overrides, Pass pass) {
  for (const KernelEntry* entry : kernel_table()) {
    if (entry->pass == pass && list_has(overrides.force_kernel, entry->name)) return true;
  }
  return false;
}

Status refusal(const KernelEntry& entry, const AttentionProblem& problem,
               const AttentionGeometry& geometry, const DeviceInfo& device) {
  if (entry.pass != problem.pass) {
    return Status::unsupported(
        concat("it computes the ", pass_name(entry.pass), " pass, not ", pass_name(problem.pass)));
  }
  FOVEAL_RETURN_IF_ERROR(entry.usable(device));
  if (device.present && entry.launch == nullptr) {
    return Status::unsupported("this build was compiled without its device code");
  }
  return entry.supports(problem, geometry, device);
}

/// Fills the reasons once the choice is known.
void explain_choice(Choice& choice, bool forced, bool batch_invariant) {
  for (KernelVerdict& verdict : choice.verdicts) {
    if (verdict.outcome == KernelVerdict::Outcome::kUnsupported) continue;
    if (choice.chosen.entry != nullptr && verdict.name == choice.chosen.entry->name) {
      verdict.outcome = KernelVerdict::Outcome::kChosen;
      verdict.reason =
          forced ? "forced by FOVEAL_FORCE_KERNEL"
          : batch_invariant
              ? "the first of the table that takes it: with batch_invariant no batch "
                "decides which kernel runs"
              : concat("the fastest by prediction: ", verdict.predicted_time_us, " us");
    } else if (batch_invariant) {
      verdict.reason = "later in the table: with batch_invariant the first that takes it runs";
    } else {
      verdict.reason = concat("slower by prediction: ", verdict.predicted_time_us, " us against ",
                              choice.chosen.predicted_time_us, " us");
    }
  }
}

Choice choose_kernel(const AttentionProblem& problem, const AttentionGeometry& geometry,
                     const DeviceInfo& device, const Overrides& overrides) {
  Choice choice;
  const bool forced = pass_is_forced(overrides, problem.pass);
  for (const KernelEntry* entry : kernel_table()) {
    KernelVerdict verdict;
    verdict.name = entry->name;
    if (const Status status = refusal(*entry, problem, geometry, device); !status) {
      verdict.reason = status.message();
    } else if (forced && !list_has(overrides.force_kernel, entry->name)) {
      verdict.reason = "FOVEAL_FORCE_KERNEL names another kernel";
    } else if (entry->held_back && !forced) {
      verdict.reason = concat(
          "held back until it has passed every test on a GPU: FOVEAL_FORCE_KERNEL=", entry->name,
          " chooses it");
    } else {
      Candidate candidate{entry, entry->configure(problem, geometry, device), 0};
      candidate.predicted_time_us = entry->predict(problem, geometry, candidate.config, device);
      verdict.outcome = KernelVerdict::Outcome::kSlower;
      verdict.predicted_time_us = candidate.predicted_time_us;
      verdict.workspace_bytes = candidate.config.workspace_bytes();
      // Predictions depend on the batch, so batch_invariant goes by the table's order.
      if (choice.chosen.entry == nullptr ||
          (!problem.batch_invariant &&
           candidate.predicted_time_us < choice.chosen.predicted_time_us)) {
        choice.chosen = std::move(candidate);
      }
    }
    choice.verdicts.push_back(std::move(verdict));
  }
  explain_choice(choice, forced, problem.batch_invariant);
  return choice;
}

/// The append that a forward problem with k_new begins with.
AttentionProblem append_step(const AttentionProblem& problem) {
  AttentionProblem step;
  step.pass = Pass::kAppend;
  step.k = problem.k;
  step.v = problem.v;
  step.k_new = problem.k_new;
  step.v_new = problem.v_new;
  step.seqused_k = problem.seqused_k;
  step.leftpad_k = problem.leftpad_k;
  step.block_table = problem.block_table;
  step.cache_batch_idx = problem.cache_batch_idx;
  step.causal = problem.causal;
  step.window_size_left = problem.window_size_left;
  step.window_size_right = problem.window_size_right;
  if (problem.rotary_cos.present()) {
    step.rotary_cos = problem.rotary_cos;
    step.rotary_sin = problem.rotary_sin;
    step.rotary_interleaved = problem.rotary_interleaved;
    step.q = problem.q;
    step.cu_seqlens_q = problem.cu_seqlens_q;
    step.seqused_q = problem.seqused_q;
    step.max_seqlen_q = problem.max_seqlen_q;
    const auto& shape = problem.q.shape;
    step.q_rotated =
        problem.q.rank == 3
            ? TensorSpec::contiguous(problem.q.dtype, {shape[0], shape[1], shape[2]})
            : TensorSpec::contiguous(problem.q.dtype, {shape[0], shape[1], shape[2], shape[3]});
  }
  return step;
}

std::string describe(const KernelConfig& config) {
  std::string text;
  const auto add = [&](const std::string& piece) { text += (text.empty() ? "" : ", ") + piece; };
  if (config.tile.m > 0) add(concat("tile ", config.tile.m, " x ", config.tile.n));
  if (config.pack_gqa) add("grouped heads packed");
  if (config.split_keys > 0) add(concat("splits of ", config.split_keys, " keys"));
  if (config.num_splits > 1) add(concat(config.num_splits, " splits"));
  if (config.cluster_size > 1) add(concat("clusters of ", config.cluster_size));
  if (config.num_blocks > 0) add(concat(config.num_blocks, " blocks"));
  if (config.num_stages > 0) add(concat(config.num_stages, " stages"));
  if (config.num_threads > 0) add(concat(config.num_threads, " threads"));
  if (!config.isa.empty()) add(config.isa);
  return text;
}

void add_step(PlanState& state, const AttentionProblem& problem, const Candidate& chosen) {
  PlanStep step;
  step.entry = chosen.entry;
  step.problem = problem;
  step.geometry = make_geometry(problem);
  step.config = chosen.config;
  step.workspace_offset = state.workspace_bytes;
  state.workspace_bytes += round_up(chosen.config.workspace_bytes(), kAlignment);
  Explanation& explanation = state.explanation;
  for (const WorkspacePart& part : chosen.config.workspace) explanation.workspace.push_back(part);
  for (const std::string& note : chosen.config.notes) explanation.notes.push_back(note);
  explanation.predicted_time_us += chosen.predicted_time_us;
  state.steps.push_back(std::move(step));
}

/// Plans the append of a forward problem and redirects q to the rotated copy. False when no kernel
/// can append on this device; the forward is then not planned either.
bool add_append(PlanState& state, AttentionProblem& problem, const Overrides& overrides) {
  const AttentionProblem step = append_step(problem);
  const Choice choice = choose_kernel(step, make_geometry(step), state.device, overrides);
  if (choice.chosen.entry == nullptr) {
    state.explanation.verdicts = choice.verdicts;
    return false;
  }
  if (step.q_rotated.present()) {
    state.q_rotated_offset = state.workspace_bytes;
    const std::int64_t bytes = step.q_rotated.numel() * dtype_bytes(step.q_rotated.dtype);
    state.workspace_bytes += round_up(bytes, kAlignment);
    state.explanation.workspace.push_back({"q after rotary embedding", bytes});
    problem.q = step.q_rotated;
  }
  add_step(state, step, choice.chosen);
  state.explanation.notes.push_back(
      concat("k_new and v_new are appended first, by ", choice.chosen.entry->name));
  return true;
}

void add_roofline(Explanation& explanation, const AttentionProblem& problem) {
  const DeviceInfo& device = explanation.device;
  explanation.work = attention_work(problem);
  const DType dtype = problem.pass == Pass::kMerge ? problem.out.dtype : problem.k.dtype;
  if (device.gflops(dtype) > 0) {
    explanation.compute_time_us = explanation.work.flops / (device.gflops(dtype) * 1e3);
  }
  if (device.read_gbs > 0) {
    explanation.memory_time_us =
        (explanation.work.read_bytes + explanation.work.written_bytes) / (device.read_gbs * 1e3);
  }
}

}  // namespace

Overrides read_overrides() {
  Overrides overrides;
  if (const auto forced = environment_text("FOVEAL_FORCE_KERNEL")) overrides.force_kernel = *forced;
  if (const auto isa = environment_text("FOVEAL_CPU_ISA")) overrides.cpu_isa = *isa;
  if (const auto smem = environment_text("FOVEAL_MAX_SMEM")) overrides.max_smem = *smem;
  return overrides;
}

Result<PlanState> make_plan(const AttentionProblem& problem, const DeviceInfo& device,
                            const Overrides& overrides) {
  FOVEAL_RETURN_IF_ERROR(validate(problem));
  FOVEAL_RETURN_IF_ERROR(check_override(overrides.force_kernel));

  PlanState state;
  state.problem = problem;
  state.device = device;
  Explanation& explanation = state.explanation;
  explanation.problem = to_string(problem);
  explanation.device = device;
  add_roofline(explanation, problem);

  AttentionProblem main_problem = problem;
  const bool appends = problem.pass == Pass::kForward && problem.k_new.present();
  if (appends && !add_append(state, main_problem, overrides)) return state;

  Choice choice = choose_kernel(main_problem, make_geometry(main_problem), device, overrides);
  explanation.verdicts = std::move(choice.verdicts);
  if (choice.chosen.entry == nullptr) {
    state.steps.clear();
    state.workspace_bytes = 0;
    explanation.workspace.clear();
    explanation.predicted_time_us = 0;
    return state;
  }
  add_step(state, main_problem, choice.chosen);
  explanation.kernel = choice.chosen.entry->name;
  explanation.configuration = describe(choice.chosen.config);
  explanation.workspace_bytes = state.workspace_bytes;
  return state;
}

}  // namespace foveal::planner
