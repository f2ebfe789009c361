#include "plan/cpu_features.hpp"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/format.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace foveal::planner {
namespace {

/// An instruction set and the matrix rate of one core in FLOP a cycle, by input type.
struct InstructionSet {
  const char* name;
  double fp32_per_cycle;
  double fp16_per_cycle;
  double bf16_per_cycle;
};

// Two fused multiply-adds a cycle at the vector's width, which AVX-512 on Zen 4 reaches at half
// width; vdpbf16ps multiplies two pairs where they multiply one; 16-bit types without an
// instruction of their own run at the fp32 rate. The best set first; "portable" is what the
// compiler makes for any processor of the architecture.
#if defined(__x86_64__)
constexpr InstructionSet kInstructionSets[] = {
    {"amx_bf16", 64, 64, 1024}, {"avx512_bf16", 32, 32, 64}, {"avx512", 32, 32, 32},
    {"avx2", 32, 32, 32},       {"sse4", 8, 8, 8},           {"portable", 8, 8, 8},
};

std::string_view best_name() {
  if (has_amx_bf16()) return "amx_bf16";
  if (__builtin_cpu_supports("avx512bf16")) return "avx512_bf16";
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) return "avx512";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "avx2";
  if (__builtin_cpu_supports("sse4.2")) return "sse4";
  return "portable";
}
#else
constexpr InstructionSet kInstructionSets[] = {{"neon", 16, 16, 16}, {"portable", 8, 8, 8}};

std::string_view best_name() { return "neon"; }
#endif

/// The sets that this processor has, the best first.
std::span<const InstructionSet> available_sets() {
  const InstructionSet* best = kInstructionSets;
  while (best_name() != best->name) ++best;
  return {best, std::end(kInstructionSets)};
}

Result<InstructionSet> choose_set(std::optional<std::string_view> name) {
  static const std::span<const InstructionSet> available = available_sets();
  if (!name) return available.front();
  std::string names;
  for (const InstructionSet& set : available) {
    if (*name == set.name) return set;
    names += concat(names.empty() ? "" : ", ", set.name);
  }
  return Status::invalid_argument(concat("FOVEAL_CPU_ISA=", *name, ": this processor has ", names));
}

struct ProcessorText {
  std::string name;
  double mhz = 0;
};

/// Model name and clock from the kernel; defaults where it doesn't say.
ProcessorText read_processor_text() {
  constexpr double kTypicalMhz = 2500;
  ProcessorText text{"CPU", kTypicalMhz};
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string_view key(line.data(), colon);
    if (key.starts_with("model name")) text.name = line.substr(colon + 2);
    if (key.starts_with("cpu MHz")) {
      const double mhz = std::strtod(line.c_str() + colon + 2, nullptr);
      if (mhz > 0) text.mhz = mhz;
      break;  // the first core's entry has both
    }
  }
  return text;
}

std::int64_t read_l2_bytes() {
  constexpr std::int64_t kTypicalL2Bytes = 1 << 20;
  const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? bytes : kTypicalL2Bytes;
}

}  // namespace

bool has_amx_bf16() {
#if defined(__x86_64__)
  constexpr unsigned kFeatureLeaf = 7;
  constexpr unsigned kAmxBits = (1u << 22) | (1u << 24);  // amx-bf16, amx-tile in EDX
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(kFeatureLeaf, 0, &eax, &ebx, &ecx, &edx) != 0 &&
         (edx & kAmxBits) == kAmxBits;
#else
  return false;
#endif
}

Result<DeviceInfo> describe_cpu(std::int32_t num_threads,
                                std::optional<std::string_view> isa_name) {
  FOVEAL_ASSIGN_OR_RETURN(isa, choose_set(isa_name));
  static const ProcessorText processor = read_processor_text();
  static const std::int64_t l2_bytes = read_l2_bytes();

  // One core draws about 26 GB/s; a socket's memory ends near 200 GB/s.
  constexpr double kReadGbsPerThread = 26;
  constexpr double kReadGbsMax = 200;
  const double threads_ghz = num_threads * processor.mhz / 1e3;
  const double read_gbs = num_threads * kReadGbsPerThread;

  DeviceInfo info;
  info.type = DeviceType::kCpu;
  info.name = processor.name;
  info.num_threads = num_threads;
  info.isa = isa.name;
  info.l2_bytes = l2_bytes;
  info.fp32_gflops = threads_ghz * isa.fp32_per_cycle;
  info.fp16_gflops = threads_ghz * isa.fp16_per_cycle;
  info.bf16_gflops = threads_ghz * isa.bf16_per_cycle;
  info.read_gbs = read_gbs < kReadGbsMax ? read_gbs : kReadGbsMax;
  info.limits_source = concat("estimated from ", num_threads, " threads of ", isa.name, " at ",
                              processor.mhz, " MHz (foveal devices --measure measures)");
  return info;
}

}  // namespace foveal::planner
