// Explanations and devices as JSON; the members are named as the fields of the C++ structs.
#pragma once

#include <span>
#include <string>

#include <foveal/device.hpp>
#include <foveal/plan.hpp>

namespace foveal::capi {

[[nodiscard]] std::string explanation_json(const Explanation& explanation);
[[nodiscard]] std::string devices_json(std::span<const DeviceInfo> devices);

}  // namespace foveal::capi
