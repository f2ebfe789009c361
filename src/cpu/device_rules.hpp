// What every CPU kernel tells the planner alike.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <foveal/device.hpp>
#include <foveal/problem.hpp>
#include <foveal/status.hpp>

namespace foveal::cpu {

/// Any CPU; elsewhere kUnsupported, naming the kernel and the device.
[[nodiscard]] Status require_cpu(const char* kernel, const DeviceInfo& device);

/// Workers worth starting for so many floating-point operations or bytes moved.
[[nodiscard]] std::int64_t worth_workers(const AttentionWork& work, const DeviceInfo& device);

/// Microseconds by the roofline: products at `efficiency` of the fp32 rate (all products run in
/// fp32, whatever the dtype), traffic at the read rate. Of the device's threads `workers` take
/// part.
[[nodiscard]] double roofline_us(const AttentionWork& work, std::int64_t workers,
                                 const DeviceInfo& device, double efficiency);

/// Adds a note where the last dimension of an operand isn't contiguous.
void note_strided_rows(const char* name, const TensorSpec& spec, const char* consequence,
                       std::vector<std::string>& notes);

}  // namespace foveal::cpu
