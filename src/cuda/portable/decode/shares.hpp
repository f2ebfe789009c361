// How blocks share one list of granules, and where what they leave of a unit lies: the same for all
// blocks, so that each finds the others' parts without asking.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"

namespace foveal::cuda::decode {

/// How the granules are shared: block c of `num_blocks`, at most 65535, has [total * c /
/// num_blocks, total * (c + 1) / num_blocks), which is never empty.
class Shares {
 public:
  FOVEAL_HOST_DEVICE constexpr Shares(int total, int num_blocks)
      : total_(total),
        num_blocks_(num_blocks),
        quotient_(static_cast<unsigned>(total) / static_cast<unsigned>(num_blocks)),
        remainder_(static_cast<unsigned>(total) - quotient_ * static_cast<unsigned>(num_blocks)) {}

  /// In 32 bits: a division of 64 takes as long as a read of the cache.
  FOVEAL_HOST_DEVICE constexpr int begin(int block) const {
    const unsigned c = static_cast<unsigned>(block);
    return static_cast<int>(quotient_ * c + remainder_ * c / static_cast<unsigned>(num_blocks_));
  }
  /// The block that has a granule.
  FOVEAL_HOST_DEVICE constexpr int owner(int granule) const {
    return static_cast<int>((static_cast<std::int64_t>(granule + 1) * num_blocks_ - 1) / total_);
  }

 private:
  int total_;
  int num_blocks_;
  unsigned quotient_;
  unsigned remainder_;
};

/// The results that a unit is merged from: one a block, or one a granule where they are apart.
struct UnitParts {
  FOVEAL_HOST_DEVICE constexpr UnitParts(const Shares& all_shares, bool granules_apart,
                                         int unit_begin, int unit_size)
      : shares(all_shares),
        first_granule(unit_begin),
        first_block(all_shares.owner(unit_begin)),
        apart(granules_apart),
        count(apart ? unit_size : all_shares.owner(unit_begin + unit_size - 1) - first_block + 1) {}

  /// Where a part lies. A block has two slots: its share can begin and end within a unit.
  FOVEAL_HOST_DEVICE constexpr std::int64_t slot(int part) const {
    if (apart) return first_granule + part;
    const int block = first_block + part;
    return 2 * block + (shares.begin(block) < first_granule ? 1 : 0);
  }

  Shares shares;
  int first_granule;
  int first_block;
  bool apart;
  int count;
};

}  // namespace foveal::cuda::decode
