// Times decode designs (decode_probe.cuh) by shape beside reading the same bytes, in one run, with
// cold caches and graph replay; every candidate is first compared with double. Not part of the
// library. On a GPU machine:
//
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90,code=sm_90 decode_probe.cu -o decode_probe
//   ./decode_probe
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "decode_probe.cuh"

#define CHECK(call)                                                                  \
  do {                                                                               \
    const cudaError_t error = (call);                                                \
    if (error != cudaSuccess) {                                                      \
      std::printf("%s: %s (line %d)\n", #call, cudaGetErrorString(error), __LINE__); \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (false)

namespace {

struct Shape {
  int batch, nheads_q, nheads_k, seqlen_k, D;
  double bytes() const { return 2.0 * 2 * batch * nheads_k * double(seqlen_k) * D; }
};

__global__ void fill(half* p, size_t n, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n;
       i += size_t(gridDim.x) * blockDim.x) {
    uint32_t x = uint32_t(i) * 2654435761u ^ seed ^ uint32_t(i >> 32) * 40503u;
    float sum = 0;
    for (int r = 0; r < 4; ++r) {
      x ^= x >> 16;
      x *= 0x7feb352du;
      x ^= x >> 15;
      x *= 0x846ca68bu;
      x ^= x >> 16;
      sum += float(x) * (1.0f / 4294967296.0f) - 0.5f;
      x += 0x9e3779b9u;
    }
    p[i] = __float2half(sum * 1.732f);
  }
}

template <int U>
__global__ void __launch_bounds__(256) read(const uint4* p, size_t n, unsigned* out) {
  const size_t per = (n + gridDim.x - 1) / gridDim.x, lo = per * blockIdx.x, hi = min(n, lo + per);
  unsigned s = 0;
  for (size_t i = lo + threadIdx.x; i < hi; i += size_t(256) * U) {
    uint4 v[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const size_t j = i + size_t(256) * u;
      v[u] = j < hi ? __ldcs(p + j) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int u = 0; u < U; ++u) s ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  if (s == 0x12345679u) out[0] = s;
}

cudaStream_t stream;

/// A graph of `n` launches; the median of rounds is taken turn by turn with others.
struct Timer {
  cudaGraphExec_t graph;
  int n;
  std::vector<float> samples;
  template <class Launch>
  Timer(int count, Launch launch) : n(count) {
    cudaGraph_t g;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < n; ++i) launch(i);
    CHECK(cudaStreamEndCapture(stream, &g));
    CHECK(cudaGraphInstantiate(&graph, g, 0));
    for (int i = 0; i < 2; ++i) CHECK(cudaGraphLaunch(graph, stream));
    CHECK(cudaStreamSynchronize(stream));
  }
  void sample() {
    static cudaEvent_t a = nullptr, b = nullptr;
    if (a == nullptr) {
      CHECK(cudaEventCreate(&a));
      CHECK(cudaEventCreate(&b));
    }
    CHECK(cudaEventRecord(a, stream));
    for (int i = 0; i < 3; ++i) CHECK(cudaGraphLaunch(graph, stream));
    CHECK(cudaEventRecord(b, stream));
    CHECK(cudaEventSynchronize(b));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, a, b));
    samples.push_back(ms * 1e3f / 3 / n);
  }
  float median() {
    std::sort(samples.begin(), samples.end());
    return samples[samples.size() / 2];
  }
};

struct Buffers {
  half *q, *k, *v, *out;
  float* partials;
  unsigned* counters;
  size_t kv_elements;  // of one copy
  int copies;
};

template <int D, int kWarps, int kStages, Merge kMerge>
void launch(const Shape& shape, const Buffers& buffers, int splits, int copy) {
  auto kernel = decode<D, kWarps, kStages, kMerge>;
  using C = Config<D, kWarps, kStages>;
  Args args{};
  args.q = buffers.q;
  args.k = buffers.k + size_t(copy) * buffers.kv_elements;
  args.v = buffers.v + size_t(copy) * buffers.kv_elements;
  args.out = buffers.out;
  args.partials = buffers.partials;
  args.counters = buffers.counters;
  args.head_stride = int64_t(shape.seqlen_k) * D;  // [batch, heads, seqlen, D]
  args.row_stride = D;
  args.batch_stride = args.head_stride * shape.nheads_k;
  args.nheads_k = shape.nheads_k;
  args.group = shape.nheads_q / shape.nheads_k;
  args.seqlen_k = shape.seqlen_k;
  args.splits = splits;
  args.scale_log2 = 1.4426950408889634f / std::sqrt(float(D));
  const bool cluster = kMerge == Merge::kCluster;
  const int smem = C::smem_bytes(cluster, args.group, splits);
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(splits, shape.batch * shape.nheads_k);
  config.blockDim = kWarps * 32;
  config.dynamicSmemBytes = smem;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  if (cluster) {
    if (splits > 8)
      CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {unsigned(splits), 1, 1};
    config.attrs = &attribute;
    config.numAttrs = 1;
  }
  CHECK(cudaLaunchKernelEx(&config, kernel, args));
}

/// One query head in double, from the host's copy of the cache.
double error_of_head(const Shape& shape, const Buffers& buffers, int b, int h) {
  const int D = shape.D, head_k = h / (shape.nheads_q / shape.nheads_k);
  const size_t rows = size_t(shape.seqlen_k) * D;
  const size_t offset = (size_t(b) * shape.nheads_k + head_k) * rows;
  std::vector<half> q(D), k(rows), v(rows), out(D);
  const size_t q_offset = (size_t(b) * shape.nheads_q + h) * D;
  CHECK(cudaMemcpy(q.data(), buffers.q + q_offset, D * 2, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(out.data(), buffers.out + q_offset, D * 2, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(k.data(), buffers.k + offset, rows * 2, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(v.data(), buffers.v + offset, rows * 2, cudaMemcpyDeviceToHost));
  std::vector<double> s(shape.seqlen_k), want(D, 0);
  double max = -1e300, sum = 0;
  for (int j = 0; j < shape.seqlen_k; ++j) {
    double dot = 0;
    for (int d = 0; d < D; ++d)
      dot += double(__half2float(q[d])) * double(__half2float(k[size_t(j) * D + d]));
    s[j] = dot / std::sqrt(double(D));
    max = std::max(max, s[j]);
  }
  for (double& x : s) sum += x = std::exp(x - max);
  for (int j = 0; j < shape.seqlen_k; ++j) {
    for (int d = 0; d < D; ++d) want[d] += s[j] / sum * double(__half2float(v[size_t(j) * D + d]));
  }
  double error = 0, norm = 0;
  for (int d = 0; d < D; ++d) {
    const double e = double(__half2float(out[d])) - want[d];
    error += e * e;
    norm += want[d] * want[d];
  }
  return std::sqrt(error / norm);
}

struct Candidate {
  const char* name;
  int splits;
  Timer timer;
  double error;
};

template <int D, int kWarps, int kStages, Merge kMerge>
void add(std::vector<Candidate>& list, const Shape& shape, const Buffers& buffers, int splits,
         const char* name) {
  CHECK(cudaMemset(buffers.out, 0xff, size_t(shape.batch) * shape.nheads_q * D * 2));
  launch<D, kWarps, kStages, kMerge>(shape, buffers, splits, 0);
  CHECK(cudaStreamSynchronize(stream));
  const double error = std::max(error_of_head(shape, buffers, 0, 0),
                                error_of_head(shape, buffers, shape.batch - 1, shape.nheads_q - 1));
  list.push_back(
      {name, splits,
       Timer(buffers.copies,
             [&](int i) { launch<D, kWarps, kStages, kMerge>(shape, buffers, splits, i); }),
       error});
}

template <int D, class AddAll>
void measure(const Shape& shape, AddAll add_all) {
  Buffers buffers{};
  buffers.kv_elements = size_t(shape.bytes() / 4);
  buffers.copies = std::max(1, int(std::ceil(200e6 / shape.bytes()))) * 2;  // even: see read floor
  CHECK(cudaMalloc(&buffers.q, size_t(shape.batch) * shape.nheads_q * D * 2));
  CHECK(cudaMalloc(&buffers.out, size_t(shape.batch) * shape.nheads_q * D * 2));
  CHECK(cudaMalloc(&buffers.k, buffers.kv_elements * 2 * buffers.copies));
  CHECK(cudaMalloc(&buffers.v, buffers.kv_elements * 2 * buffers.copies));
  CHECK(cudaMalloc(&buffers.partials,
                   size_t(shape.batch) * shape.nheads_k * 64 * kHeads * (D + 2) * 4));
  CHECK(cudaMalloc(&buffers.counters, size_t(shape.batch) * shape.nheads_k * 4));
  CHECK(cudaMemset(buffers.counters, 0, size_t(shape.batch) * shape.nheads_k * 4));
  fill<<<1024, 256>>>(buffers.q, size_t(shape.batch) * shape.nheads_q * D, 1);
  fill<<<1024, 256>>>(buffers.k, buffers.kv_elements * buffers.copies, 2);
  fill<<<1024, 256>>>(buffers.v, buffers.kv_elements * buffers.copies, 3);
  CHECK(cudaDeviceSynchronize());
  std::vector<Candidate> list;
  const size_t words = buffers.kv_elements / 8;
  for (const int mult : {1, 2, 4, 8}) {
    list.push_back(
        {"read floor", mult,
         Timer(buffers.copies,
               [&](int i) {
                 // K and V of a copy lie apart; a block reads from one or the other.
                 read<8><<<132 * mult, 256, 0, stream>>>(
                     reinterpret_cast<uint4*>(i % 2 ? buffers.v : buffers.k) + (i / 2) * 2 * words,
                     std::min(2 * words, (buffers.copies - i / 2 * 2) * words), buffers.counters);
               }),
         0});
  }
  add_all(list, shape, buffers);
  for (int round = 0; round < 9; ++round) {
    for (size_t i = 0; i < list.size(); ++i) list[(i + round) % list.size()].timer.sample();
  }
  float floor_us = 1e30f;
  for (Candidate& c : list) {
    if (c.name[0] == 'r') floor_us = std::min(floor_us, c.timer.median());
  }
  std::printf("b%d %d/%d d%d kv%d: %.1f MB, read floor %.2f us (%.0f GB/s)\n", shape.batch,
              shape.nheads_q, shape.nheads_k, D, shape.seqlen_k, shape.bytes() / 1e6, floor_us,
              shape.bytes() / floor_us / 1e3);
  for (Candidate& c : list) {
    if (c.name[0] == 'r') continue;
    std::printf("  %-28s splits %2d  %8.2f us  %.3fx floor  error %.1e%s\n", c.name, c.splits,
                c.timer.median(), c.timer.median() / floor_us, c.error,
                c.error < 0.005 ? "" : "  WRONG");
  }
  std::fflush(stdout);
  for (Candidate& c : list) CHECK(cudaGraphExecDestroy(c.timer.graph));
  for (void* p : {(void*)buffers.q, (void*)buffers.out, (void*)buffers.k, (void*)buffers.v,
                  (void*)buffers.partials, (void*)buffers.counters}) {
    CHECK(cudaFree(p));
  }
}

template <int D>
void add_splits(std::vector<Candidate>& list, const Shape& shape, const Buffers& buffers) {
  constexpr int kWide = D <= 128 ? 8 : D == 256 ? 4 : 2;
  const int heads = shape.batch * shape.nheads_k;
  for (const int splits : {2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16}) {
    if (heads * splits < 64 || heads * splits > 270) continue;
    add<D, kWide, 3, Merge::kCluster>(list, shape, buffers, splits, "cluster, 192 KB");
    add<D, kWide, 2, Merge::kCluster>(list, shape, buffers, splits, "cluster, 128 KB");
    add<D, kWide / 2, 3, Merge::kCluster>(list, shape, buffers, splits, "cluster, 96 KB");
    add<D, kWide, 2, Merge::kGlobal>(list, shape, buffers, splits, "global, 128 KB");
  }
  if (heads >= 128) {
    add<D, kWide, 3, Merge::kGlobal>(list, shape, buffers, 1, "one split, 192 KB");
    add<D, kWide, 2, Merge::kGlobal>(list, shape, buffers, 1, "one split, 128 KB");
  }
}

template <int D>
void run(const Shape& shape) {
  measure<D>(shape, add_splits<D>);
}

}  // namespace

int main() {
  CHECK(cudaStreamCreate(&stream));
  for (const int seqlen_k : {1024, 4096, 8192}) run<128>({1, 16, 16, seqlen_k, 128});
  run<128>({1, 32, 8, 8192, 128});
  run<128>({1, 32, 8, 131072, 128});
  run<128>({16, 32, 8, 8192, 128});
  run<128>({64, 32, 8, 4096, 128});
  run<256>({16, 16, 8, 8192, 256});
  run<512>({16, 16, 8, 8192, 512});
  run<64>({64, 32, 32, 1024, 64});
  return 0;
}
