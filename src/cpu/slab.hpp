// A worker's own scratch in the workspace: taken piece by piece at the start of a launch, sized by
// the same sequence of calls in configure().
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.hpp"
#include "core/integer.hpp"
#include "cpu/tile_math.hpp"

namespace foveal::cpu {

/// With a null base a slab only counts: take() gives null and used_bytes() is what a real one
/// needs.
class Slab {
 public:
  Slab() = default;
  Slab(std::byte* base, std::int64_t capacity_bytes)
      : base_(base), capacity_bytes_(capacity_bytes) {}

  /// Storage for `count` values, aligned to kTileAlignment, not initialised.
  template <class T>
  T* take(std::int64_t count) {
    const std::int64_t begin = used_bytes_;
    used_bytes_ += round_up(count * static_cast<std::int64_t>(sizeof(T)),
                            static_cast<std::int64_t>(kTileAlignment));
    if (base_ == nullptr) return nullptr;
    FOVEAL_ASSERT(used_bytes_ <= capacity_bytes_);
    return reinterpret_cast<T*>(base_ + begin);
  }

  [[nodiscard]] std::int64_t used_bytes() const { return used_bytes_; }

 private:
  std::byte* base_ = nullptr;
  std::int64_t capacity_bytes_ = 0;
  std::int64_t used_bytes_ = 0;
};

}  // namespace foveal::cpu
