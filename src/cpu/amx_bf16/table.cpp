#include "cpu/amx_bf16/table.hpp"

#include <optional>

#if FOVEAL_WITH_AMX_BF16
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu/amx_bf16/functions.hpp"
#endif

namespace foveal::cpu::amx_bf16 {

#if FOVEAL_WITH_AMX_BF16
namespace {

bool processor_has_amx() {
  constexpr unsigned kFeatureLeaf = 7;
  constexpr unsigned kAmxBits = (1u << 22) | (1u << 24);  // amx-bf16, amx-tile in EDX
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(kFeatureLeaf, 0, &eax, &ebx, &ecx, &edx) != 0 &&
         (edx & kAmxBits) == kAmxBits;
}

/// Linux saves the tile registers only of processes that ask for them (arch_prctl(2)).
bool system_lets_us() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

std::optional<TileMath> make_table() {
  const TileMath* rows = avx512_bf16::table();
  if (rows == nullptr || !processor_has_amx() || !system_lets_us()) return std::nullopt;
  TileMath table = *rows;
  table.name = "amx_bf16";
  table.depth_step = 16;  // of a tile register
  table.multiply_packed = multiply_packed;
  table.accumulate = accumulate;
  table.accumulate_transposed = accumulate_transposed;
  return table;
}

}  // namespace

const TileMath* table() {
  static const std::optional<TileMath> available = make_table();
  return available ? &*available : nullptr;
}
#else
const TileMath* table() { return nullptr; }
#endif

}  // namespace foveal::cpu::amx_bf16
