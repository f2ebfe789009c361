// Times every configuration of cuda_decode on the decode shapes that people run, beside a kernel
// that only reads: what the planner's choices in src/cuda/portable/decode/config.cpp come from.
//
//   build/cuda/bin/foveal_decode_sweep [--planned] [shape]      (on a machine with a GPU)
//
// Cold L2: launches rotate over buffers of 200 MB and more in one graph. Candidates are timed turn
// by turn, the median of 9 rounds is printed in microseconds and over that of the best reader.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <foveal/device.hpp>
#include <foveal/problem.hpp>

#include "bench/read_floor.hpp"
#include "cuda/portable/decode/config.hpp"
#include "cuda/portable/decode/direct_args.hpp"
#include "cuda/portable/decode/ring_fit.hpp"
#include "plan/kernel_table.hpp"
#include "problem/geometry.hpp"

namespace {

using foveal::AttentionProblem;
using foveal::AttentionTensors;
using foveal::DType;
using foveal::Status;
using foveal::TensorSpec;
using foveal::planner::KernelConfig;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

/// Where the lengths of the sequences are, and what they are.
enum class Lengths {
  kHost,    ///< The host knows them: all of the cache.
  kFull,    ///< On the device: all of the cache.
  kNear,    ///< On the device: evenly spread from three quarters to all of the cache.
  kSpread,  ///< On the device: evenly spread up to all of the cache.
};

struct Shape {
  const char* name;
  std::int64_t batch, nheads_q, nheads_k, seqlen_k, headdim;
  std::int64_t page_size = 0;  ///< 0: contiguous, [batch, heads, seqlen, dim].
  Lengths lengths = Lengths::kHost;

