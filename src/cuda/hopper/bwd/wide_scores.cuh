// The consumer of scores where heads are wider than 128: a warpgroup that computes scores of its
// block's 64 keys, weights and their gradients. Scores are transposed: thread (g, t) =
// (lane / 4, lane % 4) of warp w has keys 16 w + g and 16 w + g + 8, and of every 8 rows 2 t and 2
// t + 1.
#pragma once

#include <cstdint>

#include "cuda/hopper/backward_softcap.cuh"
#include "cuda/hopper/bwd/args.hpp"
#include "cuda/hopper/bwd/wide_shared_memory.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/cluster_copy.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/special_registers.cuh"
#include "cuda/ptx/store_matrix.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/ptx/wgmma_shared.cuh"

namespace foveal::cuda::hopper::bwd {

/// Named barrier of this consumer.
inline constexpr int kClearingBarrier = 1;

template <class Shape>
class ScoresConsumer {
 public:
  using Element = typename Shape::Element;
  using SharedMemory = typename Shape::SharedMemory;
  static constexpr BackwardTile kTile = Shape::kTile;
  static constexpr PanelLayout kQ = Shape::kQLayout;
  static constexpr PanelLayout kK = Shape::kKLayout;
  static constexpr PanelLayout kPart = Shape::kPartLayout;
  static constexpr PanelLayout kPairs = Shape::kScoresLayout;
  static constexpr int kScores = kTile.m / 2;
  static constexpr int kWeightSteps = kTile.m / 16;
  using Scores = float[kScores];
  using Weights = std::uint32_t[kWeightSteps][4];

  FOVEAL_DEVICE ScoresConsumer(const GradientArgs& args, SharedMemory& smem, int rank)
      : args_(args), smem_(smem), rank_(rank) {}

  /// There is at least one step. Both products of a step are started at the end of the one before.
  FOVEAL_DEVICE void run() {
    const int steps = smem_.work.steps;
    ptx::mbarrier_wait(address_of(smem_.k_full), 0);
    clear_unseen<kK>(smem_.k, rank_);
    Scores s;
    Scores dp;
    start_scores(s);
    ptx::mbarrier_wait(address_of(smem_.v_full), 0);
    start_dp(dp);
    ptx::wgmma_wait<1>();
    ptx::hold_registers(s);
    ptx::mbarrier_wait(address_of(smem_.part_full), 0);
#pragma unroll 1
    for (int part = 0; part < Shape::kParts; ++part) {
      clear_unseen<kPart>(smem_.k_part[part], Shape::block_of_part(part, rank_));
    }
    int step = 0;
#pragma unroll 1
    for (; step + 1 < steps; ++step) take_step<false>(s, dp, step);
    take_step<true>(s, dp, step);
  }

 private:
  template <bool kLast>
  FOVEAL_DEVICE void take_step(Scores& s, Scores& dp, int step) {
    const std::uint32_t parity = step % 2;
    const bool masked = smem_.rows[q_.stage].masked;
    const int first_row = smem_.rows[q_.stage].first_row;
    arrive_each(smem_.q_empty[q_.stage]);
    Weights weights;
    if (args_.softcap.is_on()) cap_products(args_.softcap, s);
    exponentiate(s, dout_.stage);
    if (masked) hide(s, first_row);
    pack(weights, s);
    ptx::mbarrier_wait(address_of(smem_.p_empty), parity ^ 1);
    publish(weights, smem_.p, smem_.p_full);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(dp);
    differentiate(s, dp, dout_.stage);
    if (args_.softcap.is_on()) apply_slopes(args_.softcap, s, pairs(smem_.lse[dout_.stage]), dp);
    arrive_each(smem_.dout_empty[dout_.stage]);
    arrive_in_cluster<Shape::kBlocks>(smem_.dout_empty[dout_.stage]);
    if (masked) hide(dp, first_row);
    pack(weights, dp);
    ptx::mbarrier_wait(address_of(smem_.ds_empty), parity ^ 1);
    ptx::mbarrier_wait(address_of(smem_.other_ds_empty), parity ^ 1);
    publish(weights, smem_.ds[0], smem_.ds_full);
    send_gradients();
    if constexpr (!kLast) {
      q_ = q_.next();
      dout_ = dout_.next();
      start_scores(s);
      start_dp(dp);
    }
    if constexpr (kTile.scores_come_first()) arrive_once(smem_.scores_started);
    if constexpr (!kLast) {
      ptx::wgmma_wait<1>();
      ptx::hold_registers(s);
    }
  }

  /// Place of the thread in its warpgroup.
  FOVEAL_DEVICE static int thread() {
    return static_cast<int>(ptx::thread_index_anew() % kGroupThreads);
  }

