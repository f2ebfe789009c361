// Which keys a block attends to: the sequences' lengths, read on the device, and the balanced
// schedule's list of granules.
#pragma once

#include <cstdint>

#include "algorithm/mask.hpp"
#include "algorithm/range.hpp"
#include "algorithm/seqlen_info.hpp"
#include "cuda/portable/decode/args.hpp"
#include "cuda/portable/decode/block_barrier.cuh"
#include "cuda/portable/decode/shares.hpp"

namespace foveal::cuda::decode {

template <int kRows>
FOVEAL_DEVICE Sequence sequence_of(const DecodeArgs& args, int b) {
  return args.lengths_fixed ? args.sequence
                            : make_sequence(args.attention.lengths, args.window,
                                            args.attention.qhead_per_khead, kRows, b);
}

using KeyRange = algorithm::BasicRange<std::int32_t>;

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
  bool merges;  ///< The block has the unit's last granule, and this is its last task of the unit.
};
static_assert(sizeof(Task) <= kTaskBytes);

/// Granules of a unit: at least one, since a unit without keys must still be stored. The first
/// task_granules stand for what a task costs beside its keys, and have none.
FOVEAL_DEVICE int unit_granules(const DecodeArgs& args, const Sequence& sequence) {
  return args.task_granules + max_of(1, ceil_div(sequence.num_blocks, args.granule_blocks));
}

/// The unit's key block that its granule `granule` begins with, or the end of its blocks.
FOVEAL_DEVICE int first_block_of(const DecodeArgs& args, const Sequence& sequence, int granule) {
  return min_of(max_of(granule - args.task_granules, 0) * args.granule_blocks, sequence.num_blocks);
}

/// One warp: turns prefix[1 .. batch] into their sums from the front, with prefix[0] = 0. A batch
/// is short.
FOVEAL_DEVICE void add_up(std::int32_t* prefix, int batch) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int total = 0;
  for (int begin = 0; begin < batch; begin += 32) {
    const int b = begin + lane;
    int sum = b < batch ? prefix[b + 1] : 0;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(~0u, sum, distance);
      if (lane >= distance) sum += other;
    }
    if (b < batch) prefix[b + 1] = total + sum;
    total += __shfl_sync(~0u, sum, 31);
  }
  if (lane == 0) prefix[0] = 0;
}

/// Fills prefix[0 .. batch]: granules of all units of the sequences before each. All threads of the
/// block call it.
template <int kRows>
FOVEAL_DEVICE void build_prefix(const DecodeArgs& args, std::int32_t* prefix) {
  const AttentionArgs& attention = args.attention;
  for (int b = static_cast<int>(threadIdx.x); b < attention.batch; b += blockDim.x) {
    const Sequence sequence = sequence_of<kRows>(args, b);
    prefix[b + 1] = unit_granules(args, sequence) * attention.nheads_k * sequence.row_tiles;
  }
  meet();
  if (threadIdx.x < 32) add_up(prefix, attention.batch);
  meet();
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
    const std::int64_t most = std::int64_t{attention.batch} * attention.nheads_k * args.max_splits;
    const int blocks =
        static_cast<int>(min_of<std::int64_t>(min_of(total, static_cast<int>(gridDim.x)), most));
    const int block = static_cast<int>(blockIdx.x);
    if (block >= blocks) return;
    shares_ = {total, blocks};
    begin_ = shares_.begin(block);
    end_ = share_end_ = shares_.begin(block + 1);
  }

  [[nodiscard]] FOVEAL_DEVICE bool done() const { return begin_ >= end_; }
  [[nodiscard]] FOVEAL_DEVICE const Shares& shares() const { return shares_; }

  /// The next task; done() is false.
  FOVEAL_DEVICE Task next() {
    return args_.schedule == Schedule::kClusters ? next_split() : next_part();
  }

 private:
  FOVEAL_DEVICE Task next_split() {
    // The grid is (splits, row tiles of all KV heads, sequences).
    const int split = static_cast<int>(blockIdx.x);
    const int head = static_cast<int>(blockIdx.y);
    Task task{};
    task.row_tile = args_.row_tiles == 1 ? 0 : args_.tiles.remainder(head);
    task.b = static_cast<int>(blockIdx.z);
    task.head_k = args_.row_tiles == 1 ? head : args_.tiles.quotient(head);
    task.sequence = sequence_of<kRows>(args_, task.b);
    const int blocks = task.sequence.num_blocks;
    const int size = part_blocks(blocks, args_.split_blocks, args_.num_splits, args_.splits);
    task.block_min = min_of(split * size, blocks);
    task.block_max = split + 1 < args_.num_splits ? min_of((split + 1) * size, blocks) : blocks;
    task.destination = args_.num_splits == 1 ? Destination::kResult : Destination::kCluster;
    --end_;
    return task;
  }

  /// From the back of the share: a unit that goes on in the next block's share is published first,
  /// one that the block must wait for comes last.
  FOVEAL_DEVICE Task next_part() {
    const AttentionArgs& attention = args_.attention;
    Task task{};
    task.b = sequence_of_granule(prefix_, attention.batch, end_ - 1);
    task.sequence = sequence_of<kRows>(args_, task.b);
    task.unit_size = unit_granules(args_, task.sequence);
    const int unit = (end_ - 1 - prefix_[task.b]) / task.unit_size;
    task.unit_begin = prefix_[task.b] + unit * task.unit_size;
    task.head_k = unit / task.sequence.row_tiles;
    task.row_tile = unit % task.sequence.row_tiles;
    const int unit_end = task.unit_begin + task.unit_size;
    const int first_of_unit = max_of(task.unit_begin, begin_);
    const int first = args_.granules_apart ? end_ - 1 : first_of_unit;
    task.block_min = first_block_of(args_, task.sequence, first - task.unit_begin);
    task.block_max = first_block_of(args_, task.sequence, end_ - task.unit_begin);
    task.merges = unit_end <= share_end_ && first == first_of_unit;
    task.part = args_.granules_apart
                    ? first - task.unit_begin
                    : static_cast<int>(blockIdx.x) - shares_.owner(task.unit_begin);
    task.destination =
        end_ - first == task.unit_size ? Destination::kResult : Destination::kPartial;
    end_ = first;
    return task;
  }

  const DecodeArgs& args_;
  const std::int32_t* prefix_;
  Shares shares_;
  int begin_ = 0;  ///< Granules that are left; the one task of kClusters counts as one.
  int end_ = 0;
  int share_end_ = 0;  ///< What end_ was at first.
};

}  // namespace foveal::cuda::decode