  [[nodiscard]] std::int64_t length(std::int64_t sequence) const {
    // Seven shares no factor with the batches, so that neighbours have lengths far apart.
    const std::int64_t spread = seqlen_k * (1 + sequence * 7 % batch) / batch;
    switch (lengths) {
      case Lengths::kSpread: return spread;
      case Lengths::kNear: return (3 * seqlen_k + spread) / 4;
      default: return seqlen_k;
    }
  }
  [[nodiscard]] std::int64_t row_bytes() const { return 2 * 2 * nheads_k * headdim; }
  /// K and V of the whole cache, and of the keys that a launch reads.
  [[nodiscard]] std::int64_t cache_bytes() const { return batch * seqlen_k * row_bytes(); }
  [[nodiscard]] std::int64_t read_bytes() const {
    std::int64_t keys = 0;
    for (std::int64_t i = 0; i < batch; ++i) keys += length(i);
    return keys * row_bytes();
  }
};

constexpr Shape kShapes[] = {
    {"b1 16/16 kv1024", 1, 16, 16, 1024, 128},
    {"b1 16/16 kv4096", 1, 16, 16, 4096, 128},
    {"b1 16/16 kv8192", 1, 16, 16, 8192, 128},
    {"b1 16/16 kv4096 page 64", 1, 16, 16, 4096, 128, 64},
    {"b1 32/8 kv8192", 1, 32, 8, 8192, 128},
    {"b1 32/8 kv131072", 1, 32, 8, 131072, 128},
    {"b16 32/8 kv8192", 16, 32, 8, 8192, 128},
    {"b64 32/8 kv4096", 64, 32, 8, 4096, 128},
    {"b64 32/8 kv4096 page 64", 64, 32, 8, 4096, 128, 64},
    {"b64 32/8 kv4096 page 16", 64, 32, 8, 4096, 128, 16},
    {"b64 32/8 kv4096 page 256", 64, 32, 8, 4096, 128, 256},
    {"b16 32/8 kv8192 used", 16, 32, 8, 8192, 128, 0, Lengths::kFull},
    {"b16 32/8 kv8192 page 64 used", 16, 32, 8, 8192, 128, 64, Lengths::kFull},
    {"b16 32/8 kv8192 page 16 used", 16, 32, 8, 8192, 128, 16, Lengths::kFull},
    {"b16 32/8 kv8192 page 256 used", 16, 32, 8, 8192, 128, 256, Lengths::kFull},
    {"b64 32/8 kv4096 page 64 used", 64, 32, 8, 4096, 128, 64, Lengths::kFull},
    {"b4 32/8 kv2048 used", 4, 32, 8, 2048, 128, 0, Lengths::kFull},
    {"b4 32/8 kv2048 spread", 4, 32, 8, 2048, 128, 0, Lengths::kSpread},
    {"b4 32/8 kv8192 used", 4, 32, 8, 8192, 128, 0, Lengths::kFull},
    {"b4 32/8 kv8192 spread", 4, 32, 8, 8192, 128, 0, Lengths::kSpread},
    {"b4 16/8 d256 kv2048 used", 4, 16, 8, 2048, 256, 0, Lengths::kFull},
    {"b4 16/8 d256 kv2048 spread", 4, 16, 8, 2048, 256, 0, Lengths::kSpread},
    {"b16 16/8 d256 kv4096 spread", 16, 16, 8, 4096, 256, 0, Lengths::kSpread},
    {"b16 32/8 d64 kv8192 spread", 16, 32, 8, 8192, 64, 0, Lengths::kSpread},
    {"b16 32/8 kv8192 near", 16, 32, 8, 8192, 128, 0, Lengths::kNear},
    {"b64 32/8 kv4096 page 64 near", 64, 32, 8, 4096, 128, 64, Lengths::kNear},
    {"b64 32/8 kv4096 page 64 spread", 64, 32, 8, 4096, 128, 64, Lengths::kSpread},
    {"b16 32/8 kv8192 spread", 16, 32, 8, 8192, 128, 0, Lengths::kSpread},
    {"b16 32/8 kv8192 page 64 spread", 16, 32, 8, 8192, 128, 64, Lengths::kSpread},
    {"b16 32/8 kv32768 spread", 16, 32, 8, 32768, 128, 0, Lengths::kSpread},
    {"b4 32/8 kv32768 used", 4, 32, 8, 32768, 128, 0, Lengths::kFull},
    {"b4 32/8 kv32768 spread", 4, 32, 8, 32768, 128, 0, Lengths::kSpread},
    {"b16 16/8 d256 kv8192", 16, 16, 8, 8192, 256},
    {"b16 16/8 d512 kv8192", 16, 16, 8, 8192, 512},
    {"b64 32/32 d64 kv1024", 64, 32, 32, 1024, 64},
};

cudaStream_t stream;

/// A graph of launches, one per copy of the buffers.
class GraphTimer {
 public:
  template <class Launch>
  GraphTimer(int launches, Launch launch) : launches_(launches) {
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    for (int i = 0; i < launches; ++i) launch(i);
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&executable_, graph, 0), "instantiate");
    check(cudaGraphDestroy(graph), "destroy");
    check(cudaGraphLaunch(executable_, stream), "replay");
    check(cudaStreamSynchronize(stream), "replay");
  }
  GraphTimer(const GraphTimer&) = delete;
  GraphTimer& operator=(const GraphTimer&) = delete;
  ~GraphTimer() { cudaGraphExecDestroy(executable_); }

  void sample() {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    check(cudaEventCreate(&begin), "event");
    check(cudaEventCreate(&end), "event");
    constexpr int kReplays = 2;
    check(cudaEventRecord(begin, stream), "event");
    for (int i = 0; i < kReplays; ++i) check(cudaGraphLaunch(executable_, stream), "replay");
    check(cudaEventRecord(end, stream), "event");
    check(cudaEventSynchronize(end), "replay");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "event");
    samples_.push_back(1e3 * static_cast<double>(milliseconds) / kReplays / launches_);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
  }
  [[nodiscard]] double median() {
    std::sort(samples_.begin(), samples_.end());
    return samples_[samples_.size() / 2];
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
  int launches_;
  std::vector<double> samples_;
};

struct Candidate {
  std::string name;
  std::unique_ptr<GraphTimer> timer;
};

