// A decode kernel by itself, to learn what bounds one query against a long cache.
//
// The query heads of a KV group are the 8 columns of mma.m16n8k16. Scores are computed transposed,
// S^T[16 keys, 8 heads] = K . Q^T, and so is the output, O^T[d, 8 heads] = V^T . P^T, whose
// accumulator is d * 8 fp32 a warp: 128 registers a thread at d = 512. Both have heads in the same
// columns, so that softmax's maxima and sums never change lanes. Each warp streams its own blocks
// of 16 keys through its own ring of shared memory (cp.async), and no barrier is met before the
// last key. Splits of a head are a cluster, which merges by st.async into its first block, or leave
// their partial results in memory, where the last block to finish merges.
#pragma once

#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>

namespace {

constexpr int kKeys = 16;  // a warp's block of keys: the M of one MMA
constexpr int kHeads = 8;  // query heads that fit: its N
constexpr float kNegInf = -INFINITY;

struct Args {
  const half* q;  // [batch, nheads_q, D]
  const half* k;  // element (b, j, h) at b * batch_stride + j * row_stride + h * head_stride
  const half* v;
  half* out;           // [batch, nheads_q, D]
  float* partials;     // [batch * nheads_k, splits, kHeads, D + 2], global merge only
  unsigned* counters;  // [batch * nheads_k], zero before and after
  int64_t batch_stride, row_stride, head_stride;
  int nheads_k, group, seqlen_k, splits;
  float scale_log2;
};

__device__ uint32_t smem_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ void copy_async_16(uint32_t to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

__device__ void commit() { asm volatile("cp.async.commit_group;"); }

template <int N>
__device__ void wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

__device__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

__device__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

__device__ uint32_t transpose(uint32_t matrix) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(matrix));
  return r;
}

__device__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ float max_over_keys(float x) {
#pragma unroll
  for (int lane = 4; lane < 32; lane *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, lane));
  return x;
}

__device__ float sum_over_keys(float x) {
#pragma unroll
  for (int lane = 4; lane < 32; lane *= 2) x += __shfl_xor_sync(~0u, x, lane);
  return x;
}

__device__ uint32_t pack(float low, float high) {
  const half2 h = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&h);
}

// ---- cluster ----
__device__ uint32_t cluster_rank() {
  uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;"); }
__device__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;"); }
__device__ uint32_t map_to_rank(uint32_t address, uint32_t rank) {
  uint32_t r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
  return r;
}
__device__ void store_async(uint32_t address, float value, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
          address),
      "r"(__float_as_uint(value)), "r"(barrier)
      : "memory");
}
__device__ void barrier_init(uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier));
}
__device__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ void barrier_wait(uint32_t barrier) {
  asm volatile(
      "{ .reg .pred p; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0; "
      "@!p bra again; }" ::"r"(barrier)
      : "memory");
}

enum class Merge { kCluster, kGlobal };

template <int D, int kWarps, int kStages>
struct Config {
  static constexpr int kRowBytes = D * 2;
  static constexpr int kTileBytes = kKeys * kRowBytes;  // of K or V
  static constexpr int kRingBytes = kStages * 2 * kTileBytes;
  static constexpr int kStreamBytes = kWarps * kRingBytes;
  static constexpr int kPartialFloats = kHeads * (D + 2);
  static constexpr int kMergeBytes = kWarps * kPartialFloats * 4;
  static constexpr int kMaxSplits = 16;
  static constexpr int kBodyBytes = kStreamBytes > kMergeBytes ? kStreamBytes : kMergeBytes;
  static int smem_bytes(bool cluster, int group, int splits) {
    return kBodyBytes + 1024 + (cluster ? splits * group * (D + 2) * 4 : 0);
  }
};

/// One warp's running softmax over its keys.
template <int D>
struct WarpState {
  float row_max[2] = {kNegInf, kNegInf};  // heads 2t and 2t + 1, in the log2 domain
  float row_sum[2] = {0, 0};              // this lane's keys only
  float acc[D / 16][4] = {};              // O^T: d rows g and g + 8, heads 2t and 2t + 1
};

template <int D>
__device__ void load_block(uint32_t k_to, uint32_t v_to, const half* k, const half* v,
                           int64_t row_stride, int first, int end) {
  constexpr int kChunks = D / 8;  // of 16 bytes, a row
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = lane; i < kKeys * kChunks; i += 32) {
    const int row = i / kChunks, chunk = i % kChunks;
    const uint32_t to = row * D * 2 + ((chunk ^ (row & 7)) * 16);
    const bool valid = first + row < end;
    const int64_t from = int64_t(first + row) * row_stride + chunk * 8;
    copy_async_16(k_to + to, k + (valid ? from : 0), valid);
  }
