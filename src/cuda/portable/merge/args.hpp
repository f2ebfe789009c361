// cuda_merge: two results over disjoint keys become the result over their union, row by row.
#pragma once

#include <cstdint>

#include <foveal/status.hpp>
#include <foveal/tensor.hpp>

#include "plan/kernel_entry.hpp"
#include "problem/geometry.hpp"

namespace foveal::cuda::merging {

/// out and lse of one side, or of the result.
struct MergeSide {
  void* out = nullptr;  ///< Only the result's is written.
  DType dtype = DType::kNone;
  RowStrides out_strides;
  float* lse = nullptr;  ///< Null: not asked for.
  RowStrides lse_strides;
};

struct MergeArgs {
  MergeSide a;
  MergeSide b;
  MergeSide result;
  std::int64_t rows_per_batch = 0;  ///< seqlen_q, or total_q when packed
  std::int64_t num_rows = 0;        ///< of all sequences, times heads
  std::int32_t nheads = 0;
  std::int32_t headdim_v = 0;
  std::int32_t lanes_per_row = 1;  ///< Threads that share a row of one head: a power of two.
};

/// Elements that a thread moves at a time where every operand's rows are aligned; else one.
inline constexpr std::int32_t kVectorElements = 8;

inline constexpr std::int32_t kThreads = 128;

/// `vectorised`: kVectorElements at a time.
[[nodiscard]] Status launch_merge(const MergeArgs& args, bool vectorised, void* stream);

}  // namespace foveal::cuda::merging
