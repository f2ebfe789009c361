#include "tools/compare_gates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "tools/bench_report.hpp"
#include "tools/json_fields.hpp"
#include "tools/message_text.hpp"
#include "tools/strict_json.hpp"
#include "tools/units_text.hpp"

namespace foveal::tools {
namespace {

constexpr NumberRange kAnyAmount{0, 1e300};
constexpr NumberRange kFraction{0, 1e6};

constexpr std::array kRoles{Word{"target", WorkloadRole::kTarget},
                            Word{"protected", WorkloadRole::kProtected},
                            Word{"guard", WorkloadRole::kGuard}, Word{"info", WorkloadRole::kInfo}};

Result<MeasuredWorkload> parse_workload(const nlohmann::json& value, const std::string& where) {
  FOVEAL_ASSIGN_OR_RETURN(fields, JsonFields::of(value, where));
  MeasuredWorkload workload;
  FOVEAL_RETURN_IF_ERROR(fields.require({"id", "role", "correct", "peak_bytes"}));
  FOVEAL_RETURN_IF_ERROR(fields.get("id", workload.id));
  FOVEAL_RETURN_IF_ERROR(
      fields.get("role", std::span<const Word<WorkloadRole>>(kRoles), workload.role));
  FOVEAL_RETURN_IF_ERROR(fields.get("problem", workload.problem));
  FOVEAL_RETURN_IF_ERROR(fields.get("peak_bytes", kAnyAmount, workload.peak_bytes));
  FOVEAL_RETURN_IF_ERROR(fields.get("noise", kFraction, workload.noise));
  FOVEAL_ASSIGN_OR_RETURN(correct, fields.object("correct"));
  FOVEAL_RETURN_IF_ERROR(correct.require({"passed"}));
  FOVEAL_RETURN_IF_ERROR(correct.get("passed", workload.correct));
  if (fields.has("time_us")) {
    FOVEAL_ASSIGN_OR_RETURN(time, fields.object("time_us"));
    FOVEAL_RETURN_IF_ERROR(time.require({"median"}));
    double median = 0;
    FOVEAL_RETURN_IF_ERROR(time.get("median", kAnyAmount, median));
    if (median <= 0) return time.refuse("median", "it must be above 0");
    workload.median_us = median;
  }
  return workload;
}

Status parse_gates(const JsonFields& file, Gates& gates) {
  FOVEAL_ASSIGN_OR_RETURN(fields, file.object("gates"));
  FOVEAL_RETURN_IF_ERROR(fields.get("improve", kFraction, gates.improve));
  FOVEAL_RETURN_IF_ERROR(fields.get("protected_latency", kFraction, gates.protected_latency));
  return fields.get("protected_memory", kFraction, gates.protected_memory);
}

Status parse_machine(const JsonFields& file, std::string& machine) {
  FOVEAL_ASSIGN_OR_RETURN(fields, file.object("device"));
  std::int64_t threads = 0;
  FOVEAL_RETURN_IF_ERROR(fields.get("name", machine));
  FOVEAL_RETURN_IF_ERROR(fields.get("num_threads", IntRange{0, 1 << 20}, threads));
  if (threads > 0) machine += fmt::format(", {} threads", threads);
  return Status::ok();
}

/// Judges one workload; appends a verdict for each of its gates.
class Judge {
 public:
  Judge(const Gates& gates, const MeasuredWorkload& base, const MeasuredWorkload& candidate,
        std::vector<GateVerdict>& verdicts)
      : gates_(gates), base_(base), candidate_(candidate), verdicts_(verdicts) {}

  void judge() {
    GateVerdict& correct = add("correct");
    if (!candidate_.correct) {
      correct.outcome = GateOutcome::kFail;
      correct.sentence = "the candidate's result is wrong";
      return;
    }
    correct.sentence = "right";
    if (!base_.median_us || !candidate_.median_us) {
      GateVerdict& latency = add("latency");
      latency.outcome =
          base_.role == WorkloadRole::kInfo ? GateOutcome::kShown : GateOutcome::kFail;
      latency.sentence = fmt::format("the {} has no time", base_.median_us ? "candidate" : "base");
      return;
    }
    judge_latency();
    judge_memory();
  }

 private:
  GateVerdict& add(const char* gate) {
    GateVerdict verdict;
    verdict.id = base_.id;
    verdict.role = base_.role;
    verdict.gate = gate;
    verdicts_.push_back(std::move(verdict));
    return verdicts_.back();
  }

