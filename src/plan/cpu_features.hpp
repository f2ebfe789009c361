// What this machine's processor can do.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <foveal/device.hpp>
#include <foveal/status.hpp>

namespace foveal::planner {

/// The processor with the best instruction set that it has, or with the one named. kInvalidArgument
/// for a name that no set has or that the processor has not.
[[nodiscard]] Result<DeviceInfo> describe_cpu(std::int32_t num_threads,
                                              std::optional<std::string_view> isa_name);

/// Whether the processor has AMX tiles and their products of bf16; the system may still refuse
/// them.
[[nodiscard]] bool has_amx_bf16();

}  // namespace foveal::planner
