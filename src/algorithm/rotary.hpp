// Rotary position embedding: which two elements of a head turn together, and by what.
// RoFormer (Su et al. 2021); the two layouts are interleaved pairs and halves.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"

namespace foveal::algorithm {

/// The elements of pair p among rotary_dim.
struct RotaryPair {
  std::int64_t first = 0;
  std::int64_t second = 0;
};

FOVEAL_HOST_DEVICE constexpr RotaryPair rotary_pair(std::int64_t p, std::int64_t rotary_dim,
                                                    bool interleaved) {
  return interleaved ? RotaryPair{2 * p, 2 * p + 1} : RotaryPair{p, p + rotary_dim / 2};
}

struct RotatedPair {
  float first = 0.0f;
  float second = 0.0f;
};

FOVEAL_HOST_DEVICE constexpr RotatedPair rotate(float first, float second, float cos, float sin) {
  return {first * cos - second * sin, first * sin + second * cos};
}

/// Position of new key i, and of query row i: keys go on from what the cache holds. A query row is
/// at its own token's position under a causal or windowed mask, else all stand at the first new
/// one.
FOVEAL_HOST_DEVICE constexpr std::int64_t rotary_position(std::int64_t seqlen_cache, std::int64_t i,
                                                          bool advances) {
  return advances ? seqlen_cache + i : seqlen_cache;
}

}  // namespace foveal::algorithm
