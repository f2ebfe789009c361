// What the planner needs of the CUDA runtime. src/cuda/runtime/ defines it, in a build without CUDA
// as well, where there are no devices.
#pragma once

#include <cstddef>
#include <cstdint>

#include <foveal/device.hpp>
#include <foveal/status.hpp>

namespace foveal::cuda {

/// GPUs of this machine; 0 where there is no driver.
[[nodiscard]] std::int32_t device_count();

/// GPU `index` as the driver describes it. kUnsupported, with the reason, where there is none.
[[nodiscard]] Result<DeviceInfo> describe_device(std::int32_t index);

/// Makes a GPU the calling thread's current one, and the former one again at the end.
class DeviceScope {
 public:
  explicit DeviceScope(std::int32_t index);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  [[nodiscard]] const Status& status() const { return status_; }

 private:
  [[maybe_unused]] std::int32_t former_ = -1;  ///< -1: was current already.
  Status status_;
};

/// Memory of the current device from the stream's pool, in the stream's order, so that a graph
/// captures both.
[[nodiscard]] Result<void*> allocate(std::size_t bytes, void* stream);
Status release(void* memory, void* stream);

/// Whether the stream is being captured into a graph: then nothing may wait for it.
[[nodiscard]] Result<bool> is_capturing(void* stream);

/// Copies to the host what the device has after all work of the stream so far; waits for it.
[[nodiscard]] Status read_back(void* host, const void* device, std::size_t bytes, void* stream);

}  // namespace foveal::cuda
