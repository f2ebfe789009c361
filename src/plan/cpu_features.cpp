#include "plan/cpu_features.hpp"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
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
// width; 16-bit types without an instruction of their own run at the fp32 rate.
#if defined(__x86_64__)
constexpr InstructionSet kAmxBf16{"amx_bf16", 64, 64, 1024};
constexpr InstructionSet kAvx512Bf16{"avx512_bf16", 32, 32, 128};
constexpr InstructionSet kAvx512{"avx512", 32, 32, 32};
constexpr InstructionSet kAvx2{"avx2", 32, 32, 32};
constexpr InstructionSet kBaseline{"sse2", 8, 8, 8};

bool has_amx_bf16() {
  constexpr unsigned kFeatureLeaf = 7;
  constexpr unsigned kAmxBits = (1u << 22) | (1u << 24);  // amx-bf16, amx-tile in EDX
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(kFeatureLeaf, 0, &eax, &ebx, &ecx, &edx) != 0 &&
         (edx & kAmxBits) == kAmxBits;
}

InstructionSet best_instruction_set() {
  if (has_amx_bf16()) return kAmxBf16;
  if (__builtin_cpu_supports("avx512bf16")) return kAvx512Bf16;
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) return kAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kAvx2;
  return kBaseline;
}
#else
constexpr InstructionSet kNeon{"neon", 16, 16, 16};
InstructionSet best_instruction_set() { return kNeon; }
#endif

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

DeviceInfo describe_cpu(std::int32_t num_threads) {
  static const InstructionSet isa = best_instruction_set();
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
