// Which keys a block attends to: the sequences' lengths, read on the device, and the balanced
// schedule's list of granules.
#pragma once

#include <cstdint>

#include "algorithm/block_range.hpp"
#include "algorithm/mask.hpp"
#include "algorithm/range.hpp"
#include "algorithm/seqlen_info.hpp"
#include "cuda/portable/decode/args.hpp"

namespace foveal::cuda::decode {

/// One sequence of the batch. Its key blocks count from `first_block` of kBlockKeys keys.
struct Sequence {
  algorithm::SeqlenInfo lengths;
  algorithm::Mask mask;
  int first_block;
  int num_blocks;  ///< Blocks with a key that some row sees.
  int row_tiles;   ///< Tiles of `rows` packed rows, padding rows included; 0 without rows.
};

template <int kRows>
FOVEAL_DEVICE Sequence sequence_of(const AttentionArgs& args, int b) {
  Sequence sequence;
  sequence.lengths = algorithm::seqlen_info(args.lengths, b);
  sequence.mask = {sequence.lengths.seqlen_q, sequence.lengths.seqlen_k, args.score.window};
  const algorithm::Range keys = sequence.mask.keys_of_rows({0, sequence.lengths.seqlen_q});
  sequence.first_block = static_cast<int>(keys.min / kBlockKeys);
  sequence.num_blocks =
      keys.empty() ? 0
                   : static_cast<int>(ceil_div<std::int64_t>(keys.max, kBlockKeys)) -
                         sequence.first_block;
  sequence.row_tiles = static_cast<int>(
      ceil_div<std::int64_t>(sequence.lengths.capacity_q * args.qhead_per_khead, kRows));
  return sequence;
}

/// Where the result of a task goes.
enum class Destination : std::int32_t {
  kResult,   ///< out: the task has all keys of its unit
  kCluster,  ///< the first block of the cluster
  kPartial,  ///< global memory, for the block with the unit's last part
};

/// A part of the key blocks of one unit: a tile of packed query rows of a KV head.
struct Task {
  Sequence sequence;
  std::int32_t b;
  std::int32_t head_k;
  std::int32_t row_tile;
  std::int32_t block_min;  ///< Of the sequence's blocks.
  std::int32_t block_max;
  Destination destination;
  // kPartial
  std::int32_t unit_begin;  ///< First granule of the unit in the list of all.
  std::int32_t unit_size;   ///< Its granules.
  std::int32_t part;        ///< Which of the unit's parts this is.
  bool last_part;
};
static_assert(sizeof(Task) <= kTaskBytes);

/// Granules of a unit: at least one, since a unit without keys must still be stored.
FOVEAL_DEVICE int unit_granules(const DecodeArgs& args, const Sequence& sequence) {
  return max_of(1, ceil_div(sequence.num_blocks, args.granule_blocks));
}

/// Fills prefix[0 .. batch]: granules of all units of the sequences before each. All threads of the
/// block call it. The scan is one warp's: a batch is short.
template <int kRows>
FOVEAL_DEVICE void build_prefix(const DecodeArgs& args, std::int32_t* prefix) {
  const AttentionArgs& attention = args.attention;
  for (int b = static_cast<int>(threadIdx.x); b < attention.batch; b += blockDim.x) {
    const Sequence sequence = sequence_of<kRows>(attention, b);
    prefix[b + 1] = unit_granules(args, sequence) * attention.nheads_k * sequence.row_tiles;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    int total = 0;
    for (int begin = 0; begin < attention.batch; begin += 32) {
      const int b = begin + lane;
      int sum = b < attention.batch ? prefix[b + 1] : 0;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(~0u, sum, distance);
        if (lane >= distance) sum += other;
      }
      if (b < attention.batch) prefix[b + 1] = total + sum;
      total += __shfl_sync(~0u, sum, 31);
    }
    if (lane == 0) prefix[0] = 0;
  }
  __syncthreads();
}

