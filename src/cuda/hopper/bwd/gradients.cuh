// The consumers: each warpgroup sums dk and dv of 64 keys over all rows that meet them, and
// computes its piece of dq. FlashAttention-2 (Dao 2023), Alg. 2, with scores transposed: thread (g,
// t) = (lane / 4, lane % 4) of warp w has keys 16 w + g and 16 w + g + 8, and of every 8 rows 2 t
// and 2 t + 1, so that weights are the left factor of dv, and their gradients that of dk, as they
// are.
#pragma once

#include <cstdint>

#include "cuda/hopper/bwd/args.hpp"
#include "cuda/hopper/bwd/shared_memory.cuh"
#include "cuda/hopper/bwd/softcap.cuh"
#include "cuda/portable/bwd/score_gradients.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/opaque.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/special_registers.cuh"
#include "cuda/ptx/store_matrix.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/ptx/wgmma_shared.cuh"
#include "cuda/tile/swizzled_panels.hpp"

namespace foveal::cuda::hopper::bwd {

/// Named barriers, of all consumers and of each alone.
inline constexpr int kDsBarrier = 1;
inline constexpr int kClearBarrier = 2;

/// One arrival a warp.
FOVEAL_DEVICE void release(std::uint64_t& empty) {
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(address_of(empty));
}

template <class Shape>
class Consumer {
 public:
  using Element = typename Shape::Element;
  using SharedMemory = typename Shape::SharedMemory;
  static constexpr BackwardTile kTile = Shape::kTile;
  static constexpr PanelLayout kQ = Shape::kQLayout;
  static constexpr PanelLayout kK = Shape::kKLayout;
  static constexpr PanelLayout kDs = Shape::kDsLayout;
  static constexpr int kScores = kTile.m / 2;
  static constexpr int kSums = kTile.d / 2;
  static constexpr int kWeightSteps = kTile.m / 16;
  using Scores = float[kScores];
  using Sums = float[kSums];
  using Weights = std::uint32_t[kWeightSteps][4];

  FOVEAL_DEVICE Consumer(const GradientArgs& args, SharedMemory& smem, int group)
      : args_(args), smem_(smem), group_(group) {}

  /// Waits for the next tile of keys: false where there is none.
  FOVEAL_DEVICE bool has_work() const {
    ptx::mbarrier_wait(address_of(smem_.work_full[tile_ % 2]), tile_ / 2 % 2);
    return !work().none;
  }
  FOVEAL_DEVICE const BlockWork& work() const { return smem_.work[tile_ % 2]; }
  FOVEAL_DEVICE void finish_work() {
    __syncwarp();
    release(smem_.work_empty[tile_ % 2]);
    ++tile_;
  }

  /// There is at least one step. Scores of a step are started during the one before; dk of a step
  /// is summed in the next, while that one's gradients of scores are computed.
  FOVEAL_DEVICE void sum(Sums& dk, Sums& dv) {
    Scores s;
    Weights ds;
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) ds[i / 4][i % 4] = 0;  // the first step's dk adds nothing
    ptx::mbarrier_wait(address_of(smem_.k_full), work().parity);
    clear_unseen_keys();
    find_operands();
    start_scores(s, q_);
    ptx::mbarrier_wait(address_of(smem_.v_full), work().parity);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(s);
#pragma unroll 1
    for (; !smem_.step[q_.stage].last; ++step_) take_step<false>(dk, dv, s, ds, step_);
    take_step<true>(dk, dv, s, ds, step_++);
    release(smem_.k_empty);
    release(smem_.v_empty);
    hand_over_dq(step_ - 1);
    add_weighted(dk, ds, smem_.q[q_.stage]);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(dk);
    release(smem_.q_empty[q_.stage]);
    q_ = q_.next();
  }

  /// 2 KiB of shared memory for the calling warp between tiles of keys: of the consumer's panel of
  /// the ds that comes next, which the last tile's dq is not read from.
  FOVEAL_DEVICE float* scratch() const {
    return reinterpret_cast<float*>(smem_.ds[step_ % 2] + group_ * kDs.panel_bytes()) +
           thread() / 32 * 512;
  }

