// Plans and devices as JSON, for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include <foveal/device.hpp>
#include <foveal/plan.hpp>

namespace foveal::tools {

using OrderedJson = nlohmann::ordered_json;

OrderedJson to_json(const DeviceInfo& device);
OrderedJson to_json(std::span<const KernelVerdict> verdicts);
OrderedJson to_json(const AttentionWork& work);
OrderedJson to_json(const Explanation& explanation);

/// Two-space indentation and a newline at the end. Bytes that are not UTF-8 (in a file's name)
/// become U+FFFD; numbers that are not finite become null.
std::string json_text(const OrderedJson& json);

}  // namespace foveal::tools
