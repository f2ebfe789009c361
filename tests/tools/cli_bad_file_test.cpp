// Files that are not safetensors files, paths that can't be written, memory that isn't there, and
// command lines that make no sense: one sentence, exit code 2, nothing written.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "support/source_directory.hpp"
#include "tests/tools/cli_process.hpp"
#include "tests/tools/input_file.hpp"
#include "tests/tools/temporary_directory.hpp"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FOVEAL_TEST_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FOVEAL_TEST_SANITIZED
#endif

namespace foveal::tools {
namespace {

/// A file by its header's text and the number of bytes of data behind it.
std::string raw_file(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t size = header.size();
  std::string bytes(sizeof(size), '\0');
  std::memcpy(bytes.data(), &size, sizeof(size));
  return bytes + header + std::string(data_bytes, '\0');
}

void expect_refused(const CliRun& run, const std::string& message) {
  EXPECT_EQ(run.exit_code, 2) << run.err;
  EXPECT_NE(run.err.find(message), std::string::npos) << run.err;
  EXPECT_TRUE(is_one_error_line(run.err)) << run.err;
  EXPECT_EQ(run.out, "");
}

struct BadFile {
  const char* name;
  std::string bytes;
  std::string message;
};

void PrintTo(const BadFile& file, std::ostream* out) { *out << file.name; }

class CliBadFile : public testing::TestWithParam<BadFile> {};

TEST_P(CliBadFile, IsRefusedInOneSentenceAndNothingIsWritten) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("in.safetensors", GetParam().bytes);
  expect_refused(run_cli({"run", path, "-o", directory.file("out.safetensors")}),
                 GetParam().message);
  EXPECT_EQ(directory.num_entries(), 1u) << "something was left beside the input";
  expect_refused(run_cli({"explain", path}), GetParam().message);
}

const BadFile kFiles[] = {
    {"Empty", "", "is empty"},
    {"ShorterThanASize", "abc", "too few for a safetensors file"},
    {"HeaderLargerThanTheFile", raw_file(std::string(16, ' '), 0).substr(0, 12),
     "header size 16: only 4 bytes follow"},
    {"HeaderLargerThanAllowed", std::string(8, '\x7f') + "{}", "allows at most 100000000 bytes"},
    {"HeaderThatIsNotJson", raw_file("not json", 0), "header"},
    {"TruncatedData", raw_file(R"({"q":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", 15),
     "truncated"},
    {"OffsetsPastTheEnd",
     raw_file(R"({"q":{"dtype":"F32","shape":[4],"data_offsets":[64,80]}})", 16),
     "data_offsets [64, 80] end past the 16 bytes of data"},
    {"OverlappingOffsets",
     raw_file(R"({"q":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},)"
              R"("k":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}})",
              24),
     "overlap"},
    {"UnknownDtype", raw_file(R"({"q":{"dtype":"F12","shape":[4],"data_offsets":[0,6]}})", 6),
     "F12"},
    {"ShapeThatOverflows",
     raw_file(R"({"q":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],)"
              R"("data_offsets":[0,16]}})",
              16),
     "2^63 - 1 bytes"},
    {"ShapeThatOverflowsToZero",
     raw_file(R"({"q":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
     "2^63 - 1 bytes"},
};
INSTANTIATE_TEST_SUITE_P(Files, CliBadFile, testing::ValuesIn(kFiles),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(CliBadPath, MissingFileIsRefused) {
  const TemporaryDirectory directory;
  expect_refused(
      run_cli({"run", directory.file("none.safetensors"), "-o", directory.file("out.safetensors")}),
      "none.safetensors: can't be opened: No such file or directory");
  EXPECT_EQ(directory.num_entries(), 0u);
}

TEST(CliBadPath, DirectoryAsInputIsRefused) {
  const TemporaryDirectory directory;
  expect_refused(run_cli({"run", directory.path()}), "is a directory");
}

TEST(CliBadPath, NameWithALineBreakStaysOnOneLine) {
  expect_refused(run_cli({"run", "/nowhere/a\nb"}), "can't be opened");
}

TEST(CliBadPath, OutputInAMissingDirectoryIsRefusedBeforeTheInputIsRead) {
  const TemporaryDirectory directory;
  expect_refused(run_cli({"run", directory.file("none.safetensors"), "-o",
                          directory.file("none/out.safetensors")}),
                 "none/out.safetensors: can't be written");
  EXPECT_EQ(directory.num_entries(), 0u);
}

TEST(CliBadPath, DirectoryAsOutputIsRefused) {
  const TemporaryDirectory directory;
  const std::string path = dense_input().write(directory.file("in.safetensors"));
  expect_refused(run_cli({"run", path, "-o", directory.path()}), "it is a directory");
  EXPECT_EQ(directory.num_entries(), 1u);
}

TEST(CliBadPath, StandardOutputOnAFullDeviceIsAnError) {
  const CliRun run = run_cli({"devices"}, {.environment = {}, .stdout_path = "/dev/full"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find("standard output can't be written"), std::string::npos) << run.err;
}

struct BadUsage {
  const char* name;
  std::vector<std::string> arguments;
  std::string message;
};

void PrintTo(const BadUsage& usage, std::ostream* out) { *out << usage.name; }

class CliBadUsage : public testing::TestWithParam<BadUsage> {};

TEST_P(CliBadUsage, IsRefusedInOneSentence) {
  expect_refused(run_cli(GetParam().arguments), GetParam().message);
}

const std::string kExample =
    test::source_directory() + "/examples/data/minilm-packed-layer0.safetensors";

const BadUsage kUsage[] = {
    {"NoCommand", {}, "A subcommand is required"},
    {"UnknownCommand", {"jump"}, "'jump': no such command"},
    {"NoFile", {"run"}, "FILE is required"},
    {"UnknownFlag", {"run", kExample, "--chek"}, "--chek"},
    {"FlagWithoutValue", {"run", kExample, "--softcap"}, "--softcap"},
    {"NumberThatIsNone", {"run", kExample, "--softcap", "much"}, "'much': must be a number"},
    {"RepeatsZero", {"run", kExample, "--repeats", "0"}, "--repeats"},
    {"DtypeThatIsNone", {"run", kExample, "--dtype", "fp8"}, "fp8"},
    {"DeviceThatIsNone",
     {"run", kExample, "--device", "tpu"},
     "device tpu: cpu, cpu:THREADS, cuda, cuda:INDEX or sm_NN"},
    {"DeviceThatIsDescribedAlone",
     {"run", kExample, "--device", "sm_90"},
     "--device sm_90: a description to explain plans for, not a device of this machine"},
    {"ThreadsZero", {"run", kExample, "--threads", "0"}, "--threads"},
    {"KernelThatIsNone",
     {"run", kExample, "--kernel", "fast"},
     "--kernel 'fast': there is no such kernel; there are cpu_blocked_fwd"},
    {"KernelOfAnotherPass",
     {"run", kExample, "--kernel", "cpu_merge"},
     "--kernel cpu_merge: no pass of this file runs it"},
    {"ExplainHeaddim", {"explain", "--headdim", "520"}, "headdim 520: at most 512"},
    {"ExplainHeaddimZero", {"explain", "--headdim", "0"}, "headdim 0: at least 1"},
    {"ExplainHeads",
     {"explain", "--nheads-q", "6", "--nheads-k", "4"},
     "nheads_q 6: it must be a multiple of nheads_k 4"},
    {"ExplainSizeThatOverflows",
     {"explain", "--batch", "2147483647", "--seqlen-k", "2147483647", "--nheads-q", "2147483647"},
     "its size in bytes must fit in 64 bits"},
    {"ExplainTotalThatOverflows",
     {"explain", "--doc-lens", "2147483647,1"},
     "--doc-lens: the lengths add up to more than 2147483647 tokens"},
    {"ExplainNegativeLength", {"explain", "--seqlen-k", "-4"}, "--seqlen-k"},
    {"ExplainDocumentsInADenseLayout",
     {"explain", "--doc-lens", "4,5", "--layout", "bshd"},
     "--layout bshd: packed documents have layout thd"},
    {"ExplainKeysOfOtherDocuments",
     {"explain", "--doc-lens", "4,5", "--doc-lens-k", "4"},
     "--doc-lens-k has 1 lengths: --doc-lens has 2"},
    {"ExplainBatchBesideDocuments",
     {"explain", "--doc-lens", "4,5", "--batch", "2"},
     "--batch beside --doc-lens: the number of documents says it already"},
    {"ExplainQueriesBesideDocuments",
     {"explain", "--doc-lens", "4,5", "--seqlen-q", "9"},
     "--seqlen-q beside --doc-lens: their list says it already"},
    {"ExplainKeysBesideDocuments",
     {"explain", "--doc-lens", "4,5", "--seqlen-k", "9"},
     "--seqlen-k beside --doc-lens: --doc-lens-k or --doc-lens says it already"},
    {"ExplainOctalExtent", {"explain", "--batch", "010"}, "--batch: 010 is no decimal number"},
    {"ExplainHexadecimalExtent",
     {"explain", "--seqlen-k", "0x40"},
     "--seqlen-k: 0x40 is no decimal number"},
    {"ExplainMaxSeqlenOfDense",
     {"explain", "--max-seqlen", "64"},
     "--max-seqlen is of packed documents: there are none"},
    {"ExplainPageWithoutKeys",
     {"explain", "--page-size", "0"},
     "--page-size: Value 0 not in range"},
    {"ExplainKeysOfNoDocuments",
     {"explain", "--doc-lens-k", "4,5"},
     "--doc-lens-k: their queries are those of --doc-lens"},
    {"ExplainKeysOfDocumentsInACache",
     {"explain", "--doc-lens", "4,5", "--doc-lens-k", "4,5", "--page-size", "16"},
     "--doc-lens-k: a cache has the capacity of --seqlen-k for each sequence"},
    {"ExplainTooManyDocuments",
     {"explain", "--varlen", "--batch", "2147483647", "--seqlen-k", "1"},
     "--batch 2147483647: at most 16777216 documents"},
    {"ExplainSinksOfAnAppend",
     {"explain", "--pass", "append", "--sinks"},
     "--sinks: --pass append has nothing of it"},
    {"ExplainPagesOfAMerge",
     {"explain", "--pass", "merge", "--page-size", "16"},
     "--page-size: --pass merge has nothing of it"},
    {"ExplainFlagWithAValue", {"explain", "--causal=maybe"}, "causal"},
    {"RunOverItsInput", {"run", kExample, "-o", kExample}, "the results would replace the input"},
    {"ExplainHalfAPair",
     {"explain", "--seqlen-new", "1", "--rotary-dim", "63"},
     "--rotary-dim 63: dimensions turn in pairs, so it is even"},
    {"ExplainRotaryOfNothing",
     {"explain", "--rotary-dim", "64"},
     "--rotary-dim turns the tokens of --seqlen-new or --pass append: there are none"},
    {"ExplainFileAndShape",
     {"explain", kExample, "--batch", "2"},
     "--batch is given with a file: the file says it"},
    {"ExplainUnknownDevice", {"explain", "--device", "sm_1"}, "device sm_1: described are sm_80"},
    {"DevicesUnknown", {"devices", "--device", "cpu:0"}, "device cpu:0"},
};
INSTANTIATE_TEST_SUITE_P(Usage, CliBadUsage, testing::ValuesIn(kUsage),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(CliAbsentDevice, CudaIsRefusedWhereThereIsNone) {
  const nlohmann::json devices = run_cli({"devices", "--json"}).json();
  for (const auto& device : devices["devices"]) {
    if (device["type"] == "cuda") GTEST_SKIP() << "this machine has one";
  }
  const CliRun run = run_cli({"run", kExample, "--device", "cuda:0"});
  expect_refused(run, "cuda:0");
  if (FOVEAL_WITH_CUDA == 0) return;
  const bool driver_without_gpu = run.err.find("no CUDA-capable device") != std::string::npos;
  EXPECT_TRUE(driver_without_gpu ||
              run.err.find("no NVIDIA driver is loaded, or one older than CUDA") !=
                  std::string::npos)
      << run.err;
}

#if !defined(FOVEAL_TEST_SANITIZED)

/// Narrow queries and wide values: out is 64 times as large as q.
void write_wide_values(const std::string& path, std::int64_t seqlen_q) {
  InputFile file;
  file.zeros("q", FileDType::kF32, {1, seqlen_q, 4, 8});
  file.zeros("k", FileDType::kF32, {1, 1, 4, 8}).zeros("v", FileDType::kF32, {1, 1, 4, 512});
  file.write(path);
}

constexpr std::uint64_t kAddressSpace = std::uint64_t{640} << 20;

TEST(CliMemory, ResultsThatDoNotFitAreRefusedBeforeAnyWork) {
  const TemporaryDirectory directory;
  write_wide_values(directory.file("in.safetensors"), 1 << 17);
  const CliRun run =
      run_cli({"run", directory.file("in.safetensors"), "-o", directory.file("out.safetensors")},
              {.environment = {}, .address_space = kAddressSpace});
  expect_refused(run, "out of memory: out needs 1073741824 bytes");
  EXPECT_EQ(directory.num_entries(), 1u);

  const CliRun explained = run_cli({"explain", directory.file("in.safetensors")},
                                   {.environment = {}, .address_space = kAddressSpace});
  EXPECT_EQ(explained.exit_code, 0) << "a plan needs no results: " << explained.err;
}

TEST(CliMemory, OracleThatDoesNotFitIsRefused) {
  const TemporaryDirectory directory;
  write_wide_values(directory.file("in.safetensors"), 1 << 15);
  const CliRun run = run_cli({"run", directory.file("in.safetensors"), "--oracle", "-o",
                              directory.file("out.safetensors")},
                             {.environment = {}, .address_space = kAddressSpace});
  expect_refused(run, "the oracle's results in double do not fit in memory");
  EXPECT_EQ(directory.num_entries(), 1u);
}

TEST(CliMemory, FileThatDoesNotFitIsRefused) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("in.safetensors");
  dense_input().write(path);
  std::filesystem::resize_file(path, std::uint64_t{2} << 30);  // sparse: no byte is written
  const CliRun run = run_cli({"run", path}, {.environment = {}, .address_space = kAddressSpace});
  expect_refused(run, "can't be mapped into memory: Cannot allocate memory");
}

#endif

}  // namespace
}  // namespace foveal::tools
