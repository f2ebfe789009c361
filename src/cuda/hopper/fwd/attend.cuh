// The consumers: each warpgroup attends 64 of the tile's rows to its key blocks.
// FlashAttention-3 (Shah et al. 2024), Alg. 2: scores of the next block are issued before this
// one's weights meet v.
#pragma once

#include <cstdint>

#include "cuda/hopper/fwd/epilogue.cuh"
#include "cuda/hopper/fwd/shared_memory.cuh"
#include "cuda/hopper/fwd/softmax.cuh"
#include "cuda/hopper/fwd/weigh.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/opaque.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/special_registers.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tile/swizzled_panels.hpp"

namespace foveal::cuda::hopper {

/// One arrival a warp.
FOVEAL_DEVICE void release(std::uint64_t& empty) {
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(address_of(empty));
}

/// Starts s = q . k^T.
template <class Shape>
FOVEAL_DEVICE void start_scores(float (&s)[Shape::kTile.n / 2], const Queries<Shape>& queries,
                                std::uint32_t k) {
  using Multiply = ptx::Wgmma<typename Shape::Element, Shape::kTile.n>;
  std::uint32_t q = queries.rows;
  // The descriptors of wide q fill more registers than a loop has to keep them in.
  if constexpr (Shape::kTile.d > 128) {
    q = static_cast<std::uint32_t>(ptx::opaque(static_cast<int>(q)));
  }
  const PanelOperand<Shape::kQLayout> rows(q, 0);
  const PanelOperand<Shape::kKLayout> keys(k, 0);
  ptx::hold_registers(s);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < Queries<Shape>::kSteps; ++step) {
    if constexpr (Queries<Shape>::kInRegisters) {
      Multiply::multiply_by_rows(s, queries.fragments[step], keys.columns(step), step > 0);
    } else {
      Multiply::multiply_shared(s, rows.columns(step), keys.columns(step), step > 0);
    }
  }
  ptx::wgmma_commit();
}

template <class Shape>
using WeightSteps = std::uint32_t[Shape::kTile.n / 16][4];

/// Starts acc += p . v.
template <class Shape>
FOVEAL_DEVICE void start_values(float (&acc)[Shape::kTile.d / 2], const WeightSteps<Shape>& p,
                                std::uint32_t v) {
  const PanelOperand<Shape::kKLayout> values(v, 0);
  ptx::hold_registers(acc);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < Shape::kTile.n / 16; ++step) {
    ptx::Wgmma<typename Shape::Element, Shape::kTile.d>::multiply_registers(acc, p[step],
                                                                            values.rows(step), 1);
  }
  ptx::wgmma_commit();
}

/// Zeroes rows of v that no row of the sequence sees: they may hold anything, and 0 times NaN is
/// NaN. Every consumer does so for itself; they write the same.
template <PanelLayout kLayout>
FOVEAL_DEVICE void clear_unseen_values(const WorkTile& work, std::uint32_t v,
                                       std::int32_t first_key, int group) {
  constexpr int kUnits = kLayout.row_bytes() / 16;
  const std::int32_t min = work.mask.first_key(0) - first_key;
  const std::int32_t max = work.mask.seqlen_k - first_key;
  if (min <= 0 && max >= kLayout.rows) return;
  for (int unit = static_cast<int>(ptx::thread_index_anew() % kWarpgroupThreads);
       unit < kLayout.bytes() / 16; unit += kWarpgroupThreads) {
    const int row = unit / kUnits % kLayout.rows;
    if (row < min || row >= max) ptx::store_shared_16(v + 16 * unit, {0, 0, 0, 0});
  }
  ptx::fence_proxy_async();
  ptx::named_barrier_sync(1 + group, kWarpgroupThreads);  // 0 is __syncthreads
}

/// The same value, known to be alike in a warp: what is computed from it is in uniform registers,
/// as the descriptors of wgmma have to be.
FOVEAL_DEVICE std::uint32_t alike(std::uint32_t value) { return __shfl_sync(~0u, value, 0); }

template <class Shape>
class Consumer {
 public:
  using Element = typename Shape::Element;
  using SharedMemory = typename Shape::SharedMemory;
  static constexpr ForwardTile kTile = Shape::kTile;

