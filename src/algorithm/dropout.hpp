// Dropout's mask is a pure function of (seed, offset, batch, head, row, column), the same on every
// device and for every tiling: Philox4x32-10 (Salmon et al. 2011) counts, nothing is stored.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"

namespace foveal::algorithm {

/// Four 32-bit words: a Philox counter, or its output.
struct PhiloxWords {
  std::uint32_t word[4];
};

FOVEAL_HOST_DEVICE constexpr PhiloxWords philox4x32(PhiloxWords counter, std::uint32_t key_low,
                                                    std::uint32_t key_high) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53u;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57u;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9u;  // golden ratio
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85u;  // sqrt(3) - 1
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter.word[0];
    const std::uint64_t product1 = kMultiplier1 * counter.word[2];
    counter = {{static_cast<std::uint32_t>(product1 >> 32) ^ counter.word[1] ^ key_low,
                static_cast<std::uint32_t>(product1),
                static_cast<std::uint32_t>(product0 >> 32) ^ counter.word[3] ^ key_high,
                static_cast<std::uint32_t>(product0)}};
    key_low += kWeyl0;
    key_high += kWeyl1;
  }
  return counter;
}

/// Dropout as kernels see it.
struct Dropout {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  std::uint64_t threshold = 0;  ///< Of 2^32: a word below it drops its element; 0 is off.
  float keep_scale = 1.0f;      ///< 1 / (1 - p); 0 when everything is dropped.

  FOVEAL_HOST_DEVICE constexpr bool enabled() const { return threshold != 0; }
};

/// A p in (0, 2^-33) rounds to no dropout at all.
FOVEAL_HOST_DEVICE constexpr Dropout make_dropout(float p, std::uint64_t seed,
                                                  std::uint64_t offset) {
  Dropout dropout;
  dropout.seed = seed;
  dropout.offset = offset;
  dropout.threshold = static_cast<std::uint64_t>(static_cast<double>(p) * 4294967296.0 + 0.5);
  dropout.keep_scale = p < 1.0f ? 1.0f / (1.0f - p) : 0.0f;
  return dropout;
}

/// Words for the four columns [4 * column_block, 4 * column_block + 4) of row i. `batch_head` is
/// b * nheads_q + h. i and j count inside the sequence, so packing doesn't change the mask.
FOVEAL_HOST_DEVICE constexpr PhiloxWords dropout_words(const Dropout& dropout,
                                                       std::int64_t batch_head, std::int64_t i,
                                                       std::int64_t column_block) {
  const auto offset_high = static_cast<std::uint32_t>(dropout.offset >> 32);
  return philox4x32(
      {{static_cast<std::uint32_t>(column_block), static_cast<std::uint32_t>(i),
        static_cast<std::uint32_t>(batch_head), static_cast<std::uint32_t>(dropout.offset)}},
      static_cast<std::uint32_t>(dropout.seed),
      static_cast<std::uint32_t>(dropout.seed >> 32) ^ offset_high);
}

/// Whether element (i, j) stays. Kernels take four columns a call through dropout_words.
FOVEAL_HOST_DEVICE constexpr bool dropout_keeps(const Dropout& dropout, std::int64_t batch_head,
                                                std::int64_t i, std::int64_t j) {
  const PhiloxWords words = dropout_words(dropout, batch_head, i, j / 4);
  return words.word[j % 4] >= dropout.threshold;
}

}  // namespace foveal::algorithm
