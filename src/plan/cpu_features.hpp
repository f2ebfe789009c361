// What this machine's processor can do.
#pragma once

#include <cstdint>

#include <foveal/device.hpp>

namespace foveal::planner {

[[nodiscard]] DeviceInfo describe_cpu(std::int32_t num_threads);

}  // namespace foveal::planner
