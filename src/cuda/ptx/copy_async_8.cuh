// The copy of copy_async.cuh for single values.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"

namespace foveal::cuda::ptx {

/// 8 bytes, both addresses aligned to 8; committed and waited for as 16 bytes are.
FOVEAL_DEVICE void copy_async_8(std::uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;\n" ::"r"(to), "l"(from) : "memory");
}

}  // namespace foveal::cuda::ptx
