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

/// Microseconds by the roofline: products of so many terms a slot (tile_math.hpp) at `slot_terms`
/// times the fp32 rate, traffic at the read rate. Of the device's threads `workers` take part.
///
/// The rates are those of the nominal clock. The tile products with softmax and loads reach 0.95 to
/// 1.1 of them from headdim 64 on, on an EPYC whose clock is 1.4 times the nominal one under load.
[[nodiscard]] double roofline_us(const AttentionWork& work, std::int64_t workers,
                                 const DeviceInfo& device, std::int64_t slot_terms);

/// Adds a note where the last dimension of an operand isn't contiguous.
void note_strided_rows(const char* name, const TensorSpec& spec, const char* consequence,
                       std::vector<std::string>& notes);

}  // namespace foveal::cpu
