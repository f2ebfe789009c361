// The decode kernel: a block's tasks, one after the other.
//
//   1. the block starts the copy of the tile's queries, every warp that of its first key blocks
//   2. the rows' masks are written down
//   3. every warp streams its key blocks, without a barrier (attend.cuh)
//   4. the warps' results are merged in shared memory
//   5. a task with all keys of its unit has stored its result; otherwise the parts' results meet in
//      the shared memory of a cluster's first block, or in global memory (merge.cuh)
#pragma once

#include <cstdint>

#include "cuda/portable/decode/attend.cuh"
#include "cuda/portable/decode/block_barrier.cuh"
#include "cuda/portable/decode/merge.cuh"
#include "cuda/portable/decode/work.cuh"
#include "cuda/ptx/cluster.cuh"

namespace foveal::cuda::decode {

template <class Element, int kHeaddim, int kTiles>
class DecodeBlock {
 public:
  static constexpr int kRows = kTiles * kTileRows;
  static constexpr int kStride = partial_stride(kHeaddim);

  FOVEAL_DEVICE DecodeBlock(const DecodeArgs& args, unsigned char* shared)
      : args_(args),
        shared_(shared),
        layout_(shared_layout(kHeaddim, kRows, num_warps(), args.num_stages,
                              args.num_splits > 1 ? args.num_splits : 0,
                              args.schedule == Schedule::kBalanced ? args.attention.batch : 0)) {}

  FOVEAL_DEVICE void run() {
    TaskList<kRows> tasks(args_, reinterpret_cast<std::int32_t*>(shared_ + layout_.prefix));
    while (!tasks.done()) {
      run_task(tasks.next(), tasks.shares());
      meet();  // shared memory is free for the next task
    }
  }

 private:
  static FOVEAL_DEVICE int num_warps() { return static_cast<int>(blockDim.x / 32); }
  static FOVEAL_DEVICE int warp() { return static_cast<int>(threadIdx.x / 32); }

  FOVEAL_DEVICE std::uint32_t shared_address(int offset) const {
    return ptx::shared_address(shared_ + offset);
  }
  FOVEAL_DEVICE RowInfo* rows() const { return reinterpret_cast<RowInfo*>(shared_ + layout_.rows); }
  FOVEAL_DEVICE float* warp_partials() const { return reinterpret_cast<float*>(shared_); }
  FOVEAL_DEVICE float* received() const {
    return reinterpret_cast<float*>(shared_ + layout_.received);
  }
  /// The current task, after the barrier of step 2: what comes after the last key reads it here, so
  /// that the loop over keys has the registers.
  FOVEAL_DEVICE Task& current_task() const {
    return *reinterpret_cast<Task*>(shared_ + layout_.task);
  }
  FOVEAL_DEVICE float* partial(std::int64_t slot) const {
    return args_.partials + slot * (kRows * kStride);
  }

  /// Packed rows of a task's tile that are stored, padding included.
  FOVEAL_DEVICE int stored_rows(const Task& task) const {
    const int rows = task.sequence.lengths.capacity_q * args_.attention.qhead_per_khead;
    return clamp_to(rows - task.row_tile * kRows, 0, kRows);
  }

  /// Query tokens of a task's tile that are in use: algorithm::query_rows with the known divisor.
  FOVEAL_DEVICE KeyRange used_tokens(const Task& task) const {
    const int first = task.row_tile * kRows;
    return algorithm::intersect(
        KeyRange{args_.group.quotient(first), args_.group.quotient(first + kRows - 1) + 1},
        KeyRange{0, task.sequence.lengths.seqlen_q});
  }

  /// visit(row, d) over `num_rows` rows, elements shared by the block's threads.
  template <class Visit>
  static FOVEAL_DEVICE void for_each_element(int num_rows, Visit visit) {
#pragma unroll 1
    for (int index = static_cast<int>(threadIdx.x); index < num_rows * kHeaddim;
         index += static_cast<int>(blockDim.x)) {
      visit(index / kHeaddim, index % kHeaddim);
    }
  }

