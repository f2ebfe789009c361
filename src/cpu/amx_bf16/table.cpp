#include "cpu/amx_bf16/table.hpp"

#include <optional>

#if FOVEAL_WITH_AMX_BF16
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu/amx_bf16/functions.hpp"
#include "plan/cpu_features.hpp"
#endif

namespace foveal::cpu::amx_bf16 {

#if FOVEAL_WITH_AMX_BF16
namespace {

/// Linux saves the tile registers only of processes that ask for them (arch_prctl(2)).
bool system_lets_us() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

std::optional<TileMath> make_table() {
  const TileMath* rows = avx512_bf16::table();
  if (rows == nullptr || !planner::has_amx_bf16() || !system_lets_us()) return std::nullopt;
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
