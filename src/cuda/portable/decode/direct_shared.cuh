// The direct decode kernel for work that blocks share evenly: lengths on the device, one task after
// the other, and the keys of the next task are asked for before the results of one are merged.
//
//   1. the sequences' granules are added up; a block's share of them is a list of tasks
//   2. a task's keys stream as in the direct kernel
//   3. the first keys of the next task are asked for
//   4. the warps' results are merged: into the result, or into the block's part of the unit
//   5. the block with a unit's last granule, always its last task, merges the unit's parts
#pragma once

#include <cstdint>

#include "cuda/portable/decode/block_barrier.cuh"
#include "cuda/portable/decode/direct_kernel.cuh"
#include "cuda/portable/decode/work.cuh"
#include "cuda/ptx/memory.cuh"

namespace foveal::cuda::decode {

/// A block's part of the key blocks of one unit, a KV head of a sequence.
struct DirectTask {
  algorithm::BasicMask<std::int32_t> mask;
  KeyRange keys;    ///< That some row sees.
  KeyRange blocks;  ///< Of those keys, from key 0.
  std::int32_t b;
  std::int32_t head_k;
  std::int32_t unit_begin;  ///< First granule of the unit in the list of all.
  std::int32_t unit_size;   ///< Its granules.
  bool whole;               ///< The task has all of them.
  bool merges;              ///< Another block has its first, this one its last.
};

/// The tasks of a block, from the back of its share: what goes on in the next block's share is
/// published first, and what has to be waited for comes last.
class DirectTasks {
 public:
  /// All threads of the block call it. `prefix` and `used` are [batch + 1] in shared memory.
  FOVEAL_DEVICE DirectTasks(const SharedDirectArgs& args, std::int32_t* prefix, std::int32_t* used)
      : args_(args), prefix_(prefix), used_(used) {
    for (int b = static_cast<int>(threadIdx.x); b < args.batch; b += blockDim.x) {
      const int read = clamp_to(args.direct.seqused_k[b], 0, args.direct.mask.seqlen_k);
      used[b] = min_of(read + args.direct.seqlen_new, args.direct.mask.seqlen_k);
      prefix[b + 1] = granules(block_range(keys_of(b))) * args.head_groups;
    }
    meet();
    if (threadIdx.x < 32) add_up(prefix, args.batch);
    meet();
    const int total = prefix[args.batch];
    const int teams = min_of(total, args.max_teams);
    const int team = args.team.quotient(static_cast<int>(blockIdx.x));
    if (team >= teams) return;
    shares_ = {total, teams};
    begin_ = shares_.begin(team);
    end_ = shares_.begin(team + 1);
  }

  [[nodiscard]] FOVEAL_DEVICE bool done() const { return begin_ >= end_; }
  [[nodiscard]] FOVEAL_DEVICE const Shares& shares() const { return shares_; }

  /// The next task; done() is false.
  FOVEAL_DEVICE DirectTask next() {
    DirectTask task;
    task.b = sequence_of_granule(prefix_, args_.batch, end_ - 1);
    task.mask = mask_of(task.b);
    task.keys = task.mask.keys_of_rows({0, task.mask.seqlen_q});
    const KeyRange all = block_range(task.keys);
    task.unit_size = granules(all);
    const int group = (end_ - 1 - prefix_[task.b]) / task.unit_size;
    task.head_k = group * args_.team_size + args_.team.remainder(static_cast<int>(blockIdx.x));
    task.unit_begin = prefix_[task.b] + group * task.unit_size;
    const int first = max_of(task.unit_begin, begin_);
    task.blocks = {block_of(all, first - task.unit_begin), block_of(all, end_ - task.unit_begin)};
    task.whole = end_ - first == task.unit_size;
    task.merges = !task.whole && end_ == task.unit_begin + task.unit_size;
    end_ = first;
    return task;
  }

 private:
  FOVEAL_DEVICE algorithm::BasicMask<std::int32_t> mask_of(int b) const {
    return {args_.direct.mask.seqlen_q, used_[b], args_.direct.mask.window};
  }
  FOVEAL_DEVICE KeyRange keys_of(int b) const {
    return mask_of(b).keys_of_rows({0, args_.direct.mask.seqlen_q});
  }
  static FOVEAL_DEVICE KeyRange block_range(KeyRange keys) {
    const int first = keys.min / kBlockKeys;
    return {first, keys.empty() ? first : ceil_div(keys.max, kBlockKeys)};
  }
  /// At least one, since a unit without keys must still be stored. The first task_granules stand
  /// for what a task costs beside its keys, and have none.
  FOVEAL_DEVICE int granules(KeyRange blocks) const {
    return args_.task_granules + max_of(1, ceil_div(blocks.max - blocks.min, args_.granule_blocks));
  }
  /// The block that a unit's granule begins with, or the end of its blocks.
  FOVEAL_DEVICE int block_of(KeyRange blocks, int granule) const {
    return min_of(blocks.min + max_of(granule - args_.task_granules, 0) * args_.granule_blocks,
                  blocks.max);
  }

