// The consumers: each warpgroup attends 64 of the tile's rows. It has the scores of its block's
// half of the keys, all keys' weights, and its block's half of out's columns.
#pragma once

#include <cstdint>

#include "cuda/hopper/fwd/attend.cuh"
#include "cuda/hopper/wide_fwd/partner.cuh"

namespace foveal::cuda::hopper::wide_fwd {

template <class Shape>
class WideConsumer {
 public:
  using Element = typename Shape::Element;
  using SharedMemory = typename Shape::SharedMemory;
  static constexpr WideTile kTile = Shape::kTile;

  FOVEAL_DEVICE WideConsumer(const ForwardArgs& args, SharedMemory& smem, int group)
      : args_(args),
        smem_(smem),
        group_(group),
        rank_(static_cast<int>(ptx::cluster_ctarank())),
        partner_(smem, __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0) - 4) {
    factor_log2_ = args.scale_first ? 1.0f : args.attention.score.softmax_scale * kLog2E;
  }

  FOVEAL_DEVICE void attend(const WorkTile& work, std::uint32_t q_parity) {
    float acc[kTile.columns() / 2];
    RowStates state;
    state.clear();
    if (work.n_min < work.n_max) {
      attend_keys(work, acc, state, q_parity);
      share_sums(state);
    } else {
#pragma unroll
      for (float& x : acc) x = 0.0f;
      wait_for_queries(q_parity);
      __syncwarp();  // a lane that still waited for q could find the round over
      release(smem_.q_empty);
    }
    store_tile<Element>(args_, work, acc, state, {first_row(work), work.row_max},
                        rank_ * kTile.columns());
  }

 private:
  static constexpr int kSteps = kTile.keys() / 16;
  using Weights = std::uint32_t[kSteps][4];

  FOVEAL_DEVICE std::int32_t first_row(const WorkTile& work) const {
    const auto thread = static_cast<std::int32_t>(ptx::thread_index_anew()) % kWarpgroupThreads;
    return work.row_min + group_ * kWarpgroupRows + thread / 32 * 16 + thread % 32 / 4;
  }

  FOVEAL_DEVICE void wait_for_queries(std::uint32_t parity) const {
#pragma unroll
    for (int panel = 0; panel < kTile.k_slots(); ++panel) {
      ptx::mbarrier_wait(address_of(smem_.q_full[panel]), parity);
    }
  }

  FOVEAL_DEVICE void attend_keys(const WorkTile& work, float (&acc)[kTile.columns() / 2],
                                 RowStates& state, std::uint32_t q_parity) {
    float s[kTile.keys() / 2];
    Weights p;         // of the block's own keys
    Weights partners;  // of its partner's
    const std::int32_t n_min = work.n_min;
    const std::int32_t full_min = work.full_min;
    const std::int32_t full_max = work.full_max;
    std::int32_t n_block = work.n_max - 1;
    bool masked = n_block >= full_max || n_block < full_min;

    start_scores<true>(s, q_parity);
    ptx::wgmma_wait<0>();
    end_scores(s, n_block == n_min);
    begin_weights(work, s, n_block, masked);
    Rescale rescale = move_maxima_together(state);
    exponentiate(s, state, factor_log2_);
    pack_weights<Element>(p, s);
    partner_.send_weights(p);
#pragma unroll
    for (float& x : acc) x = 0.0f;
    rescale.any = false;

    // A product with registers is issued when the one before it has begun, so that what stands
    // between two of them runs beside the first.
#pragma unroll 1
    while (--n_block >= n_min) {
      const ValueBlock values{n_block + 1, masked};
      masked = n_block >= full_max || n_block < full_min;
      start_scores<false>(s, q_parity);
      rescale_values(acc, rescale);
      start_values<0>(work, acc, p[0], values);
      ptx::wgmma_wait<1>();
      end_scores(s, n_block == n_min);
      start_values<1>(work, acc, p[1], values);
      partner_.await_weights();  // new maxima are sent after them
      begin_weights(work, s, n_block, masked);
      start_values<2>(work, acc, p[2], values);
      start_values<3>(work, acc, p[3], values);
      partner_.take_weights(partners);
      start_values<4>(work, acc, partners[0], values);
      start_values<5>(work, acc, partners[1], values);
      rescale = move_maxima_together(state);
      exponentiate(half_of<0>(s), state, factor_log2_);
      ptx::hold_registers(s);
      start_values<6>(work, acc, partners[2], values);
      exponentiate(half_of<1>(s), state, factor_log2_);
      ptx::hold_registers(s);
      start_values<7>(work, acc, partners[3], values);
      pack_weights<Element>(p, s);
      partner_.send_weights(p);
      end_values(acc);
    }
    rescale_values(acc, rescale);
    const ValueBlock values{n_min, masked};
    start_values<0>(work, acc, p[0], values);
    start_values<1>(work, acc, p[1], values);
    start_values<2>(work, acc, p[2], values);
    start_values<3>(work, acc, p[3], values);
    partner_.await_weights();
    partner_.take_weights(partners);
    start_values<4>(work, acc, partners[0], values);
    start_values<5>(work, acc, partners[1], values);
    start_values<6>(work, acc, partners[2], values);
    start_values<7>(work, acc, partners[3], values);
    end_values(acc);
  }