  FOVEAL_DEVICE Consumer(const ForwardArgs& args, SharedMemory& smem, int group)
      : args_(args), smem_(smem), group_(group), weigher_(args) {
    if (group == kTile.num_consumers() - 1) pass_turn();
  }

  FOVEAL_DEVICE void attend(const WorkTile& work, const WorkRows& rows, std::uint32_t q_parity) {
    float acc[kTile.d / 2];
    RowStates state;
    state.clear();
    ptx::mbarrier_wait(address_of(smem_.q_full[group_]), q_parity);
    if (rows.n_min < rows.n_max) {
      pass_over(work.n_max - rows.n_max, true);
      attend_keys(work, rows, acc, state);
      pass_over(rows.n_min - work.n_min, true);
    } else {
      clear(acc);
      __syncwarp();  // a lane that still waited for q could find the round over
      release(smem_.q_empty[group_]);
      pass_over(work.n_max - work.n_min, false);
    }
    const auto thread = static_cast<std::int32_t>(ptx::thread_index_anew() % kWarpgroupThreads);
    const std::int32_t row = rows.row_min + thread / 32 * 16 + thread % 32 / 4;
    store_tile<Element>(args_, work, acc, state, {row, rows.row_max});
  }

 private:
  FOVEAL_DEVICE void attend_keys(const WorkTile& work, const WorkRows& rows,
                                 float (&acc)[kTile.d / 2], RowStates& state) {
    const std::int32_t n_min = rows.n_min;
    std::int32_t n_block = rows.n_max - 1;
    bool masked = n_block >= rows.full_max || n_block < rows.full_min;
    float s[kTile.n / 2];
    WeightSteps<Shape> p;
    Queries<Shape> queries;
    take_queries(queries);
    const auto block = [&] {
      return ScoreBlock<Shape>{
          work, rows, queries, address_of(smem_.k[blocks_.slot()]), n_block * kTile.n, masked};
    };

    ptx::mbarrier_wait(address_of(smem_.k_full[blocks_.slot()]), blocks_.parity());
    start_scores<Shape>(s, queries, address_of(smem_.k[blocks_.slot()]));
    ptx::wgmma_wait<0>();
    ptx::hold_registers(s);
    free_keys();
    weigher_.begin(block(), s, state);
    clear(acc);  // only now: the first scores then have these registers
    Rescale rescale{{1.0f, 1.0f}, false};

    // A round begins where a block's weights are due: anywhere but at the loop's edge the compiler
    // hoists the wait for the product before over the exponentials.
#pragma unroll 1
    for (;;) {
      ptx::wgmma_wait<0>();
      ptx::hold_registers(acc);
      if (n_block + 1 < rows.n_max) release(smem_.v_empty[blocks_.before().before().slot()]);
      if (is_needed(rescale)) {
#pragma unroll
        for (int i = 0; i < kTile.d / 2; ++i) acc[i] *= rescale.factor[i / 2 % 2];
      }
      pack_weights<Element>(p, s);
      if (--n_block < n_min) break;
      const bool before_masked = masked;
      masked = n_block >= rows.full_max || n_block < rows.full_min;
      ptx::mbarrier_wait(address_of(smem_.k_full[blocks_.slot()]), blocks_.parity());
      take_turn();
      start_scores<Shape>(s, queries, address_of(smem_.k[blocks_.slot()]));
      const std::uint32_t v = acquire_values(work, n_block + 1, before_masked);
      start_values<Shape>(acc, p, v);
      ptx::wgmma_wait<1>();
      ptx::hold_registers(s);
      pass_turn();
      rescale = weigher_.next(block(), s, state, before_masked);
      free_keys();  // only now: scores may have been needed once more
    }
    release(smem_.q_empty[group_]);
    const std::uint32_t v = acquire_values(work, n_block + 1, masked);
    start_values<Shape>(acc, p, v);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(acc);
    release(smem_.v_empty[blocks_.before().slot()]);
  }

