// The consumers that sum where heads are wider than 128: a warpgroup has dv of its block's 64 keys
// in registers, another dk. Each also computes its share of dq's columns.
#pragma once

#include <cstdint>

#include "cuda/hopper/bwd/wide_shared_memory.cuh"
#include "cuda/ptx/shared_memory.cuh"
#include "cuda/ptx/special_registers.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/ptx/wgmma_shared_wide.cuh"

namespace foveal::cuda::hopper::bwd {

enum class Sum { kDv, kDk };

template <class Shape, Sum kSum>
class SumConsumer {
 public:
  using Element = typename Shape::Element;
  using SharedMemory = typename Shape::SharedMemory;
  static constexpr BackwardTile kTile = Shape::kTile;
  static constexpr PanelLayout kQ = Shape::kQLayout;
  static constexpr PanelLayout kPart = Shape::kPartLayout;
  static constexpr PanelLayout kPairs = Shape::kScoresLayout;
  /// The consumer's columns of the block's share of dq, and its number among those that have any.
  static constexpr int kDqFirst = kSum == Sum::kDv ? 0 : kTile.dv_dq_columns();
  static constexpr int kDqColumns =
      kSum == Sum::kDv ? kTile.dv_dq_columns() : kTile.dk_dq_columns();
  static constexpr int kDqConsumer = kSum == Sum::kDv ? 0 : 1;
  /// Columns of a product. The compiler takes none whose sums are more registers than a thread
  /// begins with.
  static constexpr int kColumns = kTile.d > 192 ? kTile.d / 2 : kTile.d;
  using Sums = float[kTile.d / 2];

  FOVEAL_DEVICE SumConsumer(SharedMemory& smem, int rank) : smem_(smem), rank_(rank) {}

  FOVEAL_DEVICE void run(Sums& sums) {
    const int steps = smem_.work.steps;
    if (kDqColumns > 0 && steps > 0) ptx::mbarrier_wait(address_of(smem_.part_full), 0);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      if constexpr (kSum == Sum::kDv) {
        add_dv(sums, step % 2);
      } else {
        add_dk(sums, step % 2);
      }
    }
  }

 private:
  FOVEAL_DEVICE void add_dv(Sums& dv, std::uint32_t parity) {
    ptx::mbarrier_wait(address_of(smem_.dout_full[dout_.stage]), dout_.parity);
    ptx::mbarrier_wait(address_of(smem_.p_full), parity);
    start_sums(dv, smem_.p, smem_.dout[dout_.stage]);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(dv);
    arrive_once(smem_.p_empty);
    arrive_in_cluster<Shape::kBlocks>(smem_.dout_empty[dout_.stage]);
    dout_ = dout_.next();
    ptx::mbarrier_wait(address_of(smem_.ds_full), parity);
    ptx::mbarrier_wait(address_of(smem_.other_ds_full), parity);
    if constexpr (kTile.scores_come_first()) {
      ptx::mbarrier_wait(address_of(smem_.scores_started), parity);
    }
    float dq[kDqColumns / 2];
    start_dq(dq);
    ptx::wgmma_wait<0>();
    ptx::hold_registers(dq);
    release_gradients();
    store_dq(dq);
  }

  FOVEAL_DEVICE void add_dk(Sums& dk, std::uint32_t parity) {
    ptx::mbarrier_wait(address_of(smem_.q_full[q_.stage]), q_.parity);
    ptx::mbarrier_wait(address_of(smem_.ds_full), parity);
    start_sums(dk, smem_.ds[0], smem_.q[q_.stage]);
    if constexpr (kDqColumns > 0) {
      ptx::mbarrier_wait(address_of(smem_.other_ds_full), parity);
      float dq[kDqColumns / 2];
      start_dq(dq);
      ptx::wgmma_wait<1>();
      ptx::hold_registers(dk);
      arrive_in_cluster<Shape::kBlocks>(smem_.q_empty[q_.stage]);
      ptx::wgmma_wait<0>();
      ptx::hold_registers(dq);
      release_gradients();
      store_dq(dq);
    } else {
      ptx::wgmma_wait<0>();
      ptx::hold_registers(dk);
      arrive_in_cluster<Shape::kBlocks>(smem_.q_empty[q_.stage]);
      arrive_once(smem_.ds_empty);
    }
    q_ = q_.next();
  }