  /// Starts s = k . q^T of the rows at q_.
  FOVEAL_DEVICE void start_scores(Scores& s) {
    ptx::mbarrier_wait(address_of(smem_.q_full[q_.stage]), q_.parity);
    const RowsInfo& what = smem_.rows[q_.stage];
    if (what.unseeing) clear_unseeing_rows(smem_.q[q_.stage], what.first_row);
    start_product(s, smem_.k, smem_.q[q_.stage]);
  }
  /// Starts dp = v . dout^T of the rows at dout_.
  FOVEAL_DEVICE void start_dp(Scores& dp) {
    ptx::mbarrier_wait(address_of(smem_.dout_full[dout_.stage]), dout_.parity);
    const RowsInfo& what = smem_.rows[q_.stage];
    if (what.unseeing) clear_unseeing_rows(smem_.dout[dout_.stage], what.first_row);
    start_product(dp, smem_.v, smem_.dout[dout_.stage]);
  }
  FOVEAL_DEVICE static void start_product(Scores& s, const unsigned char* held,
                                          const unsigned char* streamed) {
    using Product = ptx::WgmmaShared<Element, kTile.m, ptx::FactorsOfB::kAdjacent>;
    const PanelOperand<kK> left(place_of(held), 0);
    const PanelOperand<kQ> right(place_of(streamed), 0);
    ptx::wgmma_fence();
    Product::start(s, left.columns(0), right.columns(0));
#pragma unroll
    for (int i = 1; i < kTile.d / 16; ++i) Product::add(s, left.columns(i), right.columns(i));
    ptx::wgmma_commit();
  }

  /// Of rows 2 t and 2 t + 1 of the first eight; those of the next lie 4 pairs further.
  FOVEAL_DEVICE static const float2* pairs(const float* values) {
    return reinterpret_cast<const float2*>(values) + thread() % 4;
  }

  /// Scores become weights.
  FOVEAL_DEVICE void exponentiate(Scores& s, int stage) const {
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
  }
  /// What the mask hides becomes 0, whatever it was.
  FOVEAL_DEVICE void hide(Scores& values, int first_row) const {
    const int key =
        smem_.work.tile.first + rank_ * kGroupRows + thread() / 32 * 16 + thread() % 32 / 4;
    const int row = first_row + 2 * (thread() % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const algorithm::BasicRange<std::int32_t> seen = smem_.work.rows_of_key(key + 8 * half);
      const int min = seen.min - row;
      const int max = seen.max - row;
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (8 * j + e < min || 8 * j + e >= max) values[4 * j + 2 * half + e] = 0.0f;
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

  /// Weights or their gradients into shared memory, for whoever waits at `full`.
  FOVEAL_DEVICE static void publish(const Weights& weights, unsigned char* to,
                                    std::uint64_t& full) {
    const int lane = thread() % 32;
    const int key = thread() / 32 * 16 + lane % 16;
    const std::uint32_t row = ptx::shared_address(to) + key * kPairs.row_bytes();
    const std::uint32_t unit = (lane / 16 ^ (key % 8)) << 4;
#pragma unroll
    for (int i = 0; i < kWeightSteps; ++i) ptx::stmatrix_x4(row + (unit ^ i << 5), weights[i]);
    ptx::fence_proxy_async();
    __syncwarp();
    arrive_once(full);
  }

  /// The warp's gradients, once published, to the other block too. Consumers have seen those that
  /// came from there in the step before: they have released ds.
  FOVEAL_DEVICE void send_gradients() const {
    constexpr std::uint32_t kWarps = kGroupThreads / 32;
    constexpr std::uint32_t kBytes = kPairs.bytes() / kWarps;
    static_assert(kPairs.panels() == 1, "a warp's keys lie together");
    const int warp = thread() / 32;
    if (thread() % 32 != 0) return;
    if (warp == 0) ptx::mbarrier_arrive_expect_tx(address_of(smem_.other_ds_full), kWarps * kBytes);
    const int other = 1 - rank_;
    ptx::bulk_copy_to_block(
        ptx::mapa(address_of(smem_.ds[Shape::kBlocks - 1]), other) + warp * kBytes,
        address_of(smem_.ds[0]) + warp * kBytes, kBytes,
        ptx::mapa(address_of(smem_.other_ds_full), other));
  }

  /// Zeroes keys of block `block` that no row sees: 0 times NaN would be NaN in dq.
  template <PanelLayout kLayout>
  FOVEAL_DEVICE void clear_unseen(unsigned char* keys, int block) const {
    const cuda::bwd::HeldTile& tile = smem_.work.tile;
    const int first = tile.first + block * kGroupRows;
    clear_rows<kLayout>(keys, first, tile.readable);
  }
  /// Zeroes rows of q or dout that meet no key.
  FOVEAL_DEVICE void clear_unseeing_rows(unsigned char* rows, int first) const {
    clear_rows<kQ>(rows, first, smem_.work.rows);
  }
  /// Rows of an operand, the first of them number `first`, that `kept` does not contain.
  template <PanelLayout kLayout>
  FOVEAL_DEVICE static void clear_rows(unsigned char* operand, int first, const IntRange& kept) {
    if (kept.min <= first && first + kLayout.rows <= kept.max) return;
    constexpr int kUnits = kLayout.row_bytes() / 16;
    const std::uint32_t base = ptx::shared_address(operand);
    for (int unit = thread(); unit < kLayout.rows * kUnits; unit += kGroupThreads) {
      const int row = unit / kUnits;
      if (kept.contains(first + row)) continue;
#pragma unroll
      for (int panel = 0; panel < kLayout.panels(); ++panel) {
        ptx::store_shared_16(
            base + panel * kLayout.panel_bytes() + row * kLayout.row_bytes() + unit % kUnits * 16,
            {0, 0, 0, 0});
      }
    }
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(kClearingBarrier, kGroupThreads);
  }

  const GradientArgs& args_;
  SharedMemory& smem_;
  int rank_;
  RingPlace<Shape::kQStages> q_;
  RingPlace<Shape::kDoutStages> dout_;
};

}  // namespace foveal::cuda::hopper::bwd