  /// Starts s = q . k^T of the block's half of the keys, panel by panel, a group each; kFirst: of a
  /// tile, whose q may still be on its way.
  template <bool kFirst>
  FOVEAL_DEVICE void start_scores(float (&s)[kTile.keys() / 2], std::uint32_t q_parity) {
    const PanelOperand<Shape::kQLayout> queries(
        static_cast<std::uint32_t>(ptx::opaque(static_cast<int>(address_of(smem_.q)))),
        group_ * kWarpgroupRows);
    ptx::hold_registers(s);
#pragma unroll
    for (int panel = 0; panel < kTile.k_slots(); ++panel) {
      if (kFirst) ptx::mbarrier_wait(address_of(smem_.q_full[panel]), q_parity);
      const PanelOperand<Shape::kKLayout> keys(await_slot(), 0);
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::Wgmma<Element, kTile.keys()>::multiply_shared(
            s, queries.columns(4 * panel + step), keys.columns(step), panel > 0 || step > 0);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (panel > 0) free_slots(1);
    }
  }

  /// The scores have been waited for.
  FOVEAL_DEVICE void end_scores(float (&s)[kTile.keys() / 2], bool last) {
    ptx::hold_registers(s);
    free_slots(1);
    if (last) release(smem_.q_empty);
  }

  struct ValueBlock {
    std::int32_t n_block;
    bool masked;
  };

  /// Starts acc += weights . v of the block's slot kSlot, a group of its own: the block's own half
  /// of the keys, then the partner's. Frees the slot of two products before.
  template <int kSlot>
  FOVEAL_DEVICE void start_values(const WorkTile& work, float (&acc)[kTile.columns() / 2],
                                  const std::uint32_t (&weights)[4], const ValueBlock& block) {
    if (kSlot == 0) ptx::hold_registers(acc);
    const std::uint32_t v = await_slot();
    if (block.masked) {
      const int half = kSlot / kSteps ^ rank_;
      const std::int32_t key = block.n_block * kTile.n + half * kTile.keys() + kSlot % kSteps * 16;
      clear_unseen_values<Shape::kVLayout>(work, v, key, group_);
    }
    const PanelOperand<Shape::kVLayout> values(v, 0);
    ptx::wgmma_fence();
    ptx::Wgmma<Element, kTile.columns()>::multiply_registers(acc, weights, values.rows(0), 1);
    ptx::wgmma_commit();
    if (kSlot < 2) return;
    ptx::wgmma_wait<2>();
    free_slots(1);
  }

  FOVEAL_DEVICE void end_values(float (&acc)[kTile.columns() / 2]) {
    ptx::wgmma_wait<0>();
    ptx::hold_registers(acc);
    free_slots(2);
  }

  template <int kHalf>
  FOVEAL_DEVICE static auto half_of(float (&s)[kTile.keys() / 2]) -> float (&)[kTile.keys() / 4] {
    return reinterpret_cast<float(&)[kTile.keys() / 4]>(s[kHalf * kTile.keys() / 4]);
  }

  /// The next slot of the ring once it is full.
  FOVEAL_DEVICE std::uint32_t await_slot() {
    ptx::mbarrier_wait(address_of(smem_.full[next_.slot]), next_.parity);
    const std::uint32_t slot = address_of(smem_.ring[next_.slot]);
    next_.advance();
    return slot;
  }

  /// The oldest slots that have not been freed yet.
  FOVEAL_DEVICE void free_slots(int count) {
    for (int i = 0; i < count; ++i) {
      release(smem_.empty[oldest_.slot]);
      oldest_.advance();
    }
  }

  /// Scores scaled, capped and masked; the partner is told their maxima.
  FOVEAL_DEVICE void begin_weights(const WorkTile& work, float (&s)[kTile.keys() / 2],
                                   std::int32_t n_block, bool masked) {
    if (args_.scale_first) scale_and_cap(s, args_);
    if (masked) {
      const auto lane = static_cast<std::int32_t>(ptx::thread_index_anew()) % 4;
      mask_scores(s, work.mask, first_row(work),
                  n_block * kTile.n + rank_ * kTile.keys() + 2 * lane);
    }
    own_maxima_ = lane_maxima(s);
    partner_.send_maxima(own_maxima_);
  }

  /// Both blocks move a row alike: they look at the same maxima.
  FOVEAL_DEVICE Rescale move_maxima_together(RowStates& state) {
    const float2 partners = partner_.receive_maxima();
    return move_maxima(state, {fmaxf(own_maxima_.x, partners.x), fmaxf(own_maxima_.y, partners.y)},
                       factor_log2_);
  }

  FOVEAL_DEVICE static void rescale_values(float (&acc)[kTile.columns() / 2],
                                           const Rescale& rescale) {
    if (!rescale.any) return;
    ptx::hold_registers(acc);
#pragma unroll
    for (int i = 0; i < kTile.columns() / 2; ++i) acc[i] *= rescale.factor[i / 2 % 2];
  }

  /// A row's sum over both blocks' keys: the same bits in both.
  FOVEAL_DEVICE void share_sums(RowStates& state) {
    const float2 partners = partner_.exchange_sums({state.sum[0], state.sum[1]});
    state.sum[0] += partners.x;
    state.sum[1] += partners.y;
  }

  const ForwardArgs& args_;
  SharedMemory& smem_;
  int group_;
  int rank_;
  float factor_log2_;
  Partner<Shape> partner_;
  RingWalk<Shape::kSlots> next_;    ///< Of the slots to wait for.
  RingWalk<Shape::kSlots> oldest_;  ///< Of those to be freed.
  float2 own_maxima_;
};

/// All threads of consumer warpgroup `group` call it.
template <class Shape>
FOVEAL_DEVICE void attend_wide(const ForwardArgs& args, typename Shape::SharedMemory& smem,
                               int group) {
  WideConsumer<Shape> consumer(args, smem, group);
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

}  // namespace foveal::cuda::hopper::wide_fwd