  const SharedDirectArgs& args_;
  const std::int32_t* prefix_;
  const std::int32_t* used_;
  Shares shares_{1, 1};
  int begin_ = 0;  ///< Granules that are left.
  int end_ = 0;
};

template <class Element, int kHeaddim, bool kPaged>
class SharedDirectBlock {
 public:
  using Stream = DirectStream<Element, kHeaddim, kPaged>;

  FOVEAL_DEVICE SharedDirectBlock(const SharedDirectArgs& args, unsigned char* shared)
      : args_(args),
        shared_(shared),
        layout_(shared_direct_layout(kHeaddim, args.direct.num_rows, num_warps(),
                                     args.direct.num_stages, static_cast<int>(gridDim.x),
                                     args.batch)) {}

  FOVEAL_DEVICE void run() const {
    DirectTasks tasks(args_, integers(layout_.prefix), integers(layout_.used));
    if (tasks.done()) return;
    DirectTask task = tasks.next();
    Stream stream = start(task);
#pragma unroll 1
    while (true) {
      describe_rows(task);
      describe_parts(task, tasks.shares());
      WarpState<kHeaddim, 1> state;
      attend(state, task, stream);
      const bool last = tasks.done();
      const DirectTask current = task;
      if (!last) {
        task = tasks.next();
        stream = start(task);
      }
      const int own_slot = merge_warps(state, current);
      if (own_slot >= 0 && threadIdx.x == 0) {
        ptx::store_release(args_.flags + own_slot, args_.nonce);
      }
      if (last) {
        if (current.merges) merge_parts();
        return;
      }
    }
  }

 private:
  static constexpr int kQuads = kHeaddim / 4;
  static constexpr int kSlotFloats = kTileRows * partial_stride(kHeaddim);
  /// Parts whose values a lane reads together. Two blocks of six warps have room for no more.
  static constexpr int kAtOnce = 16;
  static_assert(32 % kAtOnce == 0);

  static FOVEAL_DEVICE int num_warps() { return static_cast<int>(blockDim.x / 32); }
  static FOVEAL_DEVICE int warp() { return static_cast<int>(threadIdx.x / 32); }
  static FOVEAL_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }
  FOVEAL_DEVICE std::int32_t* integers(int offset) const {
    return reinterpret_cast<std::int32_t*>(shared_ + offset);
  }
  FOVEAL_DEVICE RowOutput* row_outputs() const {
    return reinterpret_cast<RowOutput*>(shared_ + layout_.row_outputs);
  }

  FOVEAL_DEVICE Stream start(const DirectTask& task) const {
    Stream stream(args_.direct, task.b, task.head_k, task.keys, task.blocks,
                  ptx::shared_address(shared_ + warp() * layout_.ring_bytes));
#pragma unroll 1
    for (int i = 0; i < args_.direct.num_stages - 1; ++i) stream.load_next(args_.direct);
    return stream;
  }

  /// Where the rows' results go. What the task before had here was read before its last barrier.
  FOVEAL_DEVICE void describe_rows(const DirectTask& task) const {
    const int row = static_cast<int>(threadIdx.x);
    if (row < args_.direct.num_rows) {
      row_outputs()[row] = row_output(args_.direct, task.b, task.head_k, row);
    }
  }

  FOVEAL_DEVICE PartPlaces& places() const {
    return *reinterpret_cast<PartPlaces*>(shared_ + layout_.places);
  }
  FOVEAL_DEVICE std::int32_t* slots() const {
    return reinterpret_cast<std::int32_t*>(&places() + 1);
  }

  /// Where the block's part goes and where the others lie, found before the last key as well.
  FOVEAL_DEVICE void describe_parts(const DirectTask& task, const Shares& shares) const {
    if (task.whole) return;
    const UnitParts parts{shares, false, task.unit_begin, task.unit_size};
    const int member = args_.team.remainder(static_cast<int>(blockIdx.x));
    const int own = args_.team.quotient(static_cast<int>(blockIdx.x)) - parts.first_block;
    for (int i = static_cast<int>(threadIdx.x); i < parts.count; i += blockDim.x) {
      const int slot = static_cast<int>(parts.slot(i)) * args_.team_size + member;
      if (task.merges) slots()[i] = slot;
      if (i == own) places() = {slot, parts.count};
    }
  }

