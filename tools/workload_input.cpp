#include "tools/workload_input.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <random>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tools/element_values.hpp"

namespace foveal::tools {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Elements that one generator draws: the numbers are the same on any number of threads.
constexpr std::int64_t kChunk = std::int64_t{1} << 18;

/// `task(i)` for every i below `count`, on as many threads as can be had.
template <class Task>
void in_parallel(std::int64_t count, const Task& task) {
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t i = next++; i < count; i = next++) task(i);
  };
  const auto wanted = std::min<std::int64_t>(std::thread::hardware_concurrency(), count);
  std::vector<std::thread> threads;
  for (std::int64_t thread = 1; thread < wanted; ++thread) {
    try {
      threads.emplace_back(work);
    } catch (const std::system_error&) {
      break;
    }
  }
  work();
  for (std::thread& thread : threads) thread.join();
}

/// Fills a workload step by step; each step adds buffers.
class Builder {
 public:
  explicit Builder(const Workload& workload) : workload_(workload), generator_(workload.seed) {}

  Result<WorkloadInput> build() {
    FOVEAL_RETURN_IF_ERROR(add_queries_and_keys());
    FOVEAL_RETURN_IF_ERROR(add_lengths());
    FOVEAL_RETURN_IF_ERROR(add_sinks());
    add_options();
    FOVEAL_RETURN_IF_ERROR(add_results());
    return std::move(input_);
  }

 private:
  [[nodiscard]] bool packed() const { return workload_.layout == WorkloadLayout::kThd; }
  [[nodiscard]] bool trains() const { return workload_.pass != WorkloadPass::kForward; }

  Result<std::byte*> allocate(std::int64_t bytes, const char* what) {
    FOVEAL_ASSIGN_OR_RETURN(buffer, AlignedBuffer::allocate(bytes, what));
    input_.buffers.push_back(std::move(buffer));
    return input_.buffers.back().data();
  }

  /// A float tensor of its own, drawn from the normal distribution.
  Result<std::byte*> draw(const TensorSpec& spec, const char* what) {
    const std::int64_t count = spec.numel();
    FOVEAL_ASSIGN_OR_RETURN(data, allocate(count * dtype_bytes(spec.dtype), what));
    const std::uint64_t tensor_seed = generator_();
    in_parallel((count + kChunk - 1) / kChunk, [&](std::int64_t chunk) {
      std::mt19937_64 generator(tensor_seed + static_cast<std::uint64_t>(chunk));
      std::normal_distribution<float> normal;
      const std::int64_t end = std::min((chunk + 1) * kChunk, count);
      for (std::int64_t i = chunk * kChunk; i < end; ++i) {
        store_element(spec.dtype, data, i, normal(generator));
      }
    });
    return data;
  }

  Result<std::byte*> fill(const TensorSpec& spec, float value, const char* what) {
    const std::int64_t count = spec.numel();
    FOVEAL_ASSIGN_OR_RETURN(data, allocate(count * dtype_bytes(spec.dtype), what));
    for (std::int64_t i = 0; i < count; ++i) store_element(spec.dtype, data, i, value);
    return data;
  }

  Status add_queries_and_keys() {
    const Workload& w = workload_;
    AttentionProblem& p = input_.forward;
    switch (w.layout) {
      case WorkloadLayout::kPackedQkv: return add_packed_qkv();
      case WorkloadLayout::kPaged: return add_pages();
      case WorkloadLayout::kThd:
        p.q = TensorSpec::contiguous(w.dtype, {w.total_q(), w.nheads_q, w.headdim});
        p.k = p.v = TensorSpec::contiguous(w.dtype, {w.total_q(), w.nheads_k, w.headdim});
        break;
      case WorkloadLayout::kBshd:
        p.q = TensorSpec::contiguous(w.dtype, {w.batch, w.seqlen_q, w.nheads_q, w.headdim});
        p.k = p.v = TensorSpec::contiguous(w.dtype, {w.batch, w.seqlen_k, w.nheads_k, w.headdim});
        break;
      case WorkloadLayout::kBhsd:
        p.q = TensorSpec::bhsd(w.dtype, w.batch, w.seqlen_q, w.nheads_q, w.headdim);
        p.k = p.v = TensorSpec::bhsd(w.dtype, w.batch, w.seqlen_k, w.nheads_k, w.headdim);
        break;
    }
    FOVEAL_ASSIGN_OR_RETURN(q, draw(p.q, "q"));
    FOVEAL_ASSIGN_OR_RETURN(k, draw(p.k, "k"));
    FOVEAL_ASSIGN_OR_RETURN(v, draw(p.v, "v"));
    input_.tensors.q = q;
    input_.tensors.k = k;
    input_.tensors.v = v;
    if (!packed()) {
      poison_tail(p.k, k);
      poison_tail(p.v, v);
    }
    return Status::ok();
  }