  void judge_latency() {
    GateVerdict& verdict = add("latency");
    verdict.base = base_.median_us;
    verdict.candidate = candidate_.median_us;
    verdict.change = *candidate_.median_us / *base_.median_us - 1;
    verdict.noise = base_.noise + candidate_.noise;
    const bool within_noise = std::abs(verdict.change) <= verdict.noise;
    const std::string seen =
        fmt::format("{:+.1f} %{}", 100 * verdict.change, within_noise ? ", within noise" : "");
    if (base_.role == WorkloadRole::kInfo) {
      verdict.outcome = GateOutcome::kShown;
      verdict.sentence = seen;
    } else if (base_.role == WorkloadRole::kTarget) {
      const bool faster = -verdict.change >= gates_.improve && !within_noise;
      verdict.outcome = faster ? GateOutcome::kPass : GateOutcome::kFail;
      verdict.sentence =
          fmt::format("{}; a target must be {:.1f} % faster{}", seen, 100 * gates_.improve,
                      missed_by(gates_.improve + verdict.change, faster));
    } else {
      const double allowed = gates_.protected_latency + verdict.noise;
      const bool kept = verdict.change <= allowed;
      verdict.outcome = kept ? GateOutcome::kPass : GateOutcome::kFail;
      verdict.sentence =
          fmt::format("{}; at most {:+.1f} % with {:.1f} % of noise{}", seen, 100 * allowed,
                      100 * verdict.noise, missed_by(verdict.change - allowed, kept));
    }
  }

  void judge_memory() {
    GateVerdict& verdict = add("memory");
    verdict.base = base_.peak_bytes;
    verdict.candidate = candidate_.peak_bytes;
    verdict.change = base_.peak_bytes > 0        ? candidate_.peak_bytes / base_.peak_bytes - 1
                     : candidate_.peak_bytes > 0 ? HUGE_VAL
                                                 : 0;
    const std::string seen = fmt::format("{:+.1f} %", 100 * verdict.change);
    const bool gated = base_.role == WorkloadRole::kProtected || base_.role == WorkloadRole::kGuard;
    if (!gated) {
      verdict.outcome = GateOutcome::kShown;
      verdict.sentence = seen;
      return;
    }
    const bool kept = candidate_.peak_bytes <= base_.peak_bytes * (1 + gates_.protected_memory);
    verdict.outcome = kept ? GateOutcome::kPass : GateOutcome::kFail;
    verdict.sentence = fmt::format("{}; at most {:+.1f} %{}", seen, 100 * gates_.protected_memory,
                                   missed_by(verdict.change - gates_.protected_memory, kept));
  }

  static std::string missed_by(double fraction, bool passed) {
    if (passed || fraction <= 0) return "";
    return fmt::format(": missed by {:.1f} %", 100 * fraction);
  }

