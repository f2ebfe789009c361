// The sizes of a validated problem, computed once by the planner and passed down: no kernel reads a
// shape twice.
#pragma once

#include <cstdint>

#include <foveal/problem.hpp>

#include "algorithm/dropout.hpp"
#include "algorithm/kv_locator.hpp"
#include "algorithm/mask.hpp"
#include "algorithm/seqlen_info.hpp"

namespace foveal {

struct AttentionGeometry {
  std::int64_t batch = 0;
  std::int64_t nheads_q = 0;
  std::int64_t nheads_k = 0;
  std::int64_t qhead_per_khead = 1;
  std::int64_t headdim = 0;
  std::int64_t headdim_v = 0;
  std::int64_t seqlen_q = 0;    ///< Longest possible: the dimension, or max_seqlen_q when packed.
  std::int64_t seqlen_k = 0;    ///< Longest possible: capacity, or max_seqlen_k when packed.
  std::int64_t total_q = 0;     ///< Rows of q: batch * seqlen_q when dense.
  std::int64_t total_k = 0;     ///< Rows of k that can be used: batch * capacity when not packed.
  std::int64_t seqlen_new = 0;  ///< Tokens appended a sequence.
  std::int64_t rotary_dim = 0;  ///< 0: no rotary embedding.
  std::int64_t page_size = 0;   ///< 0: not paged.
  std::int64_t max_pages = 0;   ///< Columns of the block table.
  std::int64_t num_pages = 0;
  bool packed_q = false;
  bool packed_k = false;
  float softmax_scale = 0;
  algorithm::Window window;

  [[nodiscard]] bool paged() const { return page_size > 0; }
};

/// Of a problem that validate() accepts.
[[nodiscard]] AttentionGeometry make_geometry(const AttentionProblem& problem);

/// Lengths from the tensors' own arrays. Null arrays for operands that the problem lacks.
[[nodiscard]] algorithm::SeqlenSource seqlen_source(const AttentionProblem& problem,
                                                    const AttentionGeometry& geometry,
                                                    const AttentionTensors& tensors);

/// Layout of k or v (`spec` is problem.k, problem.v, or dk, dv: same shape), pages included.
[[nodiscard]] algorithm::KvLayout kv_layout(const AttentionProblem& problem,
                                            const AttentionGeometry& geometry,
                                            const TensorSpec& spec,
                                            const AttentionTensors& tensors);

/// The cache row of sequence b.
[[nodiscard]] inline std::int64_t cache_row(const AttentionTensors& tensors, std::int64_t b) {
  const auto* index = static_cast<const std::int32_t*>(tensors.cache_batch_idx);
  return index == nullptr ? b : index[b];
}

/// Strides of q, out or a gradient of theirs by role, dense or packed alike: element
/// (b, i, h) begins at b * batch + (q_begin + i) * row + h * head, and its dimensions lie `dim`
/// apart. Packed: batch is 0.
struct RowStrides {
  std::int64_t batch = 0;
  std::int64_t row = 0;
  std::int64_t head = 0;
  std::int64_t dim = 1;

  [[nodiscard]] FOVEAL_HOST_DEVICE std::int64_t offset(std::int64_t b, std::int64_t row_index,
                                                       std::int64_t h) const {
    return b * batch + row_index * row + h * head;
  }
};
[[nodiscard]] RowStrides row_strides(const TensorSpec& spec);

/// Strides of lse or dlse: element (b, h, i) lies at b * batch + h * head + (q_begin + i) * row.
[[nodiscard]] RowStrides lse_strides(const TensorSpec& spec);

/// Strides of bias or dbias with 0 for broadcast dimensions.
struct BiasStrides {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;
  std::int64_t column = 0;
};
[[nodiscard]] BiasStrides bias_strides(const TensorSpec& spec);

/// Seed and offset by value or, where given, read through their pointers (host memory).
[[nodiscard]] algorithm::Dropout host_dropout(const AttentionProblem& problem,
                                              const AttentionTensors& tensors);

}  // namespace foveal