  FOVEAL_DEVICE void take_queries(Queries<Shape>& queries) const {
    constexpr int kRowsBytes = kWarpgroupRows * Shape::kQLayout.row_bytes();
    queries.rows = address_of(smem_.q) + static_cast<std::uint32_t>(group_ * kRowsBytes);
    if constexpr (Queries<Shape>::kInRegisters) {
#pragma unroll
      for (int step = 0; step < Queries<Shape>::kSteps; ++step) {
        queries.load_fragment(queries.fragments[step], step);
      }
    }
  }

  FOVEAL_DEVICE void free_keys() {
    release(smem_.k_empty[blocks_.slot()]);
    blocks_.advance();
    blocks_.count = alike(blocks_.count);
  }

  /// Consumers begin a round's products one after the other, and so are out of step: while one
  /// weighs, another multiplies. All have as many turns in a tile: a round each of its blocks but
  /// one.
  FOVEAL_DEVICE void take_turn() const {
    if constexpr (kTile.in_turn) {
      ptx::named_barrier_sync(kFirstTurn + group_, 2 * kWarpgroupThreads);
    }
  }
  FOVEAL_DEVICE void pass_turn() const {
    if constexpr (kTile.in_turn) {
      const int next = group_ + 1 < kTile.num_consumers() ? group_ + 1 : 0;
      ptx::named_barrier_arrive(kFirstTurn + next, 2 * kWarpgroupThreads);
    }
  }

  /// Key blocks that other consumers' rows see and these don't. `attends`: it has others.
  FOVEAL_DEVICE void pass_over(std::int32_t count, bool attends) {
#pragma unroll 1
    for (; count > 0; --count) {
      if (attends || count > 1) {
        take_turn();
        pass_turn();
      }
      const int slot = blocks_.slot();
      ptx::mbarrier_wait(address_of(smem_.k_full[slot]), blocks_.parity());
      ptx::mbarrier_wait(address_of(smem_.v_full[slot]), blocks_.parity());
      __syncwarp();  // a lane that still waited could find the round over
      release(smem_.k_empty[slot]);
      release(smem_.v_empty[slot]);
      blocks_.advance();
    }
  }

  /// Three consumers have no register to remember it.
  FOVEAL_DEVICE static bool is_needed(const Rescale& rescale) {
    if constexpr (kTile.num_consumers() < 3) return rescale.any;
    return __any_sync(~0u, rescale.factor[0] != 1.0f || rescale.factor[1] != 1.0f) != 0;
  }

  FOVEAL_DEVICE static void clear(float (&acc)[kTile.d / 2]) {
#pragma unroll
    for (float& x : acc) x = 0.0f;
  }

  /// v of a block once it is there.
  FOVEAL_DEVICE std::uint32_t acquire_values(const WorkTile& work, std::int32_t n_block,
                                             bool masked) const {
    ptx::mbarrier_wait(address_of(smem_.v_full[blocks_.before().slot()]),
                       blocks_.before().parity());
    const std::uint32_t v = address_of(smem_.v[blocks_.before().slot()]);
    if (masked) clear_unseen_values<Shape::kKLayout>(work, v, n_block * kTile.n, group_);
    return v;
  }

  static constexpr int kFirstTurn = 8;  ///< Named barriers, one a consumer.

  const ForwardArgs& args_;
  SharedMemory& smem_;
  int group_;
  Weigher<Shape> weigher_;
  RingPlace<Shape::kStages> blocks_;  ///< Of k; v is a block behind.
};

/// All threads of consumer warpgroup `group` call it.
template <class Shape>
FOVEAL_DEVICE void attend(const ForwardArgs& args, typename Shape::SharedMemory& smem, int group) {
  Consumer<Shape> consumer(args, smem, group);
  RingPlace<kWorkSlots> at;
  for (;;) {
    ptx::mbarrier_wait(address_of(smem.work_full[at.slot()]), at.parity());
    const WorkTile& work = smem.work[at.slot()];
    if (!work.found) return;
    consumer.attend(work, smem.rows[at.slot()][group], at.count % 2);
    __syncwarp();  // all lanes have read it
    release(smem.work_empty[at.slot()]);
    at.advance();
  }
}

}  // namespace foveal::cuda::hopper
