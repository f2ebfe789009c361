// The direct decode kernel: one task a block, and the keys are asked for before anything else. Work
// that blocks share evenly is direct_shared.cuh's.
//
//   1. every warp starts the copy of its first key blocks
//   2. queries into registers, what each row sees, the cluster's barrier
//   3. every warp streams its key blocks, without a barrier (attend.cuh)
//   4. the warps' results are merged in shared memory
//   5. clusters: every block merges its share of d over all blocks' results
#pragma once

#include <cstdint>

#include "cuda/portable/decode/block_barrier.cuh"
#include "cuda/portable/decode/direct_merge.cuh"
#include "cuda/portable/decode/direct_stream.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/cluster_store.cuh"

namespace foveal::cuda::decode {

/// The queries of a tile as the B operand of S^T = K . Q^T, from global memory.
template <class Element, int kHeaddim>
class DirectQueries {
 public:
  /// Row r of the tile is query token r / group, head r % group; `num_rows` are there.
  FOVEAL_DEVICE void read(const DirectArgs& args, int b, int head_k) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int row = lane / 4;
    const bool valid = row < args.num_rows;
    const int head = head_k * args.qhead_per_khead + args.group.remainder(row);
    const auto* from = reinterpret_cast<const std::uint32_t*>(
        static_cast<const Element*>(args.q.data) +
        (valid ? args.q.strides.offset(b, args.group.quotient(row), head) : 0) + lane % 4 * 2);
#pragma unroll
    for (int step = 0; step < kHeaddim / 32; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        registers_[step][i] = valid ? __ldg(from + step * 16 + i * 4) : 0;
      }
    }
  }

  FOVEAL_DEVICE void load(std::uint32_t (&q)[4], int /*tile*/, int step) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) q[i] = registers_[step][i];
  }

 private:
  std::uint32_t registers_[kHeaddim / 32][4];
};

/// Keys that the lane's two packed rows see: row 2t + h sees [first[h], end[h]).
struct LaneMask {
  int first[2];
  int end[2];

  FOVEAL_DEVICE LaneMask(const DirectArgs& args, const algorithm::BasicMask<std::int32_t>& mask) {
    const int t = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = args.group.quotient(2 * t + h);
      first[h] = mask.first_key(i);
      end[h] = mask.end_key(i);
    }
  }

  /// Scores into log2 units; -inf where the row does not see the key.
  FOVEAL_DEVICE void apply(float (&scores)[1][4], float scale_log2, int first_key) const {
    const int key = first_key + static_cast<int>(threadIdx.x % 32) / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = key + 8 * (i / 2);
      const bool seen = j >= first[i % 2] && j < end[i % 2];
      scores[0][i] = seen ? scores[0][i] * scale_log2 : algorithm::kNegativeInfinity;
    }
  }
};

template <class Element, int kHeaddim, bool kPaged>
class DirectBlock {
 public:
  FOVEAL_DEVICE DirectBlock(const DirectArgs& args, unsigned char* shared)
      : args_(args),
        shared_(shared),
        layout_(direct_layout(kHeaddim, args.num_rows, num_warps(), args.num_stages,
                              args.num_splits)) {}

  FOVEAL_DEVICE void run() const {
    algorithm::BasicMask<std::int32_t> mask = args_.mask;
    KeyRange keys = args_.keys;
    if (args_.seqused_k != nullptr) {
      const int used = clamp_to(args_.seqused_k[batch()], 0, mask.seqlen_k);
      mask.seqlen_k = min_of(used + args_.seqlen_new, mask.seqlen_k);
      keys = mask.keys_of_rows({0, mask.seqlen_q});
    }
    const KeyRange blocks = own_blocks(keys);
    DirectStream<Element, kHeaddim, kPaged> stream(
        args_, batch(), head_k(), keys, blocks,
        ptx::shared_address(shared_ + DirectLayout::kRings + warp() * layout_.ring_bytes));
#pragma unroll 1
    for (int i = 0; i < args_.num_stages - 1; ++i) stream.load_next(args_);
    DirectQueries<Element, kHeaddim> queries;
    queries.read(args_, batch(), head_k());
    if (in_cluster()) announce_to_cluster();
    describe_rows();
    const LaneMask lane_mask(args_, mask);
    if (in_cluster()) wait_for_cluster();

    WarpState<kHeaddim, 1> state;
#pragma unroll 1
    for (int block = blocks.min + warp(); block < blocks.max; block += num_warps()) {
      stream.load_next(args_);
      wait_for_copies(args_.num_stages - 1);
      __syncwarp();
      float scores[1][4];
      multiply_keys<Element, kHeaddim, 1>(scores, stream.k_tile(), queries);
      lane_mask.apply(scores, args_.scale_log2, block * kBlockKeys);
      online_softmax<kHeaddim, 1>(state, scores);
      multiply_values<Element, kHeaddim, 1>(state, scores, stream.v_tile());
      __syncwarp();  // the block's ring slot may be overwritten
      stream.release();
    }
    wait_for_copies(0);
    merge_warps(state);
    if (in_cluster()) merge_cluster();
  }

 private:
  static constexpr int kQuads = kHeaddim / 4;

