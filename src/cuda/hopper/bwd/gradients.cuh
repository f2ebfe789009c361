// The consumers: each warpgroup sums dk and dv of 64 keys over all rows that meet them, and
// computes its piece of dq. FlashAttention-2 (Dao 2023), Alg. 2, with scores transposed: thread (g,
// t) = (lane / 4, lane % 4) of warp w has keys 16 w + g and 16 w + g + 8, and of every 8 rows 2 t
// and 2 t + 1, so that weights are the left factor of dv, and their gradients that of dk, as they
// are.
#pragma once

#include <cstdint>

#include "cuda/hopper/bwd/args.hpp"
#include "cuda/hopper/bwd/clear.cuh"
#include "cuda/hopper/bwd/scores.cuh"
#include "cuda/hopper/bwd/shared_memory.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/opaque.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/store_matrix.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/ptx/wgmma_shared.cuh"
#include "cuda/tile/swizzled_panels.hpp"

namespace foveal::cuda::hopper::bwd {

/// Named barriers, of all consumers and, with its number added, of each alone.
inline constexpr int kFollowBarrier = 1;
inline constexpr int kGroupBarrier = 2;

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
  using Piece = float[kTile.dq_piece_columns() / 2];  ///< Of dq: 64 rows of a warpgroup.

  FOVEAL_DEVICE Consumer(const GradientArgs& args, SharedMemory& smem, int group)
      : args_(args), smem_(smem), group_(group) {}

  /// Waits for the next tile of keys: false where there is none.
  FOVEAL_DEVICE bool has_work() const {
    ptx::mbarrier_wait(address_of(smem_.work_full[tile_ % 2]), tile_ / 2 % 2);
    return !work().none;
  }
  FOVEAL_DEVICE const BlockWork& work() const { return smem_.work[tile_ % 2]; }
  /// All warps of the consumer come together: some still may be at their scratch memory, where
  /// others will put the next ds.
  FOVEAL_DEVICE void finish_work() {
    ptx::named_barrier_sync(kGroupBarrier + group_, kGroupThreads);
    arrive_once(smem_.work_empty[tile_ % 2]);
    ++tile_;
  }