  /// Slices of [batch, seqlen, nheads_q + 2 * nheads_k, headdim].
  Status add_packed_qkv() {
    const Workload& w = workload_;
    const std::int64_t heads = w.nheads_q + 2 * w.nheads_k;
    const std::int64_t row = heads * w.headdim;
    const auto slice = [&](std::int64_t slice_heads) {
      return TensorSpec::strided(w.dtype, {w.batch, w.seqlen_q, slice_heads, w.headdim},
                                 {w.seqlen_q * row, row, w.headdim, 1});
    };
    const TensorSpec whole =
        TensorSpec::contiguous(w.dtype, {w.batch, w.seqlen_q, heads, w.headdim});
    FOVEAL_ASSIGN_OR_RETURN(data, draw(whole, "qkv"));
    input_.forward.q = slice(w.nheads_q);
    input_.forward.k = input_.forward.v = slice(w.nheads_k);
    const std::int64_t head_bytes = w.headdim * dtype_bytes(w.dtype);
    input_.tensors.q = data;
    input_.tensors.k = data + w.nheads_q * head_bytes;
    input_.tensors.v = data + (w.nheads_q + w.nheads_k) * head_bytes;
    return Status::ok();
  }

  Status add_pages() {
    const Workload& w = workload_;
    const std::int64_t max_pages = (w.seqlen_k + w.page_size - 1) / w.page_size;
    AttentionProblem& p = input_.forward;
    p.q = TensorSpec::contiguous(w.dtype, {w.batch, w.seqlen_q, w.nheads_q, w.headdim});
    p.k = p.v =
        TensorSpec::contiguous(w.dtype, {w.batch * max_pages, w.page_size, w.nheads_k, w.headdim});
    p.block_table = TensorSpec::contiguous(DType::kInt32, {w.batch, max_pages});
    FOVEAL_ASSIGN_OR_RETURN(q, draw(p.q, "q"));
    FOVEAL_ASSIGN_OR_RETURN(k, draw(p.k, "k"));
    FOVEAL_ASSIGN_OR_RETURN(v, draw(p.v, "v"));
    FOVEAL_ASSIGN_OR_RETURN(table_bytes, allocate(p.block_table.numel() * 4, "block_table"));
    auto* table = reinterpret_cast<std::int32_t*>(table_bytes);
    std::iota(table, table + p.block_table.numel(), 0);
    std::shuffle(table, table + p.block_table.numel(), generator_);
    for (std::int64_t b = 0; b < w.batch; ++b) {
      for (std::int64_t j = w.keys_of(b); j < max_pages * w.page_size; ++j) {
        const std::int64_t page = table[b * max_pages + j / w.page_size];
        poison_row(p.k, k, page, j % w.page_size);
        poison_row(p.v, v, page, j % w.page_size);
      }
    }
    input_.tensors.q = q;
    input_.tensors.k = k;
    input_.tensors.v = v;
    input_.tensors.block_table = table;
    return Status::ok();
  }

  void poison_row(const TensorSpec& spec, std::byte* data, std::int64_t b, std::int64_t row) {
    for (std::int64_t h = 0; h < spec.shape[2]; ++h) {
      const std::int64_t head = b * spec.strides[0] + row * spec.strides[1] + h * spec.strides[2];
      for (std::int64_t d = 0; d < spec.shape[3]; ++d) {
        store_element(spec.dtype, data, head + d, kNan);
      }
    }
  }

  void poison_tail(const TensorSpec& spec, std::byte* data) {
    for (std::int64_t b = 0; b < spec.shape[0]; ++b) {
      for (std::int64_t j = workload_.keys_of(b); j < spec.shape[1]; ++j) {
        poison_row(spec, data, b, j);
      }
    }
  }

  Result<const void*> add_int32(const std::vector<std::int64_t>& values, const char* what) {
    const auto count = static_cast<std::int64_t>(values.size());
    FOVEAL_ASSIGN_OR_RETURN(data, allocate(count * 4, what));
    auto* integers = reinterpret_cast<std::int32_t*>(data);
    std::transform(values.begin(), values.end(), integers,
                   [](std::int64_t value) { return static_cast<std::int32_t>(value); });
    return static_cast<const void*>(data);
  }

  Status add_lengths() {
    const Workload& w = workload_;
    AttentionProblem& p = input_.forward;
    if (packed()) {
      std::vector<std::int64_t> offsets{0};
      for (const std::int64_t length : w.doc_lens) offsets.push_back(offsets.back() + length);
      FOVEAL_ASSIGN_OR_RETURN(data, add_int32(offsets, "cu_seqlens"));
      p.cu_seqlens_q = p.cu_seqlens_k =
          TensorSpec::contiguous(DType::kInt32, {static_cast<std::int64_t>(offsets.size())});
      input_.tensors.cu_seqlens_q = input_.tensors.cu_seqlens_k = data;
      p.max_seqlen_q = p.max_seqlen_k = w.seqlen_q;
    } else if (!w.seqused_k.empty()) {
      FOVEAL_ASSIGN_OR_RETURN(data, add_int32(w.seqused_k, "seqused_k"));
      p.seqused_k = TensorSpec::contiguous(DType::kInt32, {w.batch});
      input_.tensors.seqused_k = data;
    }
    return Status::ok();
  }

