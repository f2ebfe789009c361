// What the CPU reaches in practice: the ceilings that times are held against.
#pragma once

#include <cstdint>
#include <string>

#include <foveal/status.hpp>

namespace foveal::tools {

struct MachineRates {
  std::int32_t num_threads = 1;
  std::string instruction_set;  ///< That the multiplications used.
  double fp32_gflops = 0;  ///< Multiply-adds of a blocked matrix product, operands in the L1 cache.
  double read_gbs = 0;     ///< Sum over memory far larger than the caches, in 1e9 bytes a second.
};

/// Takes about a second and 64 MiB a thread (at least 256 MiB in all). Each rate is the best of
/// several rounds.
Result<MachineRates> measure_machine(std::int32_t num_threads);

}  // namespace foveal::tools