 private:
  template <bool kLast>
  FOVEAL_DEVICE void take_step(Sums& dk, Sums& dv, Scores& s, Weights& ds, unsigned step) {
    const auto dout = RingPlace<Shape::kDoutStages>::of_step(step);
    const bool first = smem_.step[q_.stage].first;
    find_operands();
    Scores dp;
    const int last_q = first ? q_.stage : q_.before();
    if constexpr (kTile.overlaps_dk()) {
      start_dp(dp, dout);
      add_weighted(dk, ds, smem_.q[last_q]);
      if (!first) hand_over_dq(step - 1);
      exponentiate(s, dout.stage);
      ptx::wgmma_wait<1>();
    } else {
      add_weighted(dk, ds, smem_.q[last_q]);
      if (!first) hand_over_dq(step - 1);
      ptx::mbarrier_wait(address_of(smem_.dout_full[dout.stage]), dout.parity);
      exponentiate(s, dout.stage);
      ptx::wgmma_wait<0>();
      ptx::hold_registers(dk);
      start_dp(dp, dout);
      ptx::wgmma_wait<0>();
    }
    ptx::hold_registers(dp);
    differentiate(s, dp, dout.stage);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(dk);
    if (!first) release(smem_.q_empty[q_.before()]);
    if (smem_.step[q_.stage].masked) hide(s, dp, smem_.step[q_.stage].first_row);
    Weights p;
    pack(p, s);
    pack(ds, dp);

    add_weighted(dv, p, smem_.dout[dout.stage]);
    publish(ds, step % 2);
    if constexpr (!kLast) {
      q_ = q_.next();
      start_scores(s, q_);
    }
    ptx::named_barrier_sync(kDsBarrier, Shape::kConsumers * kGroupThreads);
    ptx::wgmma_wait<kLast ? 0 : 1>();
    ptx::hold_registers(dv);
    release(smem_.dout_empty[dout.stage]);
    float dq[32];
    start_dq(dq, step % 2);
    ptx::mbarrier_wait(address_of(smem_.dq_empty[group_]), step % 2 ^ 1);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(dq);
    if constexpr (!kLast) ptx::hold_registers(s);
    store_dq(dq);
  }

  /// Place of the thread in its warpgroup. Registers are scarcer than instructions: what is
  /// computed from it is computed anew where it is used.
  FOVEAL_DEVICE static int thread() {
    return static_cast<int>(ptx::thread_index_anew() % kGroupThreads);
  }

  /// Starts s = k . q^T of a step's rows.
  FOVEAL_DEVICE void start_scores(Scores& s, const RingPlace<Shape::kQStages>& at) {
    ptx::mbarrier_wait(address_of(smem_.q_full[at.stage]), at.parity);
    const Step& what = smem_.step[at.stage];
    if (what.unseeing) clear_unseeing_rows(smem_.q[at.stage], what.first_row);
    start_product(s, smem_.k, smem_.q[at.stage]);
  }
  /// Starts dp = v . dout^T.
  FOVEAL_DEVICE void start_dp(Scores& dp, const RingPlace<Shape::kDoutStages>& at) {
    ptx::mbarrier_wait(address_of(smem_.dout_full[at.stage]), at.parity);
    const Step& what = smem_.step[q_.stage];
    if (what.unseeing) clear_unseeing_rows(smem_.dout[at.stage], what.first_row);
    start_product(dp, smem_.v, smem_.dout[at.stage]);
  }
  FOVEAL_DEVICE void start_product(Scores& s, const unsigned char* held,
                                   const unsigned char* streamed) const {
    using Product = ptx::WgmmaShared<Element, kTile.m, ptx::FactorsOfB::kAdjacent>;
    const PanelOperand<kK> left(at(held), group_ * kGroupRows);
    const PanelOperand<kQ> right(at(streamed), 0);
    ptx::wgmma_fence();
    Product::start(s, left.columns(0), right.columns(0));
#pragma unroll
    for (int i = 1; i < kTile.d / 16; ++i) Product::add(s, left.columns(i), right.columns(i));
    ptx::wgmma_commit();
  }