#pragma unroll
  for (int i = lane; i < kKeys * kChunks; i += 32) {
    const int row = i / kChunks, chunk = i % kChunks;
    const uint32_t to = row * D * 2 + ((chunk ^ (row & 7)) * 16);
    const bool valid = first + row < end;
    const int64_t from = int64_t(first + row) * row_stride + chunk * 8;
    copy_async_16(v_to + to, v + (valid ? from : 0), valid);
  }
}

template <int D>
__device__ void attend_block(WarpState<D>& state, const uint32_t (&q)[D / 16][2], uint32_t k_tile,
                             uint32_t v_tile, int first, int end, float scale_log2) {
  const int lane = threadIdx.x % 32, g = lane / 4;
  float s[4] = {}, s2[4] = {};
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    const int row = lane % 16, chunk = 2 * step + lane / 16;
    uint32_t a[4];
    load_matrices(a, k_tile + row * D * 2 + ((chunk ^ (row & 7)) * 16));
    if (step % 2 == 0)
      multiply(s, a, q[step][0], q[step][1]);
    else
      multiply(s2, a, q[step][0], q[step][1]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int key = first + g + (i / 2) * 8;
    s[i] = key < end ? (s[i] + s2[i]) * scale_log2 : kNegInf;
  }
  float p[4];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float new_max = fmaxf(state.row_max[h], max_over_keys(fmaxf(s[h], s[h + 2])));
    const float offset = new_max == kNegInf ? 0.0f : new_max;
    const float factor = exp2_approx(state.row_max[h] - offset);
    state.row_max[h] = new_max;
    p[h] = exp2_approx(s[h] - offset);
    p[h + 2] = exp2_approx(s[h + 2] - offset);
    state.row_sum[h] = state.row_sum[h] * factor + p[h] + p[h + 2];
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
      state.acc[m][h] *= factor;
      state.acc[m][h + 2] *= factor;
    }
  }
  const uint32_t b0 = transpose(pack(p[0], p[1])), b1 = transpose(pack(p[2], p[3]));
#pragma unroll
  for (int m = 0; m < D / 16; ++m) {
    const int matrix = lane / 8, row = lane % 8 + (matrix / 2) * 8, chunk = 2 * m + matrix % 2;
    uint32_t a[4];
    load_matrices_transposed(a, v_tile + row * D * 2 + ((chunk ^ (row & 7)) * 16));
    multiply(state.acc[m], a, b0, b1);
  }
}

