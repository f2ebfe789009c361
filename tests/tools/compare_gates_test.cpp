// Each gate at, inside and outside of its limit, and what a result file may get wrong.
#include "tools/compare_gates.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foveal::tools {
namespace {

using testing::HasSubstr;

MeasuredWorkload workload(const char* id, WorkloadRole role, double median_us, double noise = 0) {
  return {.id = id,
          .role = role,
          .correct = true,
          .median_us = median_us,
          .noise = noise,
          .peak_bytes = 1000};
}

MeasuredManifest with(MeasuredWorkload row) {
  MeasuredManifest manifest;
  manifest.workloads.push_back(std::move(row));
  return manifest;
}

const GateVerdict& gate_of(const std::vector<GateVerdict>& verdicts, const char* gate) {
  for (const GateVerdict& verdict : verdicts) {
    if (verdict.gate == gate) return verdict;
  }
  ADD_FAILURE() << "no gate " << gate;
  return verdicts.front();
}

GateVerdict latency(WorkloadRole role, double base_us, double candidate_us, double noise = 0) {
  const auto verdicts = apply_gates(with(workload("w", role, base_us, noise)),
                                    with(workload("w", role, candidate_us, 0)));
  return gate_of(verdicts, "latency");
}

TEST(CompareGates, TargetsMustBeFasterByTheGateAndTheNoise) {
  EXPECT_EQ(latency(WorkloadRole::kTarget, 100, 94.9).outcome, GateOutcome::kPass);
  EXPECT_EQ(latency(WorkloadRole::kTarget, 100, 95.1).outcome, GateOutcome::kFail);
  EXPECT_EQ(latency(WorkloadRole::kTarget, 100, 100).outcome, GateOutcome::kFail);
  const GateVerdict noisy = latency(WorkloadRole::kTarget, 100, 92, 0.10);
  EXPECT_EQ(noisy.outcome, GateOutcome::kFail) << "8 % faster, where noise alone makes 10 %";
  EXPECT_THAT(noisy.sentence, HasSubstr("-8.0 %, within noise"));
  EXPECT_THAT(latency(WorkloadRole::kTarget, 100, 98).sentence, HasSubstr("missed by 3.0 %"));
}

TEST(CompareGates, ProtectedAndGuardsMayBeSlowerByTheGateAndTheNoise) {
  for (const WorkloadRole role : {WorkloadRole::kProtected, WorkloadRole::kGuard}) {
    EXPECT_EQ(latency(role, 100, 104.9).outcome, GateOutcome::kPass);
    const GateVerdict slow = latency(role, 100, 107);
    EXPECT_EQ(slow.outcome, GateOutcome::kFail);
    EXPECT_THAT(slow.sentence, HasSubstr("+7.0 %; at most +5.0 % with 0.0 % of noise: missed by"));
    EXPECT_EQ(latency(role, 100, 107, 0.03).outcome, GateOutcome::kPass);
    EXPECT_EQ(latency(role, 100, 50).outcome, GateOutcome::kPass);
  }
  EXPECT_EQ(latency(WorkloadRole::kInfo, 100, 500).outcome, GateOutcome::kShown);
}

TEST(CompareGates, NoiseOfBothFilesAddsUp) {
  const auto verdicts = apply_gates(with(workload("w", WorkloadRole::kProtected, 100, 0.02)),
                                    with(workload("w", WorkloadRole::kProtected, 108.9, 0.02)));
  EXPECT_EQ(gate_of(verdicts, "latency").outcome, GateOutcome::kPass);
  EXPECT_DOUBLE_EQ(gate_of(verdicts, "latency").noise, 0.04);
}

TEST(CompareGates, MemoryHasNoNoise) {
  const auto memory = [](WorkloadRole role, double bytes) {
    MeasuredWorkload candidate = workload("w", role, 50);
    candidate.peak_bytes = bytes;
    return gate_of(apply_gates(with(workload("w", role, 100, 0.5)), with(candidate)), "memory");
  };
  EXPECT_EQ(memory(WorkloadRole::kProtected, 1020).outcome, GateOutcome::kPass);
  EXPECT_EQ(memory(WorkloadRole::kProtected, 1021).outcome, GateOutcome::kFail);
  EXPECT_EQ(memory(WorkloadRole::kGuard, 1100).outcome, GateOutcome::kFail);
  EXPECT_EQ(memory(WorkloadRole::kTarget, 1100).outcome, GateOutcome::kShown);
}

TEST(CompareGates, AWrongOrMissingCandidateFailsWhateverItsRole) {
  for (const WorkloadRole role : {WorkloadRole::kTarget, WorkloadRole::kProtected,
                                  WorkloadRole::kGuard, WorkloadRole::kInfo}) {
    MeasuredWorkload wrong = workload("w", role, 1);
    wrong.correct = false;
    EXPECT_FALSE(all_passed(apply_gates(with(workload("w", role, 100)), with(wrong))));
    const auto missing = apply_gates(with(workload("w", role, 100)), MeasuredManifest{});
    EXPECT_FALSE(all_passed(missing));
    EXPECT_EQ(missing[0].sentence, "the candidate has no such workload");
  }
}

TEST(CompareGates, ABaseWithoutATimeCannotProveASpeed) {
  MeasuredWorkload untimed = workload("w", WorkloadRole::kTarget, 1);
  untimed.median_us.reset();
  const auto verdicts = apply_gates(with(untimed), with(workload("w", WorkloadRole::kTarget, 1)));
  EXPECT_EQ(gate_of(verdicts, "latency").outcome, GateOutcome::kFail);
  EXPECT_EQ(gate_of(verdicts, "latency").sentence, "the base has no time");
}

TEST(CompareGates, AnIdIsOneProblem) {
  MeasuredWorkload base = workload("w", WorkloadRole::kTarget, 10);
  MeasuredWorkload candidate = base;
  EXPECT_TRUE(check_problems(with(base), with(candidate)));
  base.problem = "forward fp16 q[1, 1, 16, 128]";
  EXPECT_TRUE(check_problems(with(base), with(candidate))) << "a peer's file may say nothing";
  candidate.problem = "forward fp16 q[9, 9, 9, 9]";
  EXPECT_THAT(check_problems(with(base), with(candidate)).message(),
              HasSubstr("workload w is forward fp16 q[1, 1, 16, 128] in the base and forward fp16 "
                        "q[9, 9, 9, 9] in the candidate"));
}

TEST(CompareGates, TheTextEndsInTheSum) {
  const auto good = apply_gates(with(workload("w", WorkloadRole::kTarget, 100)),
                                with(workload("w", WorkloadRole::kTarget, 50)));
  EXPECT_THAT(verdicts_text(good), HasSubstr("all gates passed\n"));
  EXPECT_TRUE(verdicts_json(good)["passed"].get<bool>());
  const auto bad = apply_gates(with(workload("w", WorkloadRole::kTarget, 100)),
                               with(workload("w", WorkloadRole::kTarget, 100)));
  EXPECT_THAT(verdicts_text(bad), HasSubstr("1 gate failed\n"));
  EXPECT_THAT(verdicts_text(bad), HasSubstr("FAIL"));
}

const char* const kFile = R"({"schema": "foveal-bench-1", "implementation": "foveal",
  "manifest": "m", "gates": {"improve": 0.1, "protected_latency": 0.2, "protected_memory": 0.3},
  "device": {"name": "cpu", "num_threads": 2},
  "workloads": [{"id": "w", "role": "guard", "correct": {"passed": true}, "peak_bytes": 10,
                 "noise": 0.01, "time_us": {"median": 2.5}}]})";

