// The warpgroup that computes scores (block 0: weights) or their gradients (block 1). Thread (g, t)
// = (lane / 4, lane % 4) of warp w has held rows 16 w + g and 16 w + g + 8, and of every 8 streamed
// rows 2 t and 2 t + 1: the same in both blocks, and the left factor of the sums as it is.
#pragma once

#include <cstdint>

#include "cuda/hopper/backward_softcap.cuh"
#include "cuda/hopper/wide_bwd/shared_memory.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/cluster_store.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/matrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/remote_arrive.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/ptx/wgmma_registers.cuh"
#include "cuda/ptx/wgmma_shared.cuh"

namespace foveal::cuda::hopper::wide_bwd {

/// Named barriers: of the scores, and of each sum.
inline constexpr int kScoresBarrier = 1;
inline constexpr int kClearBarrier = 2;

template <class Shape, int kRole>
class Scores {
 public:
  using Element = typename Shape::Element;
  using SharedMemory = typename Shape::SharedMemory;
  using Tile = float[kTileRows / 2];
  static constexpr bool kKeys = Shape::kSide == Side::kKeys;
  static constexpr int kEarly = early_half(kRole);
  /// Factors of 16 columns of a half, and how many of the held tile are in registers.
  static constexpr int kSteps = Shape::kTile.half() / 16;
  static constexpr int kHeldSteps = Shape::kPlan.held_in_registers * kSteps;

  FOVEAL_DEVICE Scores(const WideArgs& args, SharedMemory& smem)
      : args_(args), smem_(smem), thread_(static_cast<int>(threadIdx.x) % kGroupThreads) {
    if constexpr (!kKeys) {
      const cuda::bwd::HeldTile& tile = smem.work.tile;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile.first + thread_ / 32 * 16 + thread_ % 32 / 4 + 8 * half;
        held_stats_[half] = stat_of<kRole>(tile.head, row, tile.readable.contains(row));
      }
    }
  }

  FOVEAL_DEVICE void compute() {
    const TileWork& work = smem_.work;
    if (thread_ < kTileRows) {
      smem_.seen[thread_] = work.tile.template visible<Shape::kSide>(work.tile.first + thread_);
    }
    ptx::named_barrier_sync(kScoresBarrier, kGroupThreads);
    ptx::mbarrier_wait(address_of(smem_.held_full), 0);
    load_held();
    StreamedTiles tiles(work);
#pragma unroll 1
    for (int step = 0; step < work.steps; ++step, tiles.advance(work)) {
      const float stat = streamed_stat<kRole>(tiles);
      const float lse = kRole == 1 && args_.softcap.is_on() ? streamed_stat<0>(tiles) : 0.0f;
      if (kRole == 1 && thread_ == 0) {
        ptx::mbarrier_arrive_expect_tx(address_of(smem_.weights_in_full), sizeof(smem_.weights_in));
      }
      Tile s;
      multiply(s, step);
      if constexpr (kKeys) {
        if (thread_ < kTileRows) {
          smem_.stats[step % 2][thread_] = stat;
          if constexpr (kRole == 1) smem_.lse[step % 2][thread_] = lse;
        }
        ptx::named_barrier_sync(kScoresBarrier, kGroupThreads);
      }
      const bool masked = work.blocks.needs_mask(tiles.block);
      if constexpr (kRole == 0) {
        exponentiate(s, step % 2);
        if (masked) hide(s, tiles.first());
        pass_weights(s, step % 2);
      } else {
        subtract_delta(s, step % 2);
        pass_gradients(s, masked, tiles.first(), step % 2);
      }
    }
  }

 private:
  /// Of the pair's other block.
  template <class T>
  FOVEAL_DEVICE std::uint32_t peer_address(const T& variable) const {
    return ptx::mapa(address_of(variable), kRole ^ 1);
  }
  /// Stat 0 is lse in log2 units, 1 is delta - dlse. A row that meets nothing has lse +inf: its
  /// weights are 0.
  template <int kStat>
  FOVEAL_DEVICE float stat_of(int head, int row, bool readable) const {
    const auto& backward = args_.backward;
    const auto& sequence = smem_.work.tile.sequence;
    if (!readable) return kStat == 0 ? __int_as_float(0x7f800000) : 0.0f;
    const std::int64_t index =
        head * backward.total_q + backward.row_index(sequence.b, sequence.q_begin) + row;
    return reinterpret_cast<const float*>(backward.stats + index)[kStat];
  }
  template <int kStat>
  FOVEAL_DEVICE float streamed_stat(const StreamedTiles& tiles) const {
    if (!kKeys || thread_ >= kTileRows) return 0.0f;
    const int row = tiles.first() + thread_;
    return stat_of<kStat>(tiles.head, row, smem_.work.readable.contains(row));
  }
  /// Of rows 2 t and 2 t + 1 of the j-th eight streamed ones.
  FOVEAL_DEVICE const float2* pairs_of(const float (&values)[kTileRows], int j) const {
    return reinterpret_cast<const float2*>(values) + 4 * j + thread_ % 4;
  }
  FOVEAL_DEVICE float2 pair_of(const float (&values)[kTileRows], int j) const {
    return *pairs_of(values, j);
  }

