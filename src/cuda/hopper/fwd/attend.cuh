// The consumers: each warpgroup attends 64 of the tile's rows to its key blocks.
// FlashAttention-3 (Shah et al. 2024), Alg. 2: scores of the next block are issued before this
// one's weights meet v.
#pragma once

#include <cstdint>

#include "cuda/hopper/fwd/epilogue.cuh"
#include "cuda/hopper/fwd/shared_memory.cuh"
#include "cuda/hopper/fwd/softmax.cuh"
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
FOVEAL_DEVICE void start_scores(float (&s)[Shape::kTile.n / 2], std::uint32_t q, std::uint32_t k,
                                int group) {
  // The descriptors of wide q fill more registers than a loop has to keep them in.
  if constexpr (Shape::kTile.d > 128)
    q = static_cast<std::uint32_t>(ptx::opaque(static_cast<int>(q)));
  const PanelOperand<Shape::kQLayout> queries(q, group * kWarpgroupRows);
  const PanelOperand<Shape::kKLayout> keys(k, 0);
  ptx::hold_registers(s);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < Shape::kTile.d / 16; ++step) {
    ptx::Wgmma<typename Shape::Element, Shape::kTile.n>::multiply_shared(
        s, queries.columns(step), keys.columns(step), step > 0);
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
  for (int unit = static_cast<int>(ptx::thread_index_anew()) % kWarpgroupThreads;
       unit < kLayout.bytes() / 16; unit += kWarpgroupThreads) {
    const int row = unit / kUnits % kLayout.rows;
    if (row < min || row >= max) ptx::store_shared_16(v + 16 * unit, {0, 0, 0, 0});
  }
  ptx::fence_proxy_async();
  ptx::named_barrier_sync(1 + group, kWarpgroupThreads);  // 0 is __syncthreads
}

template <class Shape>
class Consumer {
 public:
  using Element = typename Shape::Element;
  using SharedMemory = typename Shape::SharedMemory;
  static constexpr ForwardTile kTile = Shape::kTile;

  FOVEAL_DEVICE Consumer(const ForwardArgs& args, SharedMemory& smem, int group)
      : args_(args), smem_(smem), group_(group) {
    factor_log2_ = args.scale_first ? kLog2E : args.attention.score.softmax_scale * kLog2E;
  }

  FOVEAL_DEVICE void attend(const WorkTile& work, std::uint32_t q_parity) {
    float acc[kTile.d / 2];
    RowStates state;
    state.clear();
    ptx::mbarrier_wait(address_of(smem_.q_full), q_parity);
    if (work.n_min < work.n_max) {
      attend_keys(work, acc, state);
    } else {
      clear(acc);
      release(smem_.q_empty);
    }
    store_tile<Element>(args_, work, acc, state, first_row(work));
  }

 private:
  FOVEAL_DEVICE std::int32_t first_row(const WorkTile& work) const {
    const auto thread = static_cast<std::int32_t>(ptx::thread_index_anew()) % kWarpgroupThreads;
    return work.row_min + group_ * kWarpgroupRows + thread / 32 * 16 + thread % 32 / 4;
  }

  FOVEAL_DEVICE void attend_keys(const WorkTile& work, float (&acc)[kTile.d / 2],
                                 RowStates& state) {
    const std::uint32_t q = address_of(smem_.q);
    const std::int32_t n_min = work.n_min;
    const std::int32_t full_min = work.full_min;
    const std::int32_t full_max = work.full_max;
    std::int32_t n_block = work.n_max - 1;
    bool masked = n_block >= full_max || n_block < full_min;
    bool first = true;
    float s[kTile.n / 2];
    WeightSteps<Shape> p;

    ptx::mbarrier_wait(address_of(smem_.k_full[blocks_.slot()]), blocks_.parity());
    start_scores<Shape>(s, q, address_of(smem_.k[blocks_.slot()]), group_);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(s);
    release(smem_.k_empty[blocks_.slot()]);
    blocks_.advance();
    weigh(work, s, state, n_block, masked);
    clear(acc);  // only now: the first scores then have these registers
    Rescale rescale{{1.0f, 1.0f}, false};

    // A round begins where a block's weights are due: anywhere but at the loop's edge the compiler
    // hoists the wait for the product before over the exponentials.
#pragma unroll 1
    for (;;) {
      ptx::wgmma_wait<0>();
      ptx::hold_registers(acc);
      if (!first) release(smem_.v_empty[blocks_.before().before().slot()]);
      first = false;
      if (rescale.any) {
#pragma unroll
        for (int i = 0; i < kTile.d / 2; ++i) acc[i] *= rescale.factor[i / 2 % 2];
      }
      pack_weights<Element>(p, s);
      if (--n_block < n_min) break;
      const bool before_masked = masked;
      masked = n_block >= full_max || n_block < full_min;
      ptx::mbarrier_wait(address_of(smem_.k_full[blocks_.slot()]), blocks_.parity());
      start_scores<Shape>(s, q, address_of(smem_.k[blocks_.slot()]), group_);
      const std::uint32_t v = acquire_values(work, n_block + 1, before_masked);
      start_values<Shape>(acc, p, v);
      ptx::wgmma_wait<1>();
      ptx::hold_registers(s);
      release(smem_.k_empty[blocks_.slot()]);
      blocks_.advance();
      rescale = weigh(work, s, state, n_block, masked);
    }
    release(smem_.q_empty);
    const std::uint32_t v = acquire_values(work, n_block + 1, masked);
    start_values<Shape>(acc, p, v);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(acc);
    release(smem_.v_empty[blocks_.before().slot()]);
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

  /// Scores of a block become weights.
  FOVEAL_DEVICE Rescale weigh(const WorkTile& work, float (&s)[kTile.n / 2], RowStates& state,
                              std::int32_t n_block, bool masked) const {
    if (args_.scale_first) scale_and_cap(s, args_);
    if (masked) {
      const auto lane = static_cast<std::int32_t>(ptx::thread_index_anew()) % 4;
      mask_scores(s, work.mask, first_row(work), n_block * kTile.n + 2 * lane);
    }
    const Rescale rescale = move_maxima(state, lane_maxima(s), factor_log2_);
    exponentiate(s, state, factor_log2_);
    return rescale;
  }

  const ForwardArgs& args_;
  SharedMemory& smem_;
  int group_;
  float factor_log2_;
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
    consumer.attend(work, at.count % 2);
    __syncwarp();  // all lanes have read it
    release(smem.work_empty[at.slot()]);
    at.advance();
  }
}

}  // namespace foveal::cuda::hopper
