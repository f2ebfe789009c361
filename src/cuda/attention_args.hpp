// What the attention kernels of this room read of a launch: pointers, strides, lengths and options
// as one value that is passed to a kernel. Pointers are device memory.
#pragma once

#include <cstdint>

#include <foveal/tensor.hpp>

#include "algorithm/dropout.hpp"
#include "algorithm/kv_locator.hpp"
#include "algorithm/mask.hpp"
#include "algorithm/seqlen_info.hpp"
#include "core/host_device.hpp"
#include "core/integer.hpp"
#include "problem/geometry.hpp"

namespace foveal::planner {
struct LaunchContext;
}

namespace foveal::cuda {

/// An operand in q's layout: q, out and their gradients.
struct RowOperand {
  void* data = nullptr;
  RowStrides strides;
};

/// An operand in k's layout, pages included: k, v and their gradients.
struct KeyOperand {
  void* data = nullptr;
  algorithm::KvLayout layout;
};

/// One fp32 value a row and query head: lse, dlse. Null data: not there.
struct RowValues {
  float* data = nullptr;
  RowStrides strides;
};

/// Values of the dropout mask, by value or in device memory.
struct DropoutArgs {
  float p = 0;  ///< 0: off.
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  const std::uint64_t* seed_ptr = nullptr;
  const std::uint64_t* offset_ptr = nullptr;

#if defined(__CUDACC__)
  FOVEAL_DEVICE algorithm::Dropout load() const {
    return algorithm::make_dropout(p, seed_ptr != nullptr ? *seed_ptr : seed,
                                   offset_ptr != nullptr ? *offset_ptr : offset);
  }
#endif
};

/// Everything that comes between q.k and the softmax.
struct ScoreArgs {
  float softmax_scale = 1;
  float softcap = 0;  ///< 0: off.
  algorithm::Window window;
  const float* alibi_slopes = nullptr;  ///< Null: none.
  std::int64_t alibi_batch_stride = 0;  ///< 0: the same slopes for every sequence.
  std::int64_t alibi_head_stride = 0;
  const void* bias = nullptr;  ///< Null: none.
  DType bias_dtype = DType::kNone;
  BiasStrides bias_strides;
};

struct AttentionArgs {
  std::int32_t batch = 0;
  std::int32_t nheads_q = 0;
  std::int32_t nheads_k = 0;
  std::int32_t qhead_per_khead = 1;
  std::int32_t headdim = 0;
  std::int32_t headdim_v = 0;
  RowOperand q;
  KeyOperand k;
  KeyOperand v;
  RowOperand out;
  DType out_dtype = DType::kNone;
  RowValues lse;
  const float* sinks = nullptr;  ///< Null: none.
  std::int64_t sink_stride = 0;
  algorithm::SeqlenSource lengths;
  const std::int32_t* cache_batch_idx = nullptr;
  std::int32_t cache_rows = 0;  ///< Entries of k's batch dimension: what cache_batch_idx clamps to.
  ScoreArgs score;
  DropoutArgs dropout;

  FOVEAL_HOST_DEVICE std::int64_t cache_row(std::int64_t b) const {
    if (cache_batch_idx == nullptr) return b;
    return clamp_to<std::int64_t>(cache_batch_idx[b], 0, cache_rows - 1);
  }
};

/// Of a forward or backward step.
[[nodiscard]] AttentionArgs make_attention_args(const planner::LaunchContext& context);

}  // namespace foveal::cuda