  FOVEAL_DEVICE void attend(WarpState<kHeaddim, 1>& state, const DirectTask& task,
                            Stream& stream) const {
    DirectQueries<Element, kHeaddim> queries;
    queries.read(args_.direct, task.b, task.head_k);
    const LaneMask lane_mask(args_.direct, task.mask);
#pragma unroll 1
    for (int block = task.blocks.min + warp(); block < task.blocks.max; block += num_warps()) {
      stream.load_next(args_.direct);
      wait_for_copies(args_.direct.num_stages - 1);
      __syncwarp();
      float scores[1][4];
      multiply_keys<Element, kHeaddim, 1>(scores, stream.k_tile(), queries);
      lane_mask.apply(scores, args_.direct.scale_log2, block * kBlockKeys);
      online_softmax<kHeaddim, 1>(state, scores);
      multiply_values<Element, kHeaddim, 1>(state, scores, stream.v_tile());
      __syncwarp();  // the block's ring slot may be overwritten
      stream.release();
    }
  }

  /// Step 4. A warp takes a row, its lanes the quads. The rings belong to the next task already.
  /// Returns the slot of the part, -1 where the result is the unit's own: places() is the next
  /// task's as soon as one thread is back.
  FOVEAL_DEVICE int merge_warps(const WarpState<kHeaddim, 1>& state, const DirectTask& task) const {
    unsigned char* partials = shared_ + layout_.partials;
    const int rows = args_.direct.num_rows;
    store_warp_partial<kHeaddim>(state, rows, partials + warp() * layout_.partial_bytes);
    meet();
    const unsigned char* stats = partials + rows * direct_row_bytes(kHeaddim);
    const int own_slot = task.whole ? -1 : places().own_slot;
    float* slot = task.whole ? nullptr : slot_of(own_slot);
#pragma unroll 1
    for (int row = warp(); row < rows; row += num_warps()) {
      const RowParts row_parts{partials + row * direct_row_bytes(kHeaddim), stats + row * 8,
                               layout_.partial_bytes, layout_.partial_bytes, num_warps()};
#pragma unroll 1
      for (int quad = lane(); quad < kQuads; quad += 32) {
        const MergedQuad merged = merge_quad(row_parts, quad);
        if (task.whole) {
          store_quad<Element>(args_.direct, row_outputs()[row], quad, merged);
        } else {
          reinterpret_cast<float4*>(slot)[row * kQuads + quad] = merged.acc;
          if (quad == 0) slot_stats(slot)[row] = {merged.row_max, merged.row_sum};
        }
      }
    }
    meet();  // the part is complete, and the partial results are done with
    return own_slot;
  }

  // ---- Step 5. In global memory a part is [kTileRows][kHeaddim] values, then (maximum, sum) of
  // each row.

  FOVEAL_DEVICE float* slot_of(std::int64_t slot) const {
    return args_.partials + slot * kSlotFloats;
  }
  static FOVEAL_DEVICE float2* slot_stats(float* slot) {
    return reinterpret_cast<float2*>(slot + kTileRows * kHeaddim);
  }
  FOVEAL_DEVICE void merge_parts() const {
    const int count = places().count;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += blockDim.x) {
      std::uint64_t* flag = args_.flags + slots()[i];
      while (ptx::load_acquire(flag) != args_.nonce) __nanosleep(20);
      *flag = 0;
    }
    meet();
#pragma unroll 1
    for (int row = warp(); row < args_.direct.num_rows; row += num_warps()) {
      merge_row(count, row);
    }
  }

  /// One warp: a row over all parts. A lane has the maximum and the sum of one part, and values of
  /// several parts are read at once, so that all of them wait for memory once.
  FOVEAL_DEVICE void merge_row(int count, int row) const {
#pragma unroll 1
    for (int quads = 0; quads < kQuads; quads += 32) {
      const int quad = quads + lane();
      MergedQuad merged{{0.0f, 0.0f, 0.0f, 0.0f}, algorithm::kNegativeInfinity, 0.0f};
#pragma unroll 1
      for (int first = 0; first < count; first += 32) {
        const int parts = min_of(count - first, 32);
        float2 stats = {algorithm::kNegativeInfinity, 0.0f};
        if (lane() < parts) stats = __ldcg(slot_stats(slot_of(slots()[first + lane()])) + row);
        float4 values[kAtOnce];
        read_parts(values, slots() + first, parts, row, quad);
        const float factor = take_parts(merged, stats);
        add_values(merged, values, factor, 0);
#pragma unroll 1
        for (int next = kAtOnce; next < parts; next += kAtOnce) {
          read_parts(values, slots() + first + next, parts - next, row, quad);
          add_values(merged, values, factor, next);
        }
      }
      if (quad < kQuads) store_quad<Element>(args_.direct, row_outputs()[row], quad, merged);
    }
  }

  /// Zeros where there is no part or no quad.
  FOVEAL_DEVICE void read_parts(float4 (&values)[kAtOnce], const std::int32_t* from, int parts,
                                int row, int quad) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      values[i] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (i < parts && quad < kQuads) {
        values[i] = __ldcg(reinterpret_cast<const float4*>(slot_of(from[i])) + row * kQuads + quad);
      }
    }
  }

  const SharedDirectArgs& args_;
  unsigned char* shared_;
  SharedDirectLayout layout_;
};

}  // namespace foveal::cuda::decode