template <int D, int kWarps, int kStages, Merge kMerge>
__global__ void __launch_bounds__(kWarps * 32, 1) decode(const __grid_constant__ Args args) {
  using C = Config<D, kWarps, kStages>;
  extern __shared__ __align__(1024) uint8_t smem[];
  __shared__ __align__(8) uint64_t barrier;
  __shared__ bool is_last;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int split = blockIdx.x, head_k = blockIdx.y % args.nheads_k, b = blockIdx.y / args.nheads_k;
  const int group = args.group;
  float* received =
      reinterpret_cast<float*>(smem + C::kBodyBytes + 1024);  // [splits][group][D + 2]
  if constexpr (kMerge == Merge::kCluster) {
    if (threadIdx.x == 0) {
      barrier_init(smem_address(&barrier));
      barrier_expect(smem_address(&barrier), args.splits * group * (D + 2) * 4);
      asm volatile("fence.mbarrier_init.release.cluster;");
    }
    __syncwarp();
    cluster_arrive();
  }

  const int blocks = (args.seqlen_k + kKeys - 1) / kKeys;
  const int block_min = int(int64_t(blocks) * split / args.splits);
  const int block_max = int(int64_t(blocks) * (split + 1) / args.splits);
  const int64_t base = b * args.batch_stride + head_k * args.head_stride;
  const uint32_t ring = smem_address(smem) + warp * C::kRingBytes;
  const auto load = [&](int i) {  // the warp's i-th block
    const int block = block_min + i * kWarps + warp;
    if (block < block_max) {
      const uint32_t to = ring + (i % kStages) * 2 * C::kTileBytes;
      load_block<D>(to, to + C::kTileBytes, args.k + base, args.v + base, args.row_stride,
                    block * kKeys, args.seqlen_k);
    }
    commit();
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) load(i);

  uint32_t q[D / 16][2];
  const half* q_row = args.q + (int64_t(b) * args.nheads_k * group + head_k * group + g) * D;
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    q[step][0] = g < group ? *reinterpret_cast<const uint32_t*>(q_row + step * 16 + 2 * t) : 0;
    q[step][1] = g < group ? *reinterpret_cast<const uint32_t*>(q_row + step * 16 + 2 * t + 8) : 0;
  }
  WarpState<D> state;
  for (int i = 0; block_min + i * kWarps + warp < block_max; ++i) {
    load(i + kStages - 1);
    wait_group<kStages - 1>();
    __syncwarp();
    const uint32_t tile = ring + (i % kStages) * 2 * C::kTileBytes;
    attend_block<D>(state, q, tile, tile + C::kTileBytes, (block_min + i * kWarps + warp) * kKeys,
                    args.seqlen_k, args.scale_log2);
    __syncwarp();
  }
  wait_group<0>();

  // The warps' results, [kWarps][group][D + 2], over the rings.
  __syncthreads();
  float* own = reinterpret_cast<float*>(smem);
  const int stride = D + 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = sum_over_keys(state.row_sum[h]);
    const int head = 2 * t + h;
    if (head >= group) continue;
    float* to = own + (warp * group + head) * stride;
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
      to[m * 16 + g] = state.acc[m][h];
      to[m * 16 + g + 8] = state.acc[m][h + 2];
    }
    if (g == 0) {
      to[D] = state.row_max[h];
      to[D + 1] = sum;
    }
  }
  __syncthreads();

  // partials over `count` entries of `from` become one value: (acc, max, sum) of element d.
  const auto merged = [&](const float* from, int count, int step, int head, int d, float& max,
                          float& sum) {
    max = kNegInf;
    for (int w = 0; w < count; ++w) max = fmaxf(max, from[w * step + head * stride + D]);
    const float offset = max == kNegInf ? 0.0f : max;
    float acc = 0;
    sum = 0;
    for (int w = 0; w < count; ++w) {
      const float* part = from + w * step + head * stride;
      const float factor = exp2_approx(part[D] - offset);
      acc += part[d] * factor;
      sum += part[D + 1] * factor;
    }
    return acc;
  };
  half* out = args.out + (int64_t(b) * args.nheads_k * group + head_k * group) * D;
  const auto store = [&](int head, int d, float acc, float sum) {
    out[head * D + d] = __float2half(sum == 0 ? 0.0f : acc / sum);
  };
  if constexpr (kMerge == Merge::kCluster) {
    const uint32_t rank = cluster_rank();
    cluster_wait();
    const uint32_t remote = map_to_rank(smem_address(received), 0) + rank * group * stride * 4;
    const uint32_t remote_barrier = map_to_rank(smem_address(&barrier), 0);
    for (int i = threadIdx.x; i < group * D; i += kWarps * 32) {
      float max, sum;
      const int head = i / D, d = i % D;
      const float acc = merged(own, kWarps, group * stride, head, d, max, sum);
      store_async(remote + (head * stride + d) * 4, acc, remote_barrier);
      if (d == 0) {
        store_async(remote + (head * stride + D) * 4, max, remote_barrier);
        store_async(remote + (head * stride + D + 1) * 4, sum, remote_barrier);
      }
    }
    if (rank != 0) return;
    barrier_wait(smem_address(&barrier));
    for (int i = threadIdx.x; i < group * D; i += kWarps * 32) {
      float max, sum;
      const float acc = merged(received, args.splits, group * stride, i / D, i % D, max, sum);
      store(i / D, i % D, acc, sum);
    }
  } else {
    if (args.splits == 1) {
      for (int i = threadIdx.x; i < group * D; i += kWarps * 32) {
        float max, sum;
        const float acc = merged(own, kWarps, group * stride, i / D, i % D, max, sum);
        store(i / D, i % D, acc, sum);
      }
      return;
    }
    float* slots = args.partials + int64_t(blockIdx.y) * args.splits * C::kPartialFloats;
    float* slot = slots + split * C::kPartialFloats;
    for (int i = threadIdx.x; i < group * D; i += kWarps * 32) {
      float max, sum;
      const int head = i / D, d = i % D;
      slot[head * stride + d] = merged(own, kWarps, group * stride, head, d, max, sum);
      if (d == 0) {
        slot[head * stride + D] = max;
        slot[head * stride + D + 1] = sum;
      }
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      is_last = atomicInc(args.counters + blockIdx.y, args.splits - 1) == unsigned(args.splits - 1);
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    for (int i = threadIdx.x; i < group * D; i += kWarps * 32) {
      float max, sum;
      const float acc = merged(slots, args.splits, C::kPartialFloats, i / D, i % D, max, sum);
      store(i / D, i % D, acc, sum);
    }
  }
}

}  // namespace
