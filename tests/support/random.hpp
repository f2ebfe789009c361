// Random numbers that are the same with every compiler and standard library: SplitMix64 (Steele et
// al. 2014), and normal values from it by Box and Muller.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace foveal::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  /// In [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

  /// In [low, high], both included.
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }

  bool chance(double probability) { return uniform() < probability; }

  /// Mean 0, variance 1.
  double normal() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    const double angle = 2.0 * std::numbers::pi * uniform();
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return radius * std::cos(angle);
  }

 private:
  std::uint64_t state_;
  double spare_ = 0;
  bool has_spare_ = false;
};

/// A seed for one part of something that has a seed: parts don't follow one another's stream.
constexpr std::uint64_t derive_seed(std::uint64_t seed, std::uint64_t part) {
  std::uint64_t z = seed * 0xD1342543DE82EF95u + part * 0x9E3779B97F4A7C15u + 0x632BE59BD9B4E019u;
  z = (z ^ (z >> 32)) * 0xD6E8FEB86659FD93u;
  return z ^ (z >> 29);
}

}  // namespace foveal::test
