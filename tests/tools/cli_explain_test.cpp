// foveal explain, foveal devices and what the command says about itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/tools/cli_process.hpp"
#include "tests/tools/input_file.hpp"
#include "tests/tools/temporary_directory.hpp"

namespace foveal::tools {
namespace {

nlohmann::json explained(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "explain");
  arguments.emplace_back("--json");
  const CliRun run = run_cli(arguments);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  const nlohmann::json json = run.json();
  EXPECT_FALSE(json.is_discarded()) << run.out;
  return json["passes"].empty() ? nlohmann::json() : json["passes"][0];
}

TEST(CliExplain, FlagsBecomeTheProblem) {
  EXPECT_EQ(
      explained({"--batch",    "2",     "--seqlen-q",     "3",        "--seqlen-k", "40",
                 "--nheads-q", "8",     "--nheads-k",     "2",        "--headdim",  "64",
                 "--dtype",    "bf16",  "--causal",       "--window", "7,0",        "--softcap",
                 "20",         "--lse", "--deterministic"})["problem"],
      "forward bf16 q[2, 3, 8, 64] k[2, 40, 2, 64] causal window 7,0 softcap 20 lse "
      "deterministic");
}

TEST(CliExplain, WindowMayBeginWithAMinus) {
  EXPECT_EQ(explained({"--seqlen-k", "8", "--window", "-1,0"})["problem"],
            "forward fp16 q[1, 8, 16, 128] k[1, 8, 16, 128] window -1,0");
}

TEST(CliExplain, EveryPassHasAKernelOnTheCpu) {
  const std::vector<std::pair<const char*, const char*>> passes{
      {"forward", "cpu_blocked_fwd"},
      {"backward", "cpu_blocked_bwd"},
      {"append", "cpu_append"},
      {"merge", "cpu_merge"},
  };
  for (const auto& [pass, kernel] : passes) {
    const nlohmann::json plan = explained({"--pass", pass, "--seqlen-k", "64"});
    EXPECT_EQ(plan["kernel"], kernel);
    EXPECT_GT(plan["predicted_time_us"], 0) << pass;
    const auto& kernels = plan["kernels"];
    EXPECT_EQ(std::count_if(kernels.begin(), kernels.end(),
                            [](const auto& k) { return k["outcome"] == "chosen"; }),
              1);
    for (const auto& verdict : kernels) EXPECT_NE(verdict["reason"], "") << verdict;
  }
}

TEST(CliExplain, DocumentsGiveTheWorkOfTheirOwnLengths) {
  const nlohmann::json plan =
      explained({"--doc-lens", "100,50,0", "--nheads-q", "2", "--headdim", "32"});
  EXPECT_EQ(plan["problem"], "forward fp16 q[150, 2, 32] k[150, 2, 32] packed");
  EXPECT_EQ(plan["work_of_lengths"]["visible_pairs"], 2 * (100 * 100 + 50 * 50));
  const nlohmann::json longer =
      explained({"--doc-lens", "100,50", "--doc-lens-k", "100,150", "--headdim", "32"});
  EXPECT_EQ(longer["problem"], "forward fp16 q[150, 16, 32] k[250, 16, 32] packed");
  EXPECT_EQ(explained({"--varlen", "--batch", "3", "--seqlen-k", "8"})["problem"],
            "forward fp16 q[24, 16, 128] k[24, 16, 128] packed");
}

TEST(CliExplain, KeysAreAsManyAsQueriesAndNotFew) {
  EXPECT_EQ(explained({"--seqlen-q", "4096"})["problem"],
            "forward fp16 q[1, 4096, 16, 128] k[1, 4096, 16, 128]");
  EXPECT_EQ(explained({"--seqlen-q", "1"})["problem"],
            "forward fp16 q[1, 1, 16, 128] k[1, 1024, 16, 128]");
  EXPECT_EQ(explained({})["problem"], "forward fp16 q[1, 1024, 16, 128] k[1, 1024, 16, 128]");
}

TEST(CliExplain, CachesAndPages) {
  EXPECT_EQ(explained({"--seqlen-q", "1", "--seqlen-k", "100", "--page-size", "16", "--batch",
                       "2"})["problem"],
            "forward fp16 q[2, 1, 16, 128] k[14, 16, 16, 128] paged[2, 7] seqused_k");
  EXPECT_EQ(explained({"--seqlen-q", "1", "--seqlen-new", "1", "--rotary-dim", "64", "--seqlen-k",
                       "32"})["problem"],
            "forward fp16 q[1, 1, 16, 128] k[1, 32, 16, 128] seqused_k k_new rotary_cos");
}

TEST(CliExplain, SideOperands) {
  EXPECT_EQ(explained({"--seqlen-k", "16", "--bias", "mask", "--sinks", "--alibi", "--pass",
                       "backward", "--layout", "bhsd"})["problem"],
            "backward fp16 q[1, 16, 16, 128] k[1, 16, 16, 128] lse bias sinks alibi_slopes");
}

TEST(CliExplain, DescribesDevicesThatAreNotHere) {
  const nlohmann::json plan = explained({"--device", "sm_120", "--seqlen-k", "4096"});
  EXPECT_EQ(plan["device"]["sm"], 120);
  EXPECT_EQ(plan["device"]["present"], false);
  EXPECT_GT(plan["roofline_time_us"], 0);
  for (const auto& kernel : plan["kernels"]) EXPECT_NE(kernel["reason"], "") << kernel;
}

TEST(CliExplain, FileGivesItsProblemAndItsBackward) {
  const TemporaryDirectory directory;
  InputFile input = dense_input();
  input.normal("dout", {2, 5, 4, 8}).integers("seqused_k", {1, 0});
  const std::string path = input.write(directory.file("in.safetensors"));
  const CliRun run = run_cli({"explain", path, "--json", "--causal"});
  const nlohmann::json passes = run.json()["passes"];
  ASSERT_EQ(passes.size(), 2u) << run.out << run.err;
  EXPECT_EQ(passes[0]["problem"], "forward fp32 q[2, 5, 4, 8] k[2, 7, 2, 8] causal lse seqused_k");
  EXPECT_EQ(passes[0]["work_of_lengths"]["visible_pairs"], 4) << "one key, seen by one row a head";
  EXPECT_EQ(passes[1]["kernel"], "cpu_blocked_bwd");
}

TEST(CliExplain, TextNamesTheKernelAndTheReasons) {
  const CliRun run = run_cli({"explain", "--seqlen-k", "64"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_NE(run.out.find("kernel     cpu_blocked_fwd"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("cpu_merge: it computes the merge pass, not forward"), std::string::npos)
      << run.out;
}

TEST(CliDevices, ListsTheCpuWithItsKernels) {
  const nlohmann::json devices = run_cli({"devices", "--json"}).json()["devices"];
  ASSERT_GE(devices.size(), 1u);
  EXPECT_EQ(devices[0]["type"], "cpu");
  EXPECT_GT(devices[0]["fp32_gflops"], 0);
  EXPECT_GT(devices[0]["read_gbs"], 0);
  EXPECT_EQ(devices[0]["kernels"][0]["usable"], true);
  EXPECT_FALSE(devices[0].contains("measured"));
}

TEST(CliDevices, SaysWhyAKernelCannotRunElsewhere) {
  const nlohmann::json devices =
      run_cli({"devices", "--device", "sm_90", "--json"}).json()["devices"];
  ASSERT_EQ(devices.size(), 1u);
  bool cpu_kernel_refused = false;
  for (const auto& kernel : devices[0]["kernels"]) {
    if (kernel["name"] != "cpu_blocked_fwd") continue;
    cpu_kernel_refused = kernel["usable"] == false && kernel["reason"] != "";
  }
  EXPECT_TRUE(cpu_kernel_refused) << devices;
  const CliRun text = run_cli({"devices", "--device", "sm_90"});
  EXPECT_NE(text.out.find("no  cpu_blocked_fwd: "), std::string::npos) << text.out;
}

TEST(CliDevicesSlow, MeasuresTheMachine) {
  const CliRun run = run_cli({"devices", "--device", "cpu:1", "--measure", "--json"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const nlohmann::json measured = run.json()["devices"][0]["measured"];
  EXPECT_GT(measured["fp32_gflops"], 0.1);
  EXPECT_GT(measured["read_gbs"], 0.1);
  EXPECT_EQ(measured["num_threads"], 1);
}

TEST(CliHelp, EveryCommandHasHelpWithAnExample) {
  for (const char* command : {"run", "explain", "bench", "compare", "devices"}) {
    const CliRun run = run_cli({command, "--help"});
    EXPECT_EQ(run.exit_code, 0) << command;
    EXPECT_EQ(run.err, "") << command;
    EXPECT_NE(run.out.find("Example"), std::string::npos) << command;
    EXPECT_NE(run.out.find(std::string("  foveal ") + command), std::string::npos) << run.out;
  }
  const CliRun all = run_cli({"--help"});
  EXPECT_EQ(all.exit_code, 0);
  EXPECT_NE(all.out.find("devices"), std::string::npos);
}

TEST(CliHelp, VersionIsOneLine) {
  const CliRun run = run_cli({"--version"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.out.find("foveal "), 0u);
  EXPECT_EQ(run.out.find('\n'), run.out.size() - 1);
}

}  // namespace
}  // namespace foveal::tools
