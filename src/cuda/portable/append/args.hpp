// cuda_append: k_new and v_new go behind what a cache holds, k_new and q turned by their positions.
#pragma once

#include <cstdint>

#include <foveal/status.hpp>
#include <foveal/tensor.hpp>

#include "algorithm/kv_locator.hpp"
#include "algorithm/seqlen_info.hpp"
#include "problem/geometry.hpp"

namespace foveal::planner {
struct LaunchContext;
}

namespace foveal::cuda::append {

/// The rotary tables, cos and sin of [position, pair].
struct RotaryTables {
  const void* cos = nullptr;
  const void* sin = nullptr;
  DType dtype = DType::kNone;
  std::int64_t cos_strides[2] = {0, 0};
  std::int64_t sin_strides[2] = {0, 0};
  std::int64_t positions = 0;
  bool interleaved = false;
  bool vectorised = false;  ///< The values of a position can be read 16 bytes at a time.
};

/// How the elements of a head are dealt to threads: first the pairs that turn, `width` a step, then
/// the others, `width` a step.
struct HeadSteps {
  std::int32_t rotary_dim = 0;  ///< Elements that turn, from the head's first on.
  std::int32_t dim = 0;         ///< All of them.
  bool vectorised = false;      ///< 16 bytes a step and operand; else one element.

  [[nodiscard]] FOVEAL_HOST_DEVICE std::int32_t count(std::int32_t width) const {
    return rotary_dim / 2 / width + (dim - rotary_dim) / width;
  }
};

/// Rows that are moved alike: those of k_new, of v_new, or of q.
struct AppendSide {
  const void* from = nullptr;
  void* to = nullptr;
  RowStrides from_strides;
  RowStrides to_strides;          ///< q_rotated's
  algorithm::KvLayout to_layout;  ///< The cache's.
  std::int64_t num_rows = 0;
  std::int32_t nheads = 0;
  HeadSteps steps;
  std::int32_t rows_per_block = 1;
  std::int64_t num_blocks = 0;
};

struct AppendArgs {
  AppendSide k;
  AppendSide v;
  AppendSide q;
  algorithm::SeqlenSource lengths;
  const std::int32_t* cache_batch_idx = nullptr;
  std::int32_t cache_rows = 0;  ///< What cache_batch_idx clamps to.
  std::int32_t batch = 0;
  std::int64_t seqlen_new = 0;
  RotaryTables rotary;
  bool q_advances = false;  ///< see algorithm::rotary_position
  DType dtype = DType::kNone;

  [[nodiscard]] std::int64_t num_blocks() const {
    return k.num_blocks + v.num_blocks + q.num_blocks;
  }
};

inline constexpr std::int32_t kThreads = 128;

[[nodiscard]] AppendArgs make_append_args(const planner::LaunchContext& context);

[[nodiscard]] Status launch_append(const AppendArgs& args, void* stream);

}  // namespace foveal::cuda::append
