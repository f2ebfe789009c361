// The one list of kernels.
#pragma once

#include <span>

#include "plan/kernel_entry.hpp"

namespace foveal::planner {

/// In the order of preference between equal predictions, and under batch_invariant, where a
/// prediction must not decide.
[[nodiscard]] std::span<const KernelEntry* const> kernel_table();

/// The entry of a name; null when there is none.
[[nodiscard]] const KernelEntry* find_kernel(std::string_view name);

}  // namespace foveal::planner

namespace foveal::cpu {
extern const planner::KernelEntry kBlockedForward;
extern const planner::KernelEntry kBlockedBackward;
extern const planner::KernelEntry kAppend;
extern const planner::KernelEntry kMerge;
}  // namespace foveal::cpu

namespace foveal::cuda {
extern const planner::KernelEntry kDecode;
extern const planner::KernelEntry kHopperForward;
extern const planner::KernelEntry kHopperWideForward;
extern const planner::KernelEntry kPortableForward;
extern const planner::KernelEntry kPortableForwardFp32;
extern const planner::KernelEntry kHopperBackward;
extern const planner::KernelEntry kHopperWideBackward;
extern const planner::KernelEntry kPortableBackward;
extern const planner::KernelEntry kPortableBackwardFp32;
extern const planner::KernelEntry kAppend;
extern const planner::KernelEntry kMerge;
}  // namespace foveal::cuda