  /// Starts sums += weights . streamed.
  FOVEAL_DEVICE void add_weighted(Sums& sums, const Weights& weights,
                                  const unsigned char* streamed) const {
    const PanelOperand<kQ> right(at(streamed), 0);
    ptx::hold_registers(sums);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kWeightSteps; ++i) {
      ptx::Wgmma<Element, kTile.d>::multiply_registers(sums, weights[i], right.rows(i), 1);
    }
    ptx::wgmma_commit();
  }

  /// Starts the consumer's piece of dq = ds . k.
  FOVEAL_DEVICE void start_dq(float (&dq)[32], unsigned buffer) const {
    using Product = ptx::WgmmaShared<Element, 64, ptx::FactorsOfB::kApart>;
    const int row = group_ / kTile.dq_column_pieces() * kGroupRows;
    const int panel = group_ % kTile.dq_column_pieces();
    const PanelOperand<kDs> left(at(smem_.ds[buffer]), row);
    const PanelOperand<kK> right(at(smem_.k) + panel * kK.panel_bytes(), 0);
    ptx::wgmma_fence();
    Product::start(dq, left.columns(0), right.rows(0));
#pragma unroll
    for (int i = 1; i < kTile.n / 16; ++i) Product::add(dq, left.columns(i), right.rows(i));
    ptx::wgmma_commit();
  }

  /// Of rows 2 t and 2 t + 1 of the first eight; those of the next lie 4 pairs further.
  FOVEAL_DEVICE static const float2* pairs(const float* values) {
    return reinterpret_cast<const float2*>(values) + thread() % 4;
  }

  /// Scores become weights.
  FOVEAL_DEVICE void exponentiate(Scores& s, int stage) const {
    if (args_.softcap.is_on()) cap_products(args_.softcap, s);
    const float2* all = pairs(smem_.lse[stage]);
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      const float2 lse = all[4 * j];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[4 * j + e] =
            ptx::exp2_approx(fmaf(s[4 * j + e], args_.scale_log2, e % 2 == 0 ? -lse.x : -lse.y));
      }
    }
  }
  /// dp becomes ds = p (dp - delta).
  FOVEAL_DEVICE void differentiate(const Scores& p, Scores& dp, int stage) const {
    const float2* all = pairs(smem_.delta[stage]);
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      const float2 delta = all[4 * j];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        dp[4 * j + e] = p[4 * j + e] * (dp[4 * j + e] - (e % 2 == 0 ? delta.x : delta.y));
      }
    }
    if (args_.softcap.is_on()) apply_slopes(args_.softcap, p, pairs(smem_.lse[stage]), dp);
  }
  /// What the mask hides becomes 0, whatever it was.
  FOVEAL_DEVICE void hide(Scores& p, Scores& ds, int first_row) const {
    const int key =
        work().tile.first + group_ * kGroupRows + thread() / 32 * 16 + thread() % 32 / 4;
    const int row = first_row + 2 * (thread() % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const algorithm::BasicRange<std::int32_t> seen = work().rows_of_key(key + 8 * half);
      const int min = seen.min - row;
      const int max = seen.max - row;
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (8 * j + e < min || 8 * j + e >= max) {
            p[4 * j + 2 * half + e] = 0.0f;
            ds[4 * j + 2 * half + e] = 0.0f;
          }
        }
      }
    }
  }
  FOVEAL_DEVICE static void pack(Weights& weights, const Scores& values) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      weights[i / 4][i % 4] = ptx::pack_pair<Element>(values[2 * i], values[2 * i + 1]);
    }
  }

  /// ds into shared memory, transposed to rows of q: the consumer's keys are panel `group_`.
  FOVEAL_DEVICE void publish(const Weights& ds, unsigned buffer) const {
    const int lane = thread() % 32;
    const int row = lane / 16 * 8 + lane % 8;
    const int unit = thread() / 32 * 2 + lane / 8 % 2;
    const std::uint32_t to = ptx::shared_address(smem_.ds[buffer]) + group_ * kDs.panel_bytes() +
                             row * kDs.row_bytes() + ((unit ^ (row % 8)) << 4);
#pragma unroll
    for (int i = 0; i < kWeightSteps; ++i) {
      ptx::stmatrix_x4_trans(to + i * 16 * kDs.row_bytes(), ds[i]);
    }
    ptx::fence_proxy_async();
  }

  /// The piece of dq into shared memory.
  FOVEAL_DEVICE void store_dq(const float (&dq)[32]) const {
    const std::uint32_t to = ptx::shared_address(smem_.dq[group_]) + 16 * thread();
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      ptx::store_shared_16(to + j * 16 * kGroupThreads,
                           {__float_as_uint(dq[4 * j]), __float_as_uint(dq[4 * j + 1]),
                            __float_as_uint(dq[4 * j + 2]), __float_as_uint(dq[4 * j + 3])});
    }
  }
  /// And from there to the warp that has it added.
  FOVEAL_DEVICE void hand_over_dq(unsigned step) const {
    ptx::fence_proxy_async();
    __syncwarp();
    release(smem_.dq_full[step % 2][group_]);
  }

  /// Zeroes the consumer's keys that no row sees: 0 times NaN would be NaN in dq.
  FOVEAL_DEVICE void clear_unseen_keys() const {
    const cuda::bwd::HeldTile& tile = work().tile;
    const int first = tile.first + group_ * kGroupRows;
    if (tile.readable.min <= first && first + kGroupRows <= tile.readable.max) return;
    clear_rows<kK>(smem_.k, group_ * kGroupRows, kGroupRows,
                   {tile.readable.min - tile.first, tile.readable.max - tile.first}, thread(),
                   kGroupThreads);
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(kClearBarrier + 1 + group_, kGroupThreads);
  }

  /// Zeroes rows of q or dout that meet no key, all consumers together.
  FOVEAL_DEVICE void clear_unseeing_rows(unsigned char* operand, int first) const {
    const IntRange rows = work().rows;
    clear_rows<kQ>(operand, 0, kTile.m, {rows.min - first, rows.max - first},
                   group_ * kGroupThreads + thread(), Shape::kConsumers * kGroupThreads);
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(kClearBarrier, Shape::kConsumers * kGroupThreads);
  }

  /// Rows [from, from + count) of an operand that `kept` does not contain.
  template <PanelLayout kLayout>
  FOVEAL_DEVICE static void clear_rows(unsigned char* operand, int from, int count,
                                       const IntRange& kept, int first, int threads) {
    constexpr int kUnits = kLayout.row_bytes() / 16;
    const std::uint32_t base = ptx::shared_address(operand);
    for (int unit = first; unit < count * kUnits; unit += threads) {
      const int row = from + unit / kUnits;
      if (kept.contains(row)) continue;
#pragma unroll
      for (int panel = 0; panel < kLayout.panels(); ++panel) {
        ptx::store_shared_16(
            base + panel * kLayout.panel_bytes() + row * kLayout.row_bytes() + unit % kUnits * 16,
            {0, 0, 0, 0});
      }
    }
  }

  const GradientArgs& args_;
  SharedMemory& smem_;
  RingPlace<Shape::kQStages> q_;
  /// Address of an operand in shared memory.
  FOVEAL_DEVICE std::uint32_t at(const void* operand) const {
    return base_ + static_cast<std::uint32_t>(static_cast<const unsigned char*>(operand) -
                                              reinterpret_cast<const unsigned char*>(&smem_));
  }
  /// Learns anew where shared memory begins, so that descriptions of operands are computed in each
  /// step, in uniform registers, and none is kept from before all steps.
  FOVEAL_DEVICE void find_operands() {
    const auto address = static_cast<int>(ptx::shared_address(&smem_));
    base_ = static_cast<std::uint32_t>(uniform(ptx::opaque(address)));
  }

  int group_;
  std::uint32_t base_ = 0;
  unsigned step_ = 0;
  unsigned tile_ = 0;
};

}  // namespace foveal::cuda::hopper::bwd
