// Which kernels a test program runs, and where. FOVEAL_TEST_KERNELS=a,b leaves only those: one run
// on a GPU machine then tests one kernel and spends no time on the others.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <foveal/plan.hpp>
#include <foveal/problem.hpp>

namespace foveal::test {

/// In place of a kernel's name: whatever the planner chooses on the GPU. The empty name: on the
/// CPU.
inline constexpr std::string_view kAnyGpuKernel = "cuda";

/// The device type of a kernel's name.
[[nodiscard]] DeviceType device_type_of(std::string_view kernel);

/// The kernels of a pass that this machine can run and FOVEAL_TEST_KERNELS leaves, by name.
[[nodiscard]] std::vector<std::string> usable_kernels_of(Pass pass);
/// Those of them that run on one type of device.
[[nodiscard]] std::vector<std::string> usable_kernels_of(Pass pass, DeviceType type);

/// Whether FOVEAL_TEST_KERNELS leaves out kernels: a test may then find nothing to run.
[[nodiscard]] bool kernels_are_filtered();

/// Whether FOVEAL_MAX_SMEM makes the GPU a smaller one, on which a kernel may find no room at all.
[[nodiscard]] bool shared_memory_is_limited();

/// Every CUDA kernel of the table that FOVEAL_TEST_KERNELS leaves, runnable here or not.
[[nodiscard]] std::vector<KernelInfo> cuda_kernels();

/// Why this machine can't run a CUDA kernel; empty where it can.
[[nodiscard]] std::string cuda_refusal(const std::string& kernel);

}  // namespace foveal::test
