// What the two blocks of a cluster tell each other, warp to warp and lane to lane: a warp's partner
// has the same rows, the other keys and the other columns of out.
#pragma once

#include <cstdint>

#include "cuda/hopper/wide_fwd/shared_memory.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/cluster_store.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/remote_arrive.cuh"
#include "cuda/ptx/special_registers.cuh"

namespace foveal::cuda::hopper::wide_fwd {

/// All lanes of a consumer warp call each function alike. The partner may be a whole block of keys
/// behind: what is sent overwrites what was sent before only when that is known to have been read.
/// Maxima may once the partner's last weights have come, which it sends after reading the maxima.
template <class Shape>
class Partner {
 public:
  FOVEAL_DEVICE Partner(typename Shape::SharedMemory& smem, int warp) : smem_(smem), warp_(warp) {
    const std::uint32_t own = address_of(smem);
    peer_ = ptx::mapa(own, ptx::cluster_ctarank() ^ 1) - own;
  }

  FOVEAL_DEVICE void send_maxima(float2 maxima) const {
    ptx::st_async_8(of_peer(smem_.mail[warp_].maxima[lane()]), maxima,
                    of_peer(smem_.maxima_here[warp_]));
  }
  FOVEAL_DEVICE float2 receive_maxima() {
    await(smem_.maxima_here[warp_], sizeof(Mail::maxima), maxima_parity_);
    return smem_.mail[warp_].maxima[lane()];
  }

  FOVEAL_DEVICE void send_weights(const std::uint32_t (&p)[4][4]) {
    ptx::mbarrier_wait(address_of(smem_.weights_taken[warp_]), sent_parity_ ^ 1);
    sent_parity_ ^= 1;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      ptx::st_async_16(of_peer(smem_.mail[warp_].weights[step][lane()]),
                       {__uint_as_float(p[step][0]), __uint_as_float(p[step][1]),
                        __uint_as_float(p[step][2]), __uint_as_float(p[step][3])},
                       of_peer(smem_.weights_here[warp_]));
    }
  }
  FOVEAL_DEVICE void await_weights() {
    await(smem_.weights_here[warp_], sizeof(Mail::weights), taken_parity_);
  }
  /// Of those that have come.
  FOVEAL_DEVICE void take_weights(std::uint32_t (&p)[4][4]) {
    std::uint32_t loaded = 0;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint4 w = smem_.mail[warp_].weights[step][lane()];
      loaded ^= w.x;
      p[step][0] = w.x;
      p[step][1] = w.y;
      p[step][2] = w.z;
      p[step][3] = w.w;
    }
    release_weights(loaded);
  }

  /// Sums travel as weights do: a warp has no weights under way at the end of a tile.
  FOVEAL_DEVICE float2 exchange_sums(float2 sums) {
    ptx::mbarrier_wait(address_of(smem_.weights_taken[warp_]), sent_parity_ ^ 1);
    sent_parity_ ^= 1;
    auto& place = reinterpret_cast<float2(&)[32]>(smem_.mail[warp_].weights);
    ptx::st_async_8(of_peer(place[lane()]), sums, of_peer(smem_.weights_here[warp_]));
    await(smem_.weights_here[warp_], sizeof place, taken_parity_);
    const float2 got = place[lane()];
    release_weights(__float_as_uint(got.x));
    return got;
  }

 private:
  FOVEAL_DEVICE static unsigned lane() { return ptx::thread_index_anew() % 32; }

  template <class T>
  FOVEAL_DEVICE std::uint32_t of_peer(const T& variable) const {
    return peer_ + address_of(variable);
  }

  FOVEAL_DEVICE static void await(std::uint64_t& here, std::uint32_t bytes, std::uint32_t& parity) {
    if (lane() == 0) ptx::mbarrier_arrive_expect_tx(address_of(here), bytes);
    ptx::mbarrier_wait(address_of(here), parity);
    parity ^= 1;
  }

  /// `loaded`: of each of the lane's loads.
  FOVEAL_DEVICE void release_weights(std::uint32_t loaded) {
    const std::uint32_t taken = ptx::after_loads(of_peer(smem_.weights_taken[warp_]), loaded);
    if (lane() == 0) ptx::mbarrier_arrive_remote(taken);
  }

  typename Shape::SharedMemory& smem_;
  int warp_;
  std::uint32_t peer_;  ///< What the partner's addresses exceed ours by.
  std::uint32_t maxima_parity_ = 0;
  std::uint32_t sent_parity_ = 0;
  std::uint32_t taken_parity_ = 0;
};

}  // namespace foveal::cuda::hopper::wide_fwd