  FOVEAL_DEVICE void run_task(const Task& task, const Shares& shares) const {
    load_queries(task);
    const KeyRange tokens = used_tokens(task);
    KeyRing<Element, kHeaddim> ring(
        args_, task,
        task.sequence.row_tiles == 1 ? task.sequence.keys : task.sequence.mask.keys_of_rows(tokens),
        shared_address(warp() * layout_.ring_bytes));
#pragma unroll 1
    for (int i = 0; i < args_.num_stages - 1; ++i) ring.load(i);
    if (threadIdx.x == 0) current_task() = task;
    if (task.destination == Destination::kCluster) announce_to_cluster(task);
    describe_rows(task);
    wait_for_copies(args_.num_stages - 1);  // of the queries, which were asked for first
    meet();

    WarpState<kHeaddim, kTiles> state;
    attend_segment<Element, kHeaddim, kTiles>(state, args_, ring, shared_address(layout_.q), rows(),
                                              task.sequence.mask.keys_of_every_row(tokens));
    const Destination destination = current_task().destination;
    if (destination == Destination::kCluster) wait_for_cluster();
    merge_warps(state, shares);
    if (destination == Destination::kCluster) store_cluster_result();
    if (destination == Destination::kPartial) store_unit_result(shares);
  }

  /// Step 1: the tile's queries, zeros for rows and columns that are not there.
  FOVEAL_DEVICE void load_queries(const Task& task) const {
    const AttentionArgs& attention = args_.attention;
    const std::uint32_t q_tile = shared_address(layout_.q);
    const auto* q = static_cast<const Element*>(attention.q.data);
    const int first = task.row_tile * kRows;
    const auto row_offset = [&](int r) {
      const int i = args_.group.quotient(first + r);
      const int head = task.head_k * attention.qhead_per_khead + args_.group.remainder(first + r);
      return attention.q.strides.offset(task.b, task.sequence.lengths.q_begin + i, head);
    };
    const int used_rows = task.sequence.lengths.seqlen_q * attention.qhead_per_khead - first;
    if (args_.queries_vectorised) {
      constexpr int kChunks = kHeaddim / 8;
#pragma unroll 1
      for (int index = static_cast<int>(threadIdx.x); index < kRows * kChunks;
           index += static_cast<int>(blockDim.x)) {
        const int r = index / kChunks;
        const int chunk = index % kChunks;
        const bool valid = r < used_rows && chunk * 8 < attention.headdim;
        ptx::copy_async_16(q_tile + swizzled<kHeaddim * 2>(r, chunk),
                           q + (valid ? row_offset(r) + chunk * 8 : 0), valid);
      }
    } else {
      for_each_element(kRows, [&](int r, int d) {
        const bool valid = r < used_rows && d < attention.headdim;
        const Element value =
            valid ? q[row_offset(r) + d * attention.q.strides.dim] : Element(0.0f);
        ptx::store_shared(q_tile + swizzled<kHeaddim * 2>(r, d / 8) + (d % 8) * 2, value);
      });
    }
    ptx::copy_async_commit();
  }

  /// Step 2: masks and ALiBi of the tile's rows.
  FOVEAL_DEVICE void describe_rows(const Task& task) const {
    const ScoreArgs& score = args_.attention.score;
    for (int r = static_cast<int>(threadIdx.x); r < kRows; r += static_cast<int>(blockDim.x)) {
      const int i = args_.group.quotient(task.row_tile * kRows + r);
      RowInfo row{0, 0, 0, 0.0f};
      if (i < task.sequence.lengths.seqlen_q) {
        row.first_key = task.sequence.mask.first_key(i);
        row.end_key = task.sequence.mask.end_key(i);
        row.diagonal = i + task.sequence.mask.shift();
        if (score.alibi_slopes != nullptr) {
          const int head = task.head_k * args_.attention.qhead_per_khead +
                           args_.group.remainder(task.row_tile * kRows + r);
          row.slope = kLog2E * score.alibi_slopes[task.b * score.alibi_batch_stride +
                                                  head * score.alibi_head_stride];
        }
      }
      rows()[r] = row;
    }
  }

