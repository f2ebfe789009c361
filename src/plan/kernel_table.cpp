#include "plan/kernel_table.hpp"

#include <array>

namespace foveal::planner {
namespace {

constexpr auto kKernels = std::to_array<const KernelEntry*>({
    &cpu::kBlockedForward,
    &cpu::kBlockedBackward,
    &cpu::kAppend,
    &cpu::kMerge,
    &cuda::kDecode,
    &cuda::kHopperForward,
    &cuda::kHopperWideForward,
    &cuda::kPortableForward,
    &cuda::kPortableForwardFp32,
    &cuda::kHopperBackward,
    &cuda::kHopperWideBackward,
    &cuda::kPortableBackward,
    &cuda::kPortableBackwardFp32,
    &cuda::kAppend,
    &cuda::kMerge,
});

}  // namespace

std::span<const KernelEntry* const> kernel_table() { return kKernels; }

const KernelEntry* find_kernel(std::string_view name) {
  for (const KernelEntry* entry : kKernels) {
    if (name == entry->name) return entry;
  }
  return nullptr;
}

}  // namespace foveal::planner