/// Device memory of a shape: K and V in `copies` copies.
struct Buffers {
  std::byte *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr, *workspace = nullptr;
  std::int32_t* block_table = nullptr;
  std::int32_t* seqused_k = nullptr;
  std::int64_t copy_bytes = 0;
  int copies = 0;
};

AttentionProblem problem_of(const Shape& shape) {
  AttentionProblem problem;
  problem.q = problem.out =
      TensorSpec::contiguous(DType::kFloat16, {shape.batch, 1, shape.nheads_q, shape.headdim});
  problem.k = shape.page_size > 0
                  ? TensorSpec::contiguous(DType::kFloat16,
                                           {shape.batch * shape.seqlen_k / shape.page_size,
                                            shape.page_size, shape.nheads_k, shape.headdim})
                  : TensorSpec::bhsd(DType::kFloat16, shape.batch, shape.seqlen_k, shape.nheads_k,
                                     shape.headdim);
  problem.v = problem.k;
  if (shape.page_size > 0) {
    problem.block_table =
        TensorSpec::contiguous(DType::kInt32, {shape.batch, shape.seqlen_k / shape.page_size});
  }
  if (shape.lengths != Lengths::kHost) {
    problem.seqused_k = TensorSpec::contiguous(DType::kInt32, {shape.batch});
  }
  return problem;
}

constexpr std::int64_t kWorkspaceBytes = std::int64_t{256} << 20;