/// The sequence that granule `granule` belongs to: the last b with prefix[b] <= granule.
FOVEAL_DEVICE int sequence_of_granule(const std::int32_t* prefix, int batch, int granule) {
  int low = 0;
  int high = batch;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (prefix[middle] <= granule) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// How the granules are shared: block c of `num_blocks` has [total * c / num_blocks,
/// total * (c + 1) / num_blocks), which is never empty.
struct Shares {
  int total;
  int num_blocks;

  FOVEAL_DEVICE int begin(int block) const {
    return static_cast<int>(static_cast<std::int64_t>(total) * block / num_blocks);
  }
  /// The block that has a granule.
  FOVEAL_DEVICE int owner(int granule) const {
    return static_cast<int>((static_cast<std::int64_t>(granule + 1) * num_blocks - 1) / total);
  }
};

/// The results that a unit is merged from: one a block, or one a granule where they are apart.
struct UnitParts {
  FOVEAL_DEVICE UnitParts(const Shares& all_shares, bool granules_apart, int unit_begin,
                          int unit_size)
      : shares(all_shares),
        first_granule(unit_begin),
        first_block(all_shares.owner(unit_begin)),
        apart(granules_apart),
        count(apart ? unit_size
                    : all_shares.owner(unit_begin + unit_size - 1) - first_block + 1) {}

  /// Where a part lies. A block has two slots: its share can begin and end within a unit.
  FOVEAL_DEVICE std::int64_t slot(int part) const {
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

/// The tasks of a block, one after the other.
template <int kRows>
class TaskList {
 public:
  /// All threads of the block call it. `prefix` is shared memory for the balanced schedule.
  FOVEAL_DEVICE TaskList(const DecodeArgs& args, std::int32_t* prefix)
      : args_(args), prefix_(prefix), shares_{1, 1} {
    if (args.schedule == Schedule::kClusters) {
      end_ = 1;
      return;
    }
    const AttentionArgs& attention = args.attention;
    build_prefix<kRows>(args, prefix);
    const int total = prefix[attention.batch];
    const std::int64_t most =
        std::int64_t{attention.batch} * attention.nheads_k * args.max_splits;
    const int blocks = static_cast<int>(
        min_of<std::int64_t>(min_of(total, static_cast<int>(gridDim.x)), most));
    const int block = static_cast<int>(blockIdx.x);
    if (block >= blocks) return;
    shares_ = {total, blocks};
    granule_ = shares_.begin(block);
    end_ = shares_.begin(block + 1);
  }

  [[nodiscard]] FOVEAL_DEVICE bool done() const { return granule_ >= end_; }
  [[nodiscard]] FOVEAL_DEVICE const Shares& shares() const { return shares_; }

  /// The next task; done() is false.
  FOVEAL_DEVICE Task next() {
    return args_.schedule == Schedule::kClusters ? next_split() : next_part();
  }

 private:
  FOVEAL_DEVICE Task next_split() {
    const AttentionArgs& attention = args_.attention;
    const int split = static_cast<int>(blockIdx.x) % args_.num_splits;
    const int unit = static_cast<int>(blockIdx.x) / args_.num_splits;
    Task task{};
    task.row_tile = unit % args_.row_tiles;
    task.head_k = unit / args_.row_tiles % attention.nheads_k;
    task.b = unit / args_.row_tiles / attention.nheads_k;
    task.sequence = sequence_of<kRows>(attention, task.b);
    const algorithm::Range blocks =
        algorithm::split_blocks({0, task.sequence.num_blocks}, split, args_.num_splits);
    task.block_min = static_cast<int>(blocks.min);
    task.block_max = static_cast<int>(blocks.max);
    task.destination = args_.num_splits == 1 ? Destination::kResult : Destination::kCluster;
    ++granule_;
    return task;
  }

  FOVEAL_DEVICE Task next_part() {
    const AttentionArgs& attention = args_.attention;
    Task task{};
    task.b = sequence_of_granule(prefix_, attention.batch, granule_);
    task.sequence = sequence_of<kRows>(attention, task.b);
    task.unit_size = unit_granules(args_, task.sequence);
    const int unit = (granule_ - prefix_[task.b]) / task.unit_size;
    task.unit_begin = prefix_[task.b] + unit * task.unit_size;
    task.head_k = unit / task.sequence.row_tiles;
    task.row_tile = unit % task.sequence.row_tiles;
    const int first = granule_ - task.unit_begin;
    const int last =
        args_.granules_apart ? first + 1 : min_of(task.unit_size, first + end_ - granule_);
    task.block_min = min_of(first * args_.granule_blocks, task.sequence.num_blocks);
    task.block_max = min_of(last * args_.granule_blocks, task.sequence.num_blocks);
    task.last_part = last == task.unit_size;
    task.part = args_.granules_apart
                    ? first
                    : static_cast<int>(blockIdx.x) - shares_.owner(task.unit_begin);
    task.destination =
        last - first == task.unit_size ? Destination::kResult : Destination::kPartial;
    granule_ += last - first;
    return task;
  }

  const DecodeArgs& args_;
  const std::int32_t* prefix_;
  Shares shares_;
  int granule_ = 0;  ///< The next one; tasks of kClusters count as granules.
  int end_ = 0;
};

}  // namespace foveal::cuda::decode
