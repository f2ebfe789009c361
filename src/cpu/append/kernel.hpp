// cpu_append: k_new and v_new go behind what a cache holds, k_new and q turned by their positions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "algorithm/kv_locator.hpp"
#include "algorithm/range.hpp"
#include "algorithm/seqlen_info.hpp"
#include "plan/kernel_entry.hpp"
#include "problem/geometry.hpp"

namespace foveal::cpu {

/// One head of one token: `count` elements that lie `stride` apart.
struct HeadRow {
  std::byte* data = nullptr;
  std::int64_t stride = 1;
};
struct ConstHeadRow {
  const std::byte* data = nullptr;
  std::int64_t stride = 1;
};

/// The rotary tables, cos and sin of [position, pair].
struct RotaryTables {
  const void* cos = nullptr;  ///< Null: nothing turns.
  const void* sin = nullptr;
  DType dtype = DType::kNone;
  std::int64_t cos_strides[2] = {0, 0};
  std::int64_t sin_strides[2] = {0, 0};
  std::int64_t positions = 0;
  std::int64_t rotary_dim = 0;
  bool interleaved = false;
};

struct AppendArgs {
  explicit AppendArgs(const planner::LaunchContext& launch);

  [[nodiscard]] bool rotates_q() const { return q_rotated != nullptr; }

  const planner::LaunchContext& context;
  const AttentionGeometry& geometry;
  algorithm::SeqlenSource lengths;
  DType dtype;  ///< of the cache, the new tokens and q
  algorithm::KvLayout k_layout;
  algorithm::KvLayout v_layout;
  RowStrides k_new_strides;
  RowStrides v_new_strides;
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  RowStrides q_strides;
  RowStrides q_rotated_strides;
  std::byte* q_rotated = nullptr;  ///< Null: not asked for.
  RotaryTables rotary;
  bool q_advances = false;  ///< see algorithm::rotary_position
};

/// Appends the new tokens of sequence b among `rows`, and rotates its rows of q among them.
void append_rows(const AppendArgs& args, std::int64_t b, algorithm::Range rows);

}  // namespace foveal::cpu