  const Gates& gates_;
  const MeasuredWorkload& base_;
  const MeasuredWorkload& candidate_;
  std::vector<GateVerdict>& verdicts_;
};

const char* outcome_name(GateOutcome outcome) {
  switch (outcome) {
    case GateOutcome::kPass: return "pass";
    case GateOutcome::kFail: return "FAIL";
    case GateOutcome::kShown: return "shown";
  }
  return "";
}

std::string amount_text(const GateVerdict& verdict, const std::optional<double>& amount) {
  if (!amount) return "-";
  return verdict.gate == "memory" ? bytes_text(*amount) : time_text(*amount);
}

}  // namespace

const MeasuredWorkload* MeasuredManifest::find(std::string_view id) const {
  const auto found = std::find_if(workloads.begin(), workloads.end(),
                                  [&](const MeasuredWorkload& w) { return w.id == id; });
  return found == workloads.end() ? nullptr : &*found;
}

Result<MeasuredManifest> parse_measured(std::string_view text, const std::string& source) {
  FOVEAL_ASSIGN_OR_RETURN(json, parse_strict_json(text, source));
  FOVEAL_ASSIGN_OR_RETURN(fields, JsonFields::of(json, source));
  FOVEAL_RETURN_IF_ERROR(fields.require({"schema", "implementation", "manifest", "workloads"}));
  std::string schema;
  FOVEAL_RETURN_IF_ERROR(fields.get("schema", schema));
  if (schema != kBenchSchema) {
    return fields.refuse("schema", fmt::format("foveal compare reads {}", kBenchSchema));
  }
  MeasuredManifest measured;
  FOVEAL_RETURN_IF_ERROR(fields.get("implementation", measured.implementation));
  FOVEAL_RETURN_IF_ERROR(fields.get("manifest", measured.manifest));
  FOVEAL_RETURN_IF_ERROR(parse_gates(fields, measured.gates));
  FOVEAL_RETURN_IF_ERROR(parse_machine(fields, measured.machine));
  const nlohmann::json& list = *fields.find("workloads");
  if (!list.is_array() || list.empty()) {
    return fields.refuse("workloads", "it must be an array with at least one");
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    FOVEAL_ASSIGN_OR_RETURN(workload,
                            parse_workload(list[i], fmt::format("{}: workload {}", source, i)));
    if (measured.find(workload.id) != nullptr) {
      return Status::invalid_argument(
          fmt::format("{}: workload {} is there twice", source, in_quotes(workload.id)));
    }
    measured.workloads.push_back(std::move(workload));
  }
  return measured;
}

Status check_problems(const MeasuredManifest& base, const MeasuredManifest& candidate) {
  for (const MeasuredWorkload& workload : base.workloads) {
    const MeasuredWorkload* other = candidate.find(workload.id);
    if (other == nullptr || workload.problem.empty() || other->problem.empty() ||
        workload.problem == other->problem) {
      continue;
    }
    return Status::invalid_argument(
        fmt::format("workload {} is {} in the base and {} in the candidate", workload.id,
                    workload.problem, other->problem));
  }
  return Status::ok();
}

std::vector<GateVerdict> apply_gates(const MeasuredManifest& base,
                                     const MeasuredManifest& candidate) {
  std::vector<GateVerdict> verdicts;
  for (const MeasuredWorkload& workload : base.workloads) {
    const MeasuredWorkload* other = candidate.find(workload.id);
    if (other != nullptr) {
      Judge(base.gates, workload, *other, verdicts).judge();
      continue;
    }
    GateVerdict missing;
    missing.id = workload.id;
    missing.role = workload.role;
    missing.gate = "correct";
    missing.outcome = GateOutcome::kFail;
    missing.sentence = "the candidate has no such workload";
    verdicts.push_back(std::move(missing));
  }
  return verdicts;
}

bool all_passed(const std::vector<GateVerdict>& verdicts) {
  return std::none_of(verdicts.begin(), verdicts.end(), [](const GateVerdict& verdict) {
    return verdict.outcome == GateOutcome::kFail;
  });
}

std::string verdicts_text(const std::vector<GateVerdict>& verdicts) {
  std::size_t width = 8;
  for (const GateVerdict& verdict : verdicts) width = std::max(width, verdict.id.size());
  std::string text;
  for (const GateVerdict& verdict : verdicts) {
    text += fmt::format("{:<5}  {:<{}}  {:<9}  {:<7}  {:>10}  {:>10}  {}\n",
                        outcome_name(verdict.outcome), verdict.id, width, role_name(verdict.role),
                        verdict.gate, amount_text(verdict, verdict.base),
                        amount_text(verdict, verdict.candidate), verdict.sentence);
  }
  const auto failed = std::count_if(verdicts.begin(), verdicts.end(), [](const auto& verdict) {
    return verdict.outcome == GateOutcome::kFail;
  });
  text += failed == 0 ? "all gates passed\n"
                      : fmt::format("{} gate{} failed\n", failed, failed == 1 ? "" : "s");
  return text;
}

OrderedJson verdicts_json(const std::vector<GateVerdict>& verdicts) {
  OrderedJson list = OrderedJson::array();
  for (const GateVerdict& verdict : verdicts) {
    OrderedJson json{{"id", verdict.id},
                     {"role", role_name(verdict.role)},
                     {"gate", verdict.gate},
                     {"outcome", verdict.outcome == GateOutcome::kFail    ? "fail"
                                 : verdict.outcome == GateOutcome::kShown ? "shown"
                                                                          : "pass"},
                     {"sentence", verdict.sentence}};
    if (verdict.base) json["base"] = *verdict.base;
    if (verdict.candidate) json["candidate"] = *verdict.candidate;
    if (verdict.base && verdict.candidate) {
      json["change"] = verdict.change;
      json["noise"] = verdict.noise;
    }
    list.push_back(std::move(json));
  }
  return {{"passed", all_passed(verdicts)}, {"verdicts", list}};
}

}  // namespace foveal::tools