  /// Step 4: each element of the task's rows, merged over the warps, goes to its destination.
  FOVEAL_DEVICE void merge_warps(const WarpState<kHeaddim, kTiles>& state,
                                 const Shares& shares) const {
    const Task& task = current_task();
    const int stored = stored_rows(task);
    const ClusterMailbox mailbox = cluster_mailbox();
    float* slot = task.destination == Destination::kPartial
                      ? partial(unit_parts(task, shares).slot(task.part))
                      : nullptr;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int tile_rows = min_of(stored - tile * kTileRows, kTileRows);
      if (tile_rows <= 0) break;
      meet();  // the rings, or the tile before, are done with
      store_warp_partials<kHeaddim, kTiles>(state, tile, tile_rows,
                                            warp_partials() + warp() * kTileRows * kStride);
      meet();
      for_each_element(tile_rows, [&](int tile_row, int d) {
        const float* from = warp_partials() + tile_row * kStride;
        const MergedElement merged = merge_partials<kHeaddim>(
            num_warps(), d,
            [&](int part, int element) { return from[part * kTileRows * kStride + element]; });
        const int row = tile * kTileRows + tile_row;
        switch (task.destination) {
          case Destination::kResult: return store(task, row, d, merged);
          case Destination::kCluster: return send(mailbox, row, d, merged);
          case Destination::kPartial: {
            slot[row * kStride + d] = merged.acc;
            if (d == 0) slot[row * kStride + kHeaddim] = merged.row_max;
            if (d == 1) slot[row * kStride + kHeaddim + 1] = merged.row_sum;
          }
        }
      });
    }
  }

  FOVEAL_DEVICE void store(const Task& task, int row, int d, const MergedElement& merged) const {
    store_result<Element>(args_, task, task.row_tile * kRows + row, d, merged);
  }

  // ---- Step 5 in a cluster. The first block's barrier counts the bytes that all send to it. The
  // cluster barrier, which says that it is initialised, is arrived at while the first copies are
  // under way and waited for after the last key, when that costs nothing.

  /// Where a block sends: the first block's `received`, at its own place, and its barrier.
  struct ClusterMailbox {
    std::uint32_t partials;
    std::uint32_t barrier;
  };

  FOVEAL_DEVICE std::uint64_t* cluster_barrier() const {
    return reinterpret_cast<std::uint64_t*>(shared_ + layout_.barrier);
  }

#if __CUDA_ARCH__ >= 900
  FOVEAL_DEVICE void announce_to_cluster(const Task& task) const {
    if (threadIdx.x == 0) {
      const std::uint32_t barrier = ptx::shared_address(cluster_barrier());
      ptx::mbarrier_init(barrier, 1);
      ptx::mbarrier_arrive_expect_tx(
          barrier, static_cast<std::uint32_t>(args_.num_splits * stored_rows(task) * kStride * 4));
      ptx::fence_mbarrier_init();
    }
    __syncwarp();
    ptx::cluster_arrive_relaxed();
  }
  FOVEAL_DEVICE void wait_for_cluster() const { ptx::cluster_wait(); }

  FOVEAL_DEVICE ClusterMailbox cluster_mailbox() const {
    const std::uint32_t rank = ptx::cluster_ctarank();
    return {ptx::mapa(shared_address(layout_.received), 0) + rank * (kRows * kStride * 4),
            ptx::mapa(ptx::shared_address(cluster_barrier()), 0)};
  }

  static FOVEAL_DEVICE void send(const ClusterMailbox& mailbox, int row, int d,
                                 const MergedElement& merged) {
    const std::uint32_t place =
        mailbox.partials + static_cast<std::uint32_t>((row * kStride + d) * 4);
    ptx::st_async(place, merged.acc, mailbox.barrier);
    if (d > 1) return;
    // The maximum and the sum lie behind the row's values.
    ptx::st_async(place + kHeaddim * 4, d == 0 ? merged.row_max : merged.row_sum, mailbox.barrier);
  }

  FOVEAL_DEVICE void store_cluster_result() const {
    if (ptx::cluster_ctarank() != 0) return;
    ptx::mbarrier_wait_cluster(ptx::shared_address(cluster_barrier()), 0);
    const Task& task = current_task();
    for_each_element(stored_rows(task), [&](int row, int d) {
      const float* from = received() + row * kStride;
      store(task, row, d, merge_partials<kHeaddim>(args_.num_splits, d, [&](int part, int element) {
              return from[part * kRows * kStride + element];
            }));
    });
  }
#else
  FOVEAL_DEVICE void announce_to_cluster(const Task& /*task*/) const {}
  FOVEAL_DEVICE void wait_for_cluster() const {}
  FOVEAL_DEVICE ClusterMailbox cluster_mailbox() const { return {}; }
  static FOVEAL_DEVICE void send(const ClusterMailbox& /*mailbox*/, int /*row*/, int /*d*/,
                                 const MergedElement& /*merged*/) {}
  FOVEAL_DEVICE void store_cluster_result() const {}
#endif