std::string spoiled(const std::string& from, const std::string& to) {
  std::string text = kFile;
  text.replace(text.find(from), from.size(), to);
  return text;
}

TEST(ParseMeasured, ReadsWhatTheGatesNeed) {
  const auto measured = parse_measured(kFile, "f.json");
  ASSERT_TRUE(measured) << measured.status().message();
  EXPECT_EQ(measured->implementation, "foveal");
  EXPECT_EQ(measured->machine, "cpu, 2 threads");
  EXPECT_DOUBLE_EQ(measured->gates.improve, 0.1);
  ASSERT_EQ(measured->workloads.size(), 1u);
  EXPECT_EQ(measured->workloads[0].role, WorkloadRole::kGuard);
  EXPECT_DOUBLE_EQ(*measured->workloads[0].median_us, 2.5);
}

TEST(ParseMeasured, RefusesWithOneSentence) {
  const std::pair<std::string, const char*> cases[] = {
      {"{}", "f.json"},
      {spoiled("foveal-bench-1", "other-2"), "foveal compare reads foveal-bench-1"},
      {spoiled("\"guard\"", "\"chief\""), "chief"},
      {spoiled("\"median\": 2.5", "\"median\": 0"), "it must be above 0"},
      {spoiled("\"median\": 2.5", "\"median\": -1"), "median"},
      {spoiled("\"median\": 2.5", "\"mean\": 2.5"), "median"},
      {spoiled("\"peak_bytes\": 10,", ""), "peak_bytes"},
      {spoiled("\"passed\": true", "\"passed\": 1"), "passed"},
      {spoiled("[{", "{\"a\": [{"), "f.json"},
      {R"({"schema": "foveal-bench-1", "implementation": "i", "manifest": "m", "workloads": []})",
       "it must be an array with at least one"},
      {"nonsense", "f.json"},
  };
  for (const auto& [text, message] : cases) {
    const auto measured = parse_measured(text, "f.json");
    ASSERT_FALSE(measured) << text;
    EXPECT_THAT(measured.status().message(), HasSubstr(message)) << text;
  }
}

TEST(ParseMeasured, RefusesAWorkloadThatIsThereTwice) {
  std::string text = kFile;
  const std::size_t begin = text.find("[{") + 1;
  const std::string row = text.substr(begin, text.rfind(']') - begin);
  text.insert(begin, row + ", ");
  const auto measured = parse_measured(text, "f.json");
  ASSERT_FALSE(measured);
  EXPECT_THAT(measured.status().message(), HasSubstr("workload 'w' is there twice"));
}

}  // namespace
}  // namespace foveal::tools