  /// Takes what the plan holds in registers out of the places of streamed halves.
  FOVEAL_DEVICE void load_held() {
    constexpr PanelLayout kHalf = Shape::kHalf;
    const int lane = thread_ % 32;
    const int row = thread_ / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < kHeldSteps; ++i) {
      const unsigned char* half = i < kSteps ? smem_.held_own() : smem_.held_other();
      const int unit = i % 4 * 2 + lane / 16;
      ptx::ldmatrix_x4(held_[i], ptx::shared_address(half) + i % kSteps / 4 * kHalf.panel_bytes() +
                                     row * kHalf.row_bytes() + ((unit ^ (row % 8)) << 4));
    }
#pragma unroll
    for (int i = 0; i < Shape::kPlan.held_in_registers; ++i) {
      arrive(smem_.streamed_empty[Shape::kStages - 1 - i]);
    }
  }

  /// s = held . streamed^T, a half of the columns after the other.
  FOVEAL_DEVICE void multiply(Tile& s, int step) {
    const HalfPlace own = Shape::halves().place(kOwnHalf, step);
    const HalfPlace early = Shape::halves().place(kEarly, step);
    ptx::mbarrier_wait(address_of(smem_.streamed_full[own.stage]), own.parity);
    multiply_half<0>(s, smem_.held_own(), smem_.streamed(own.stage));
    ptx::mbarrier_wait(address_of(smem_.streamed_full[early.stage]), early.parity);
    multiply_half<kSteps>(s, smem_.held_other(), smem_.streamed(early.stage));
    ptx::wgmma_wait<1>();
    arrive_after_products(smem_.streamed_empty[own.stage],
                          Shape::halves().score_arrivals(kRole, kOwnHalf));
    ptx::wgmma_wait<0>();
    ptx::hold_registers(s);
    arrive_after_products(smem_.streamed_empty[early.stage],
                          Shape::halves().score_arrivals(kRole, kEarly));
  }
  /// Products kFirst to kFirst + kSteps - 1.
  template <int kFirst>
  FOVEAL_DEVICE void multiply_half(Tile& s, const unsigned char* held,
                                   const unsigned char* streamed) {
    using Product = ptx::WgmmaShared<Element, kTileRows, ptx::FactorsOfB::kAdjacent>;
    using ProductOfHeld = ptx::WgmmaRegisters<Element>;
    const PanelOperand<Shape::kHalf> left(ptx::shared_address(held), 0);
    const PanelOperand<Shape::kHalf> right(ptx::shared_address(streamed), 0);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if constexpr (kFirst < kHeldSteps) {
        if (kFirst + i == 0) {
          ProductOfHeld::start(s, held_[kFirst + i], right.columns(i));
        } else {
          ProductOfHeld::add(s, held_[kFirst + i], right.columns(i));
        }
      } else if (kFirst + i == 0) {
        Product::start(s, left.columns(i), right.columns(i));
      } else {
        Product::add(s, left.columns(i), right.columns(i));
      }
    }
    ptx::wgmma_commit();
  }

  /// Scores become weights. Where rows are held these are needed for gradients alone: weights of
  /// capped scores are multiplied by the cap's slope at once.
  FOVEAL_DEVICE void exponentiate(Tile& s, int buffer) const {
    if (args_.softcap.is_on()) {
      if constexpr (!kKeys) {
        exponentiate_with_slopes(s);
        return;
      }
      cap_products(args_.softcap, s);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 lse = kKeys ? pair_of(smem_.stats[buffer], j) : float2{};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float of_row = kKeys ? (e % 2 == 0 ? lse.x : lse.y) : held_stats_[e / 2];
        s[4 * j + e] = ptx::exp2_approx(fmaf(s[4 * j + e], args_.scale_log2, -of_row));
      }
    }
  }
  FOVEAL_DEVICE void exponentiate_with_slopes(Tile& s) const {
    const Softcap& softcap = args_.softcap;
#pragma unroll
    for (int i = 0; i < kTileRows / 2; ++i) {
      const float ratio = exact_tanh(s[i] * softcap.factor);
      const float p = ptx::exp2_approx(fmaf(softcap.cap_log2, ratio, -held_stats_[i % 4 / 2]));
      s[i] = p * fmaf(-ratio, ratio, 1.0f);
    }
  }
  FOVEAL_DEVICE void subtract_delta(Tile& dp, int buffer) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 delta = kKeys ? pair_of(smem_.stats[buffer], j) : float2{};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        dp[4 * j + e] -= kKeys ? (e % 2 == 0 ? delta.x : delta.y) : held_stats_[e / 2];
      }
    }
  }
  /// What the mask hides becomes 0, whatever it was.
  FOVEAL_DEVICE void hide(Tile& values, int first) const {
    const int column = first + 2 * (thread_ % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const IntRange seen = smem_.seen[thread_ / 32 * 16 + thread_ % 32 / 4 + 8 * half];
      const int min = seen.min - column;
      const int max = seen.max - column;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (8 * j + e < min || 8 * j + e >= max) values[4 * j + 2 * half + e] = 0.0f;
        }
      }
    }
  }

  /// Block 0: to block 1 in fp32, to the sum of weights rounded.
  FOVEAL_DEVICE void pass_weights(const Tile& p, int round) const {
    const std::uint32_t full = peer_address(smem_.weights_in_full);
    const std::uint32_t to = peer_address(smem_.weights_in[0][thread_]);
    ptx::mbarrier_wait(address_of(smem_.weights_in_empty), round ^ 1);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      ptx::st_async_16(to + j * sizeof(smem_.weights_in[0]),
                       {p[4 * j], p[4 * j + 1], p[4 * j + 2], p[4 * j + 3]}, full);
    }
    if constexpr (kKeys) {
      ptx::mbarrier_wait(address_of(smem_.weights_empty), round ^ 1);
#pragma unroll
      for (int i = 0; i < 4; ++i) smem_.weights[i][thread_] = fragment(&p[8 * i]);
      arrive(smem_.weights_full);
    }
  }

  /// Block 1: ds = p (dp - delta), times the cap's slope where that is not in p, to both blocks;
  /// weights, rounded, to their sum.
  FOVEAL_DEVICE void pass_gradients(Tile& ds, bool masked, int first, int round) const {
    ptx::mbarrier_wait(address_of(smem_.weights_in_full), round);
    if (kKeys) ptx::mbarrier_wait(address_of(smem_.weights_empty), round ^ 1);
    std::uint32_t loaded = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float p[8];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float4 four = smem_.weights_in[2 * i + j][thread_];
        p[4 * j] = four.x;
        p[4 * j + 1] = four.y;
        p[4 * j + 2] = four.z;
        p[4 * j + 3] = four.w;
        loaded ^= __float_as_uint(four.x);
      }
      if constexpr (kKeys) smem_.weights[i][thread_] = fragment(p);