  /// Both blocks' gradients of scores have been read: they may be overwritten here and there.
  FOVEAL_DEVICE void release_gradients() const {
    arrive_once(smem_.ds_empty);
    if (threadIdx.x % 32 == 0) {
      ptx::mbarrier_arrive_remote(ptx::mapa(address_of(smem_.other_ds_empty), 1 - rank_));
    }
  }

  /// Starts sums += weights . rows.
  FOVEAL_DEVICE static void start_sums(Sums& sums, const unsigned char* weights,
                                       const unsigned char* rows) {
    using Product = ptx::WgmmaSharedWide<Element, kColumns, ptx::FactorsOfA::kAdjacent>;
    const PanelOperand<kPairs> left(place_of(weights), 0);
    const PanelOperand<kQ> right(place_of(rows), 0);
    ptx::hold_registers(sums);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kTile.m / 16; ++i) {
#pragma unroll
      for (int column = 0; column < kTile.d; column += kColumns) {
        auto& part = reinterpret_cast<float(&)[kColumns / 2]>(sums[column / 2]);
        Product::add(part, left.columns(i), right.rows(i, column / kQ.panel_columns()));
      }
    }
    ptx::wgmma_commit();
  }

  /// Starts dq = ds . k: the consumer's columns, over the keys of both blocks.
  template <int kSums>
  FOVEAL_DEVICE void start_dq(float (&dq)[kSums]) const {
    using Product = ptx::WgmmaSharedWide<Element, 2 * kSums, ptx::FactorsOfA::kApart>;
    constexpr int kPanel = kDqFirst / kPart.panel_columns();
    ptx::wgmma_fence();
#pragma unroll
    for (int block = 0; block < Shape::kBlocks; ++block) {
      const PanelOperand<kPairs> left(place_of(smem_.ds[block]), 0);
      const PanelOperand<kPart> right(part_address(block), 0);
#pragma unroll
      for (int i = 0; i < kGroupRows / 16; ++i) {
        if (block == 0 && i == 0) {
          Product::start(dq, left.rows(0), right.rows(0, kPanel));
        } else {
          Product::add(dq, left.rows(i), right.rows(i, kPanel));
        }
      }
    }
    ptx::wgmma_commit();
  }
  /// The block's columns of dq of its own keys (0) or of the other block's.
  FOVEAL_DEVICE std::uint32_t part_address(int block) const {
    if constexpr (Shape::kParts < Shape::kBlocks) {
      if (block > 0) return place_of(smem_.k_part[block - 1]);
      return place_of(smem_.k) + rank_ * kPart.bytes();
    } else {
      return place_of(smem_.k_part[block]);
    }
  }

  /// dq into shared memory, piece by piece, and from there to the warp that has it added.
  template <int kSums>
  FOVEAL_DEVICE void store_dq(const float (&dq)[kSums]) {
    constexpr int kPieceSums = kPieceColumns / 2;
#pragma unroll
    for (int piece = 0; piece < kSums / kPieceSums; ++piece) {
      ptx::mbarrier_wait(address_of(smem_.dq_empty[kDqConsumer][dq_.stage]), dq_.parity ^ 1);
      const std::uint32_t to = ptx::shared_address(smem_.dq[kDqConsumer][dq_.stage]) +
                               16 * (ptx::thread_index_anew() % kGroupThreads);
#pragma unroll
      for (int j = 0; j < kPieceSums / 4; ++j) {
        const float* four = &dq[kPieceSums * piece + 4 * j];
        ptx::store_shared_16(to + j * 16 * kGroupThreads,
                             {__float_as_uint(four[0]), __float_as_uint(four[1]),
                              __float_as_uint(four[2]), __float_as_uint(four[3])});
      }
      ptx::fence_proxy_async();
      __syncwarp();
      arrive_once(smem_.dq_full[kDqConsumer][dq_.stage]);
      dq_ = dq_.next();
    }
  }

  SharedMemory& smem_;
  int rank_;
  RingPlace<Shape::kQStages> q_;
  RingPlace<Shape::kDoutStages> dout_;
  RingPlace<Shape::kDqBuffers> dq_;
};

}  // namespace foveal::cuda::hopper::bwd
