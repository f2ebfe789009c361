// --device, --threads, --kernel and --dtype, which several commands share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <foveal/device.hpp>
#include <foveal/status.hpp>
#include <foveal/tensor.hpp>

namespace CLI {
class App;
}

namespace foveal::tools {

struct DeviceFlags {
  std::string device = "cpu";
  std::int32_t threads = 0;  ///< 0: what the device's name says.
  std::string kernel;        ///< Empty: the planner chooses.
};

void add_device_flags(CLI::App& command, DeviceFlags& flags);

/// Of this machine or described by name. Also sets FOVEAL_FORCE_KERNEL for the process from
/// --kernel.
Result<DeviceInfo> device_info_of(const DeviceFlags& flags);

/// Of this machine, to run on.
Result<Device> device_of(const DeviceFlags& flags);

/// "fp16", "bf16", "fp32"; absent for an empty text.
std::optional<DType> dtype_of(const std::string& name);

}  // namespace foveal::tools