#pragma unroll
      for (int e = 0; e < 8; ++e) ds[8 * i + e] *= p[e];
      if constexpr (kKeys) {
        if (args_.softcap.is_on()) {
          apply_slopes(args_.softcap, p, pairs_of(smem_.lse[round], 2 * i), &ds[8 * i]);
        }
      }
    }
    const std::uint32_t empty = ptx::after_loads(peer_address(smem_.weights_in_empty), loaded);
    if (thread_ % kLanes == 0) ptx::mbarrier_arrive_remote(empty);
    if (kKeys) arrive(smem_.weights_full);
    if (masked) hide(ds, first);
    const std::uint32_t full = peer_address(smem_.gradients_full);
    const std::uint32_t to = peer_address(smem_.gradients[0][thread_]);
    ptx::mbarrier_wait(address_of(smem_.gradients_empty), round ^ 1);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 four = fragment(&ds[8 * i]);
      smem_.gradients[i][thread_] = four;
      ptx::st_async_16(to + i * sizeof(smem_.gradients[0]),
                       {__uint_as_float(four.x), __uint_as_float(four.y), __uint_as_float(four.z),
                        __uint_as_float(four.w)},
                       full);
    }
    arrive(smem_.gradients_full);
  }

  /// The thread's part of 16 streamed rows as the left factor of a product.
  FOVEAL_DEVICE static uint4 fragment(const float* values) {
    return {ptx::pack_pair<Element>(values[0], values[1]),
            ptx::pack_pair<Element>(values[2], values[3]),
            ptx::pack_pair<Element>(values[4], values[5]),
            ptx::pack_pair<Element>(values[6], values[7])};
  }

  const WideArgs& args_;
  SharedMemory& smem_;
  int thread_;
  float held_stats_[2]{};  ///< Where rows are held.
  std::uint32_t held_[kHeldSteps == 0 ? 1 : kHeldSteps][4];
};

}  // namespace foveal::cuda::hopper::wide_bwd