  /// There is at least one step. Scores of a step are started during the one before; dk of a step
  /// is summed in the next, its dq is started there and leaves in the one after.
  FOVEAL_DEVICE void sum(Sums& dk, Sums& dv) {
    Scores s;
    Weights ds;
    Piece dq;
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) ds[i / 4][i % 4] = 0;  // the first step's dk adds nothing
#pragma unroll
    for (float& x : dq) x = 0.0f;
    first_ = step_;
    before_ = q_.stage;
    parity_ = work().parity;
    ptx::mbarrier_wait(address_of(smem_.k_full), parity_);
    follow();
    clear_unseen_keys();
    find_operands();
    flags_ = await_flags(q_);
    start_scores(s);
    ptx::mbarrier_wait(address_of(smem_.v_full), parity_);
    if constexpr (kTile.overlaps_dk()) await_dout(step_);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(s);
#pragma unroll 1
    for (; !is(Step::kLast); ++step_) take_step<false>(dk, dv, s, ds, dq, step_);
    take_step<true>(dk, dv, s, ds, dq, step_);
    finish_sums(dk, ds, dq, step_);
    ++step_;
    q_ = q_.next();
  }

  /// 2 KiB of shared memory for the calling warp between tiles of keys: of the consumer's panel of
  /// the ds that comes next, when it is free.
  FOVEAL_DEVICE float* scratch() const {
    await_free_ds(step_);
    return reinterpret_cast<float*>(smem_.ds[step_ % 2] + group_ * kDs.panel_bytes()) +
           thread_of_group() / 32 * 512;
  }

 private:
  template <bool kLast>
  FOVEAL_DEVICE void take_step(Sums& dk, Sums& dv, Scores& s, Weights& ds, Piece& dq,
                               unsigned step) {
    const unsigned dout_stage = step % Shape::kDoutStages;
    const bool first = step == first_;
    Scores dp;
    if constexpr (kTile.overlaps_dk()) {
      differentiate_beside_dk<kLast>(dk, s, dp, ds, step);
    } else {
      differentiate_after_dk(dk, s, dp, ds, dq, step);
    }
    if constexpr (kLast) arrive_once(smem_.v_empty);
    arrive_each(smem_.dout_empty[dout_stage]);
    if (!first) arrive_each(smem_.q_empty[before_]);
    // A left operand in registers is written while no product is under way: ptxas would otherwise
    // wait for each by itself.
    Weights p;
    pack<Element>(s, p);
    pack<Element>(dp, ds);
    add_weighted(dv, p, smem_.dout[dout_stage]);
    if (first) lead();
    await_free_ds(step);
    store_ds(ds, step);
    before_ = q_.stage;
    if constexpr (!kLast) {
      q_ = q_.next();
      flags_ = kTile.overlaps_dk() ? next_flags_ : await_flags(q_);
      start_scores(s);
    }
    announce_ds(step);
    ptx::wgmma_wait<kLast ? 0 : 1>();
    ptx::hold_registers(dv);
    arrive_once(smem_.dout_empty[dout_stage]);
    if (!first) await_ds(step - 1);
    start_dq(dq, step - 1);
    // What the next step needs at once is waited for while products are.
    if constexpr (!kLast && kTile.overlaps_dk()) await_dout(step + 1);
    if (kTile.overlaps_dk() && !first) await_dq_place(step - 1);
    find_operands();
    ptx::wgmma_wait<0>();
    ptx::hold_registers(dq);
    if constexpr (!kLast) ptx::hold_registers(s);
    if (!first) {
      arrive_once(smem_.ds_empty[(step - 1) % 2]);
      if constexpr (kTile.overlaps_dk()) store_dq(dq, step - 1);
    }
  }

  /// s becomes weights while dp and dk of the step before are computed, and dp ds while dk is.
  template <bool kLast>
  FOVEAL_DEVICE void differentiate_beside_dk(Sums& dk, Scores& s, Scores& dp, const Weights& ds,
                                             unsigned step) {
    const unsigned stage = step % Shape::kDoutStages;
    start_dp(dp, stage);
    add_weighted(dk, ds, smem_.q[before_]);
    exponentiate(args_, smem_.lse[stage], s);
    hide_scores(s);
    if (step - first_ >= 2) hand_over_dq(step - 2);
    if constexpr (!kLast) next_flags_ = await_flags(q_.next());
    ptx::wgmma_wait<1>();
    ptx::hold_registers(dp);
    differentiate(args_, smem_.lse[stage], smem_.delta[stage], s, dp);
    hide_scores(dp);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(dk);
  }

  /// The same with dp after dk, where there are no registers for both at a time. dq of the step
  /// before the last leaves here, while dk is summed.
  FOVEAL_DEVICE void differentiate_after_dk(Sums& dk, Scores& s, Scores& dp, const Weights& ds,
                                            const Piece& dq, unsigned step) {
    const unsigned stage = step % Shape::kDoutStages;
    add_weighted(dk, ds, smem_.q[before_]);
    if (step - first_ >= 2) store_dq(dq, step - 2);
    await_dout(step);
    exponentiate(args_, smem_.lse[stage], s);
    if (step - first_ >= 2) hand_over_dq(step - 2);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(dk);
    start_dp(dp, stage);
    hide_scores(s);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(dp);
    differentiate(args_, smem_.lse[stage], smem_.delta[stage], s, dp);
    hide_scores(dp);
  }

  /// What the last step leaves: its dk, its dq and that of the step before.
  FOVEAL_DEVICE void finish_sums(Sums& dk, const Weights& ds, Piece& dq, unsigned step) {
    const bool alone = step == first_;
    if constexpr (!kTile.overlaps_dk()) {
      if (!alone) store_dq(dq, step - 1);
    }
    await_ds(step);
    start_dq(dq, step);
    add_weighted(dk, ds, smem_.q[q_.stage]);
    if (!alone) hand_over_dq(step - 1);
    await_dq_place(step);
    ptx::wgmma_wait<1>();
    ptx::hold_registers(dq);
    arrive_once(smem_.k_empty);
    arrive_once(smem_.ds_empty[step % 2]);
    store_dq(dq, step);
    hand_over_dq(step);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(dk);
    arrive_each(smem_.q_empty[q_.stage]);
  }

  /// Waits for a step's rows of q, and learns what is to be known of them.
  FOVEAL_DEVICE std::uint32_t await_flags(const RingPlace<Shape::kQStages>& at) const {
    ptx::mbarrier_wait(address_of(smem_.q_full[at.stage]), at.parity);
    return smem_.step[at.stage].flags;
  }
  /// Of the step. Where registers are few, shared memory is asked each time.
  FOVEAL_DEVICE bool is(Step::Flag flag) const {
    return ((kTile.overlaps_dk() ? flags_ : smem_.step[q_.stage].flags) & flag) != 0;
  }
  /// Waits for a step's rows of dout, lse and delta.
  FOVEAL_DEVICE void await_dout(unsigned step) const {
    const auto at = RingPlace<Shape::kDoutStages>::of_step(step);
    ptx::mbarrier_wait(address_of(smem_.dout_full[at.stage]), at.parity);
  }
  /// Waits until the copy engine has read the consumer's dq of the step before.
  FOVEAL_DEVICE void await_dq_place(unsigned step) const {
    ptx::mbarrier_wait(address_of(smem_.dq_empty[group_]), step % 2 ^ 1);
  }

  /// The second consumer begins a tile of keys half a step after the first, and stays behind: one
  /// has products to wait for while the other computes.
  FOVEAL_DEVICE void follow() const {
    if (group_ != 0) ptx::named_barrier_sync(kFollowBarrier, Shape::kConsumers * kGroupThreads);
  }
  FOVEAL_DEVICE void lead() const {
    if (group_ == 0) ptx::named_barrier_arrive(kFollowBarrier, Shape::kConsumers * kGroupThreads);
  }

  /// Of the step's rows.
  FOVEAL_DEVICE void hide_scores(Scores& values) const {
    if (is(Step::kMasked)) {
      hide(work(), work().tile.first + group_ * kGroupRows, smem_.step[q_.stage].first_row, values);
    }
  }

  /// All consumers' ds of a step are in shared memory; their dq has read it.
  FOVEAL_DEVICE void await_ds(unsigned step) const {
    ptx::mbarrier_wait(address_of(smem_.ds_full[step % 2]), step / 2 % 2);
  }
  FOVEAL_DEVICE void await_free_ds(unsigned step) const {
    ptx::mbarrier_wait(address_of(smem_.ds_empty[step % 2]), step / 2 % 2 ^ 1);
  }

  /// Starts s = k . q^T of a step's rows.
  FOVEAL_DEVICE void start_scores(Scores& s) {
    if (is(Step::kUnseeing)) clear_unseeing_rows(smem_.q[q_.stage]);
    start_product(s, k_, smem_.q[q_.stage]);
  }
  /// Starts dp = v . dout^T.
  FOVEAL_DEVICE void start_dp(Scores& dp, unsigned stage) {
    if (is(Step::kUnseeing)) clear_unseeing_rows(smem_.dout[stage]);
    start_product(dp, v_, smem_.dout[stage]);
  }
  FOVEAL_DEVICE void start_product(Scores& s, std::uint32_t held,
                                   const unsigned char* streamed) const {
    using Product = ptx::WgmmaShared<Element, kTile.m, ptx::FactorsOfB::kAdjacent>;
    const PanelOperand<kK> left(held, group_ * kGroupRows);
    const PanelOperand<kQ> right(at(streamed), 0);
    ptx::wgmma_fence();
    Product::start(s, left.columns(0), right.columns(0));
#pragma unroll
    for (int i = 1; i < kTile.d / 16; ++i) Product::add(s, left.columns(i), right.columns(i));
    ptx::wgmma_commit();
  }

  /// Starts sums += weights . streamed, of 16 rows a step.
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

  /// Starts the consumer's piece of dq = ds . k. Nobody reads what is computed in the first step of
  /// a tile of keys from ds of no step.
  FOVEAL_DEVICE void start_dq(Piece& dq, unsigned step) const {
    using Product = ptx::WgmmaShared<Element, kTile.dq_piece_columns(), ptx::FactorsOfB::kApart>;
    const int row = group_ / kTile.dq_column_pieces() * kGroupRows;
    constexpr int kPanels = kTile.dq_piece_columns() / kK.panel_columns();
    const int panel = group_ % kTile.dq_column_pieces() * kPanels;
    const PanelOperand<kDs> left(at(smem_.ds[step % 2]), row);
    const PanelOperand<kK> right(k_ + panel * kK.panel_bytes(), 0);
    ptx::wgmma_fence();
    Product::start(dq, left.columns(0), right.rows(0));
#pragma unroll
    for (int i = 1; i < kTile.n / 16; ++i) Product::add(dq, left.columns(i), right.rows(i));
    ptx::wgmma_commit();
  }

  /// ds into shared memory, transposed to rows of q: the consumer's keys are panel `group_`.
  FOVEAL_DEVICE void store_ds(const Weights& ds, unsigned step) const {
    const int lane = thread_of_group() % 32;
    const int row = lane / 16 * 8 + lane % 8;
    const int unit = thread_of_group() / 32 * 2 + lane / 8 % 2;
    const std::uint32_t to = ptx::shared_address(smem_.ds[step % 2]) + group_ * kDs.panel_bytes() +
                             row * kDs.row_bytes() + ((unit ^ (row % 8)) << 4);
#pragma unroll
    for (int i = 0; i < kWeightSteps; ++i) {
      ptx::stmatrix_x4_trans(to + i * 16 * kDs.row_bytes(), ds[i]);
    }
  }

  /// And to all consumers' dq.
  FOVEAL_DEVICE void announce_ds(unsigned step) const {
    ptx::fence_proxy_async();
    __syncwarp();
    arrive_once(smem_.ds_full[step % 2]);
  }

  /// The piece of dq into shared memory.
  FOVEAL_DEVICE void store_dq(const Piece& dq, unsigned step) const {
    if constexpr (!kTile.overlaps_dk()) await_dq_place(step);
    const std::uint32_t to = ptx::shared_address(smem_.dq[group_]) + 16 * thread_of_group();
#pragma unroll
    for (int j = 0; j < kTile.dq_piece_columns() / 8; ++j) {
      ptx::store_shared_16(to + j * 16 * kGroupThreads,
                           {__float_as_uint(dq[4 * j]), __float_as_uint(dq[4 * j + 1]),
                            __float_as_uint(dq[4 * j + 2]), __float_as_uint(dq[4 * j + 3])});
    }
  }
  /// And from there to the warp that has it added.
  FOVEAL_DEVICE void hand_over_dq(unsigned step) const {
    ptx::fence_proxy_async();
    __syncwarp();
    arrive_once(smem_.dq_full[step % 2][group_]);
  }

  /// Zeroes the consumer's keys that no row sees: 0 times NaN would be NaN in dq.
  FOVEAL_DEVICE void clear_unseen_keys() const {
    const cuda::bwd::HeldTile& tile = work().tile;
    const int first = tile.first + group_ * kGroupRows;
    if (tile.readable.min <= first && first + kGroupRows <= tile.readable.max) return;
    clear_rows<kK>(smem_.kv[parity_], {group_ * kGroupRows, (group_ + 1) * kGroupRows},
                   {tile.readable.min - tile.first, tile.readable.max - tile.first},
                   kGroupBarrier + group_);
  }

  /// Zeroes rows of q or dout that meet no key: each consumer all of them, as it reads all.
  FOVEAL_DEVICE void clear_unseeing_rows(unsigned char* operand) const {
    const int first = smem_.step[q_.stage].first_row;
    const IntRange rows = work().rows;
    clear_rows<kQ>(operand, {0, kTile.m}, {rows.min - first, rows.max - first},
                   kGroupBarrier + group_);
  }

  /// Address of an operand in shared memory.
  FOVEAL_DEVICE std::uint32_t at(const void* operand) const {
    return base_ + static_cast<std::uint32_t>(static_cast<const unsigned char*>(operand) -
                                              reinterpret_cast<const unsigned char*>(&smem_));
  }
  /// Learns anew where shared memory begins and which of the held tiles is k, so that descriptions
  /// of operands are computed in each step, in uniform registers, and none is kept from before all
  /// steps.
  FOVEAL_DEVICE void find_operands() {
    const auto address = static_cast<int>(ptx::shared_address(&smem_) + parity_);
    const auto both = static_cast<std::uint32_t>(uniform(ptx::opaque(address)));
    base_ = both & ~1u;
    const std::uint32_t swapped = (both & 1u) * kK.bytes();
    k_ = at(smem_.kv[0]) + swapped;
    v_ = at(smem_.kv[1]) - swapped;
  }

  const GradientArgs& args_;
  SharedMemory& smem_;
  RingPlace<Shape::kQStages> q_;
  int group_;
  std::uint32_t flags_ = 0;  ///< Of the step, and of the next.
  std::uint32_t next_flags_ = 0;
  unsigned first_ = 0;        ///< Step of the tile of keys.
  int before_ = 0;            ///< Stage of q of the step before.
  std::uint32_t parity_ = 0;  ///< Of the tile of keys.
  std::uint32_t base_ = 0;
  std::uint32_t k_ = 0;
  std::uint32_t v_ = 0;
  unsigned step_ = 0;
  unsigned tile_ = 0;
};

}  // namespace foveal::cuda::hopper::bwd