  Status add_sinks() {
    if (!workload_.sinks) return Status::ok();
    input_.forward.sinks = TensorSpec::contiguous(DType::kFloat32, {workload_.nheads_q});
    FOVEAL_ASSIGN_OR_RETURN(data, draw(input_.forward.sinks, "sinks"));
    input_.tensors.sinks = data;
    return Status::ok();
  }

  void add_options() {
    AttentionProblem& p = input_.forward;
    p.causal = workload_.causal;
    p.window_size_left = workload_.window_size_left;
    p.window_size_right = workload_.window_size_right;
    p.softcap = static_cast<float>(workload_.softcap);
    p.deterministic = workload_.deterministic;
    p.batch_invariant = workload_.batch_invariant;
  }

  /// As q (or k), without gaps in q's own order of dimensions: BHSD results for BHSD inputs.
  [[nodiscard]] TensorSpec result_as(const TensorSpec& model) const {
    const auto& shape = model.shape;
    if (packed()) return TensorSpec::contiguous(model.dtype, {shape[0], shape[1], shape[2]});
    if (workload_.layout == WorkloadLayout::kBhsd) {
      return TensorSpec::bhsd(model.dtype, shape[0], shape[1], shape[2], shape[3]);
    }
    return TensorSpec::contiguous(model.dtype, {shape[0], shape[1], shape[2], shape[3]});
  }

  Status add_results() {
    const Workload& w = workload_;
    AttentionProblem& p = input_.forward;
    AttentionTensors& t = input_.tensors;
    p.out = result_as(p.q);
    FOVEAL_ASSIGN_OR_RETURN(out, fill(p.out, kNan, "out"));
    t.out = out;
    if (!trains()) return Status::ok();

    p.lse = packed() ? TensorSpec::contiguous(DType::kFloat32, {w.nheads_q, w.total_q()})
                     : TensorSpec::contiguous(DType::kFloat32, {w.batch, w.nheads_q, w.seqlen_q});
    AttentionProblem gradient = p;
    gradient.pass = Pass::kBackward;
    gradient.dout = p.out;
    gradient.dq = result_as(p.q);
    gradient.dk = result_as(p.k);
    gradient.dv = result_as(p.v);
    FOVEAL_ASSIGN_OR_RETURN(lse, fill(p.lse, kNan, "lse"));
    FOVEAL_ASSIGN_OR_RETURN(dout, draw(gradient.dout, "dout"));
    FOVEAL_ASSIGN_OR_RETURN(dq, fill(gradient.dq, kNan, "dq"));
    FOVEAL_ASSIGN_OR_RETURN(dk, fill(gradient.dk, kNan, "dk"));
    FOVEAL_ASSIGN_OR_RETURN(dv, fill(gradient.dv, kNan, "dv"));
    t.lse = lse;
    t.dout = dout;
    t.dq = dq;
    t.dk = dk;
    t.dv = dv;
    if (w.sinks) {
      gradient.dsinks = p.sinks;
      FOVEAL_ASSIGN_OR_RETURN(dsinks, fill(gradient.dsinks, kNan, "dsinks"));
      t.dsinks = dsinks;
    }
    input_.backward = gradient;
    return Status::ok();
  }

  const Workload& workload_;
  std::mt19937_64 generator_;
  WorkloadInput input_;
};

/// `pointer` moved from the buffer that it leads into to that buffer's copy.
template <class Pointer>
Pointer rebased(Pointer pointer, const std::vector<AlignedBuffer>& from,
                std::vector<AlignedBuffer>& to) {
  const auto* address = static_cast<const std::byte*>(pointer);
  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::byte* begin = from[i].data();
    if (begin == nullptr || address < begin || address >= begin + from[i].size()) continue;
    return to[i].data() + (address - begin);
  }
  return pointer;
}

}  // namespace

std::int64_t WorkloadInput::tensor_bytes() const {
  std::int64_t bytes = 0;
  for (const AlignedBuffer& buffer : buffers) bytes += static_cast<std::int64_t>(buffer.size());
  return bytes;
}

Result<WorkloadInput> make_workload_input(const Workload& workload) {
  return Builder(workload).build();
}

Result<WorkloadInput> clone(const WorkloadInput& input) {
  WorkloadInput copy;
  copy.forward = input.forward;
  copy.backward = input.backward;
  copy.tensors = input.tensors;
  for (const AlignedBuffer& buffer : input.buffers) {
    const auto bytes = static_cast<std::int64_t>(buffer.size());
    FOVEAL_ASSIGN_OR_RETURN(own, AlignedBuffer::allocate(bytes, "a copy of the inputs"));
    std::copy_n(buffer.data(), buffer.size(), own.data());
    copy.buffers.push_back(std::move(own));
  }
  for (const OperandInfo& operand : operands()) {
    if (operand.input != nullptr) {
      auto& pointer = copy.tensors.*operand.input;
      pointer = rebased(pointer, input.buffers, copy.buffers);
    } else {
      auto& pointer = copy.tensors.*operand.output;
      pointer = rebased(pointer, input.buffers, copy.buffers);
    }
  }
  return copy;
}

}  // namespace foveal::tools