  // The grid is (splits, KV heads, sequences).
  static FOVEAL_DEVICE int split() { return static_cast<int>(blockIdx.x); }
  static FOVEAL_DEVICE int head_k() { return static_cast<int>(blockIdx.y); }
  static FOVEAL_DEVICE int batch() { return static_cast<int>(blockIdx.z); }
  static FOVEAL_DEVICE int num_warps() { return static_cast<int>(blockDim.x / 32); }
  static FOVEAL_DEVICE int warp() { return static_cast<int>(threadIdx.x / 32); }
  static FOVEAL_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }
  FOVEAL_DEVICE bool in_cluster() const { return args_.num_splits > 1; }

  /// The key blocks of this split.
  FOVEAL_DEVICE KeyRange own_blocks(KeyRange keys) const {
    const int first = keys.min / kBlockKeys;
    const int count = keys.empty() ? 0 : ceil_div(keys.max, kBlockKeys) - first;
    const int size = part_blocks(count, args_.split_blocks, args_.num_splits, args_.splits);
    const bool last = split() + 1 == args_.num_splits;
    return {first + min_of(split() * size, count),
            first + (last ? count : min_of((split() + 1) * size, count))};
  }

  FOVEAL_DEVICE RowOutput* row_outputs() const {
    return reinterpret_cast<RowOutput*>(shared_ + DirectLayout::kRowOutputs);
  }

  /// Where the rows' results go, found before the last key rather than after it.
  FOVEAL_DEVICE void describe_rows() const {
    const int row = static_cast<int>(threadIdx.x);
    if (row < args_.num_rows) row_outputs()[row] = row_output(args_, batch(), head_k(), row);
  }

  /// Step 4. A warp takes a row, its lanes the quads.
  FOVEAL_DEVICE void merge_warps(const WarpState<kHeaddim, 1>& state) const {
    unsigned char* partials = shared_ + layout_.partials;
    if (!in_cluster()) meet();  // the rings are done with
    store_warp_partial<kHeaddim>(state, args_.num_rows, partials + warp() * layout_.partial_bytes);
    meet();
    const unsigned char* stats = partials + args_.num_rows * direct_row_bytes(kHeaddim);
#pragma unroll 1
    for (int row = warp(); row < args_.num_rows; row += num_warps()) {
      const RowParts parts{partials + row * direct_row_bytes(kHeaddim), stats + row * 8,
                           layout_.partial_bytes, layout_.partial_bytes, num_warps()};
#pragma unroll 1
      for (int quad = lane(); quad < kQuads; quad += 32) {
        const MergedQuad merged = merge_quad(parts, quad);
        if (in_cluster()) {
          send(row, quad, merged);
        } else {
          store_quad<Element>(args_, row_outputs()[row], quad, merged);
        }
      }
    }
  }

  // ---- Step 5. A block's barrier counts the bytes that all send to it. The cluster barrier, which
  // says that it is initialised, is met while the first copies are under way.

  FOVEAL_DEVICE std::uint32_t barrier() const { return ptx::shared_address(shared_); }

  /// Quads that this block merges, of all rows.
  FOVEAL_DEVICE int own_quads() const {
    return clamp_to(kQuads - split() * args_.num_quads_a_block, 0, args_.num_quads_a_block);
  }

#if __CUDA_ARCH__ >= 900
  static FOVEAL_DEVICE void wait_for_cluster() { ptx::cluster_wait(); }

  FOVEAL_DEVICE void announce_to_cluster() const {
    if (threadIdx.x == 0) {
      const int own = own_quads();
      const int row_bytes = own == 0 ? 0 : own * 16 + 8;
      ptx::mbarrier_init(barrier(), 1);
      ptx::mbarrier_arrive_expect_tx(
          barrier(), static_cast<std::uint32_t>(args_.num_splits * args_.num_rows * row_bytes));
      ptx::fence_mbarrier_init();
    }
    __syncwarp();
    ptx::cluster_arrive_relaxed();
  }

  FOVEAL_DEVICE void send(int row, int quad, const MergedQuad& merged) const {
    const int owner = args_.quads_a_block.quotient(quad);
    const int own_quad = args_.quads_a_block.remainder(quad);
    const int part_row = split() * kTileRows + row;
    const std::uint32_t owners = ptx::mapa(barrier(), static_cast<std::uint32_t>(owner));
    const int place = layout_.received + (part_row * args_.num_quads_a_block + own_quad) * 16;
    ptx::st_async_16(owners + static_cast<std::uint32_t>(place), merged.acc, owners);
    if (own_quad == 0) {
      ptx::st_async_8(owners + static_cast<std::uint32_t>(layout_.stats + part_row * 8),
                      {merged.row_max, merged.row_sum}, owners);
    }
  }

  FOVEAL_DEVICE void merge_cluster() const {
    const int own = own_quads();
    if (warp() >= args_.num_rows || own == 0) return;
    const int row_bytes = args_.num_quads_a_block * 16;
    ptx::mbarrier_wait_cluster(barrier(), 0);
#pragma unroll 1
    for (int row = warp(); row < args_.num_rows; row += num_warps()) {
      const RowParts parts{shared_ + layout_.received + row * row_bytes,
                           shared_ + layout_.stats + row * 8, kTileRows * row_bytes, kTileRows * 8,
                           args_.num_splits};
#pragma unroll 1
      for (int quad = lane(); quad < own; quad += 32) {
        store_quad<Element>(args_, row_outputs()[row], split() * args_.num_quads_a_block + quad,
                            merge_quad(parts, quad));
      }
    }
  }
#else
  static FOVEAL_DEVICE void wait_for_cluster() {}
  FOVEAL_DEVICE void merge_cluster() const {}
  FOVEAL_DEVICE void announce_to_cluster() const {}
  FOVEAL_DEVICE void send(int /*row*/, int /*quad*/, const MergedQuad& /*merged*/) const {}
#endif

  const DirectArgs& args_;
  unsigned char* shared_;
  DirectLayout layout_;
};

}  // namespace foveal::cuda::decode
