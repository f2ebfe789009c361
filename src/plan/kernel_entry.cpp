#include "plan/kernel_entry.hpp"

#include "core/integer.hpp"

namespace foveal::planner {
namespace {

constexpr auto kAlignment = static_cast<std::int64_t>(kWorkspaceAlignment);

}  // namespace

std::int64_t KernelConfig::workspace_bytes() const { return workspace_offset(workspace.size()); }

std::int64_t KernelConfig::workspace_offset(std::size_t index) const {
  std::int64_t offset = 0;
  for (std::size_t part = 0; part < index; ++part) {
    offset += round_up(workspace[part].bytes, kAlignment);
  }
  return offset;
}

}  // namespace foveal::planner
