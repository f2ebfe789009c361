// What the copy engine brings at a time, and what it asks of an operand's address.
#pragma once

#include <cstdint>

namespace foveal::cuda::hopper {

/// What one copy brings of an operand.
struct CopyBox {
  std::int32_t columns = 0;
  std::int32_t rows = 0;
};

[[nodiscard]] inline bool is_aligned(const void* data, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) == 0;
}

/// Bytes at a multiple of which an operand begins.
inline constexpr std::int64_t kCopyAlignment = 16;

}  // namespace foveal::cuda::hopper
