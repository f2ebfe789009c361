// What every kernel of this family asks of a device and of its operands.
#pragma once

#include <foveal/device.hpp>
#include <foveal/status.hpp>
#include <foveal/tensor.hpp>

namespace foveal::cuda::hopper {

/// A GPU of compute capability 9.0, present or described: wgmma is of that one alone. Else
/// kUnsupported, naming the kernel and the device.
[[nodiscard]] Status require_hopper(const char* kernel, const DeviceInfo& device);

/// The copy engine's conditions that strides decide; the pointer is looked at by the launch.
[[nodiscard]] Status check_strides(const char* kernel, const char* operand, const TensorSpec& spec);

}  // namespace foveal::cuda::hopper