  // ---- Step 5 through global memory. A block waits only for blocks of a lower index, which were
  // started before it.

  FOVEAL_DEVICE UnitParts unit_parts(const Task& task, const Shares& shares) const {
    return {shares, args_.granules_apart, task.unit_begin, task.unit_size};
  }

  /// What a merge of parts keeps in shared memory, over the rings.
  struct UnitMerge {
    float* weights;       ///< [kTileRows][count]: exp2(the part's maximum - the row's)
    float* row_max;       ///< [kTileRows]
    float* row_sum;       ///< [kTileRows]
    std::int32_t* slots;  ///< [count]
  };
  FOVEAL_DEVICE UnitMerge unit_merge(int count) const {
    auto* floats = reinterpret_cast<float*>(shared_);
    return {floats + 2 * kTileRows, floats, floats + kTileRows,
            reinterpret_cast<std::int32_t*>(floats + 2 * kTileRows + kTileRows * count)};
  }

  /// Publishes the task's part; the block with the unit's last granule waits for all and merges.
  FOVEAL_DEVICE void store_unit_result(const Shares& shares) const {
    const Task& task = current_task();
    const UnitParts parts = unit_parts(task, shares);
    meet();  // the part is complete, and the warps' partial results are done with
    if (threadIdx.x == 0) ptx::store_release(args_.flags + parts.slot(task.part), args_.nonce);
    if (!task.merges) return;
    const UnitMerge merge = unit_merge(parts.count);
    for (int i = static_cast<int>(threadIdx.x); i < parts.count;
         i += static_cast<int>(blockDim.x)) {
      const std::int64_t slot = parts.slot(i);
      merge.slots[i] = static_cast<std::int32_t>(slot);
      while (ptx::load_acquire(args_.flags + slot) != args_.nonce) __nanosleep(20);
      args_.flags[slot] = 0;
    }
    const int stored = stored_rows(task);
    for (int first_row = 0; first_row < stored; first_row += kTileRows) {
      const int tile_rows = min_of(stored - first_row, kTileRows);
      meet();  // the slots are known, the weights of the rows before done with
      for (int row = warp(); row < tile_rows; row += num_warps()) {
        weigh_parts(merge, parts.count, first_row, row);
      }
      meet();
      for_each_element(tile_rows, [&](int row, int d) {
        float acc = 0.0f;
#pragma unroll 8
        for (int i = 0; i < parts.count; ++i) {
          acc += merge.weights[row * parts.count + i] *
                 __ldcg(partial(merge.slots[i]) + (first_row + row) * kStride + d);
        }
        store(task, first_row + row, d, {acc, merge.row_max[row], merge.row_sum[row]});
      });
    }
  }

  /// One warp: the weights of a row's parts, its maximum and sum.
  FOVEAL_DEVICE void weigh_parts(const UnitMerge& merge, int count, int first_row, int row) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const auto row_of = [&](int i) {
      return partial(merge.slots[i]) + (first_row + row) * kStride;
    };
    float row_max = algorithm::kNegativeInfinity;
    for (int i = lane; i < count; i += 32) {
      const float part_max = __ldcg(row_of(i) + kHeaddim);
      merge.weights[row * count + i] = part_max;
      row_max = fmaxf(row_max, part_max);
    }
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      row_max = fmaxf(row_max, __shfl_xor_sync(~0u, row_max, lanes));
    }
    const float offset = algorithm::softmax_offset(row_max);
    float row_sum = 0.0f;
    for (int i = lane; i < count; i += 32) {
      const float weight = ptx::exp2_approx(merge.weights[row * count + i] - offset);
      merge.weights[row * count + i] = weight;
      row_sum += weight * __ldcg(row_of(i) + kHeaddim + 1);
    }
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) row_sum += __shfl_xor_sync(~0u, row_sum, lanes);
    if (lane == 0) {
      merge.row_max[row] = row_max;
      merge.row_sum[row] = row_sum;
    }
  }

  const DecodeArgs& args_;
  unsigned char* shared_;
  SharedLayout layout_;
};

}  // namespace foveal::cuda::decode