std::int32_t* to_device(const std::vector<std::int32_t>& values) {
  void* memory = nullptr;
  const std::size_t bytes = values.size() * sizeof(std::int32_t);
  check(cudaMalloc(&memory, bytes), "cudaMalloc");
  check(cudaMemcpy(memory, values.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  return static_cast<std::int32_t*>(memory);
}

Buffers make_buffers(const Shape& shape) {
  Buffers buffers;
  buffers.copy_bytes = shape.cache_bytes() / 2;
  const double read_bytes = static_cast<double>(shape.read_bytes());
  buffers.copies = 2 * std::max(1, static_cast<int>(std::ceil(200e6 / read_bytes)));
  const auto allocate = [](std::byte*& memory, std::int64_t bytes) {
    void* pointer = nullptr;
    check(cudaMalloc(&pointer, static_cast<std::size_t>(bytes)), "cudaMalloc");
    memory = static_cast<std::byte*>(pointer);
  };
  const std::int64_t q_bytes = shape.batch * shape.nheads_q * shape.headdim * 2;
  allocate(buffers.q, q_bytes);
  allocate(buffers.out, q_bytes);
  allocate(buffers.k, buffers.copy_bytes * buffers.copies);
  allocate(buffers.v, buffers.copy_bytes * buffers.copies);
  allocate(buffers.workspace, kWorkspaceBytes);
  foveal::bench::fill_normal(buffers.q, q_bytes / 2, 1, stream);
  foveal::bench::fill_normal(buffers.k, buffers.copy_bytes / 2 * buffers.copies, 2, stream);
  foveal::bench::fill_normal(buffers.v, buffers.copy_bytes / 2 * buffers.copies, 3, stream);
  if (shape.page_size > 0) {
    // Pages lie in an order of their own, the same in every run.
    const std::int64_t pages = shape.batch * shape.seqlen_k / shape.page_size;
    std::vector<std::int32_t> table(static_cast<std::size_t>(pages));
    for (std::int64_t i = 0; i < pages; ++i) {
      table[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * 7919 % pages);
    }
    buffers.block_table = to_device(table);
  }
  if (shape.lengths != Lengths::kHost) {
    std::vector<std::int32_t> lengths;
    for (std::int64_t i = 0; i < shape.batch; ++i) {
      lengths.push_back(static_cast<std::int32_t>(shape.length(i)));
    }
    buffers.seqused_k = to_device(lengths);
  }
  return buffers;
}

void release(const Buffers& buffers) {
  for (void* memory :
       {static_cast<void*>(buffers.q), static_cast<void*>(buffers.k), static_cast<void*>(buffers.v),
        static_cast<void*>(buffers.out), static_cast<void*>(buffers.workspace),
        static_cast<void*>(buffers.block_table), static_cast<void*>(buffers.seqused_k)}) {
    check(cudaFree(memory), "cudaFree");
  }
}

/// Configurations worth timing for a shape.
std::vector<KernelConfig> configurations(const Shape& shape,
                                         const foveal::AttentionGeometry& geometry,
                                         const KernelConfig& planned,
                                         const foveal::DeviceInfo& device) {
  std::vector<KernelConfig> list;
  const std::int64_t units = shape.batch * shape.nheads_k;
  const auto add = [&](std::int64_t splits, std::int64_t blocks, std::int64_t warps,
                       std::int64_t stages) {
    KernelConfig config = planned;
    config.notes.clear();
    config.num_splits = config.cluster_size = blocks > 0 ? 1 : splits;
    config.num_blocks = blocks;
    config.split_keys = 0;
    config.num_threads = 32 * warps;
    config.num_stages = stages;
    config.tile.n = 16 * warps;
    auto needs = foveal::cuda::decode::cluster_needs(geometry, config.tile.m, config.num_splits);
    needs.batch_prefix = blocks > 0 ? static_cast<int>(shape.batch) : 0;
    needs.shared_blocks = needs.direct_rows > 0 ? static_cast<int>(blocks) : 0;
    const foveal::cuda::decode::Ring ring{static_cast<int>(warps), static_cast<int>(stages)};
    if (!foveal::cuda::decode::fits(needs, ring, device.smem_per_block_bytes)) return;
    foveal::cuda::decode::size_workspace(config, geometry);
    list.push_back(config);
  };
  const std::int64_t stage_kib = 64 * foveal::cuda::decode::headdim_tile(geometry) / 1024;
  const int most_warps = foveal::cuda::decode::max_warps(
      foveal::cuda::decode::headdim_tile(geometry), static_cast<int>(planned.tile.m / 8));
  for (const std::int64_t warps : {1, 2, 3, 4, 5, 6, 7, 8}) {
    if (warps > most_warps) continue;
    for (const std::int64_t stages : {2, 3, 4}) {
      const std::int64_t ring_kib = warps * stages * stage_kib;
      if (ring_kib < 32 || ring_kib > 200) continue;
      for (const std::int64_t splits : {1, 2, 4, 8, 16}) {
        // More than two blocks a multiprocessor, of 132, only where two share it.
        const bool many = units * splits > 264;
        if (splits > 1 && (units * splits < 32 || units * splits > 1056)) continue;
        if (splits > 1 && many && ring_kib > 98) continue;
        if (splits == 1 && units < 64) continue;
        if (splits == 16) continue;
        add(splits, 0, warps, stages);
      }
      const std::int64_t per_sm = ring_kib <= 98 ? 2 : 1;
      if (shape.batch > 1 || units * 8 < 132) {
        add(1, 132 * per_sm, warps, stages);
        if (per_sm == 2) add(1, 132, warps, stages);
      }
    }
  }
  return list;
}

/// `all`: every configuration; otherwise only what the planner takes.
void measure(const Shape& shape, bool all) {
  const AttentionProblem problem = problem_of(shape);
  const foveal::AttentionGeometry geometry = foveal::make_geometry(problem);
  const auto device = foveal::device_info(foveal::Device::cuda(0));
  if (!device) {
    std::fprintf(stderr, "%s\n", device.status().message().c_str());
    std::exit(1);
  }
  const auto* entry = foveal::planner::find_kernel("cuda_decode");
  const Buffers buffers = make_buffers(shape);
  check(cudaStreamSynchronize(stream), "fill");

  std::vector<Candidate> candidates;
  for (const int blocks_per_sm : {1, 2, 4, 8}) {
    candidates.push_back({"read floor x" + std::to_string(blocks_per_sm),
                          std::make_unique<GraphTimer>(buffers.copies / 2 * 2, [&](int i) {
                            // As many bytes as a launch reads, from K or from V.
                            const std::byte* from = (i % 2 == 0 ? buffers.k : buffers.v) +
                                                    std::int64_t{i / 2} * 2 * buffers.copy_bytes;
                            foveal::bench::read_all(from, shape.read_bytes(), 132 * blocks_per_sm,
                                                    stream);
                          })});
  }
  const KernelConfig planned = entry->configure(problem, geometry, *device);
  const auto add = [&](const std::string& name, const KernelConfig& config) {
    if (config.workspace_bytes() > kWorkspaceBytes) return;
    Status failed = Status::ok();
    auto timer = std::make_unique<GraphTimer>(buffers.copies, [&](int copy) {
      AttentionTensors tensors;
      tensors.q = buffers.q;
      tensors.k = buffers.k + copy * buffers.copy_bytes;
      tensors.v = buffers.v + copy * buffers.copy_bytes;
      tensors.out = buffers.out;
      tensors.block_table = buffers.block_table;
      tensors.seqused_k = buffers.seqused_k;
      const Status status = entry->launch({.problem = problem,
                                           .geometry = geometry,
                                           .config = config,
                                           .tensors = tensors,
                                           .workspace = buffers.workspace,
                                           .stream = stream});
      if (!status) failed = status;
    });
    if (!failed) {
      std::printf("  %s: %s\n", name.c_str(), failed.message().c_str());
      return;
    }
    candidates.push_back({name, std::move(timer)});
  };
  const auto name_of = [](const KernelConfig& config) {
    return (config.num_blocks > 0 ? std::to_string(config.num_blocks) + " blocks"
                                  : "clusters of " + std::to_string(config.num_splits)) +
           ", " + std::to_string(config.num_threads / 32) + " warps, " +
           std::to_string(config.num_stages) + " stages";
  };
  add("PLANNED " + name_of(planned), planned);
  AttentionProblem invariant = problem;
  invariant.batch_invariant = true;
  const KernelConfig planned_invariant = entry->configure(invariant, geometry, *device);
  add("INVARIANT", planned_invariant);
  for (const std::int64_t keys : {1024, 2048, 4096, 8192}) {
    if (planned_invariant.num_blocks > 0) break;
    KernelConfig config = planned_invariant;
    config.split_keys = keys;
    config.num_splits = config.cluster_size = std::clamp<std::int64_t>(
        (shape.seqlen_k + keys - 1) / keys, 1, foveal::cuda::decode::kMaxInvariantParts);
    add("invariant, parts of " + std::to_string(keys), config);
  }
  if (all) {
    for (const KernelConfig& config : configurations(shape, geometry, planned, *device)) {
      add(name_of(config), config);
    }
  }
  constexpr std::size_t kRounds = 9;
  for (std::size_t round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      candidates[(i + round) % candidates.size()].timer->sample();
    }
  }
  double floor_us = 1e30;
  for (Candidate& candidate : candidates) {
    if (candidate.name.starts_with("read floor")) {
      floor_us = std::min(floor_us, candidate.timer->median());
    }
  }
  const double read_bytes = static_cast<double>(shape.read_bytes());
  std::printf("%s: %.1f MB, read floor %.2f us (%.0f GB/s)\n", shape.name, read_bytes / 1e6,
              floor_us, read_bytes / floor_us / 1e3);
  std::stable_sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
    return a.timer->median() < b.timer->median();
  });
  for (Candidate& candidate : candidates) {
    std::printf("  %-44s %8.2f us  %.3fx\n", candidate.name.c_str(), candidate.timer->median(),
                candidate.timer->median() / floor_us);
  }
  std::fflush(stdout);
  candidates.clear();
  release(buffers);
}

}  // namespace

int main(int argc, char** argv) {
  check(cudaStreamCreate(&stream), "stream");
  const bool all = argc < 2 || std::string(argv[1]) != "--planned";
  const int first = all ? 1 : 2;
  for (const Shape& shape : kShapes) {
    if (argc <= first || std::string(shape.name).find(argv[first]) != std::string::npos) {
      measure(shape, all);
    }
  }
  return 0;
}
