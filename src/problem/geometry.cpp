#include "problem/geometry.hpp"

#include <cmath>

#include "core/integer.hpp"

namespace foveal {
namespace {

void add_query_sizes(const AttentionProblem& problem, AttentionGeometry& geometry) {
  const TensorSpec& q = problem.pass == Pass::kMerge ? problem.out : problem.q;
  if (!q.present()) return;  // an append without rotary queries
  geometry.packed_q = q.rank == 3;
  if (geometry.packed_q) {
    geometry.total_q = q.shape[0];
    geometry.seqlen_q =
        problem.max_seqlen_q > 0 ? min_of(problem.max_seqlen_q, q.shape[0]) : q.shape[0];
    geometry.nheads_q = q.shape[1];
    geometry.headdim = q.shape[2];
  } else {
    geometry.batch = q.shape[0];
    geometry.seqlen_q = q.shape[1];
    geometry.total_q = q.shape[0] * q.shape[1];
    geometry.nheads_q = q.shape[2];
    geometry.headdim = q.shape[3];
  }
}

void add_key_sizes(const AttentionProblem& problem, AttentionGeometry& geometry) {
  const TensorSpec& k = problem.k;
  geometry.packed_k = k.rank == 3;
  if (geometry.packed_k) {
    geometry.total_k = k.shape[0];
    geometry.seqlen_k =
        problem.max_seqlen_k > 0 ? min_of(problem.max_seqlen_k, k.shape[0]) : k.shape[0];
  } else if (problem.block_table.present()) {
    geometry.num_pages = k.shape[0];
    geometry.page_size = k.shape[1];
    geometry.max_pages = problem.block_table.shape[1];
    geometry.seqlen_k = geometry.max_pages * geometry.page_size;
    geometry.total_k = geometry.batch * geometry.seqlen_k;
  } else {
    geometry.seqlen_k = k.shape[1];
    geometry.total_k = geometry.batch * geometry.seqlen_k;
  }
  const auto heads_axis = static_cast<std::size_t>(k.rank - 2);
  geometry.nheads_k = k.shape[heads_axis];
  geometry.headdim = k.shape[heads_axis + 1];
  geometry.headdim_v = problem.v.shape[heads_axis + 1];
}

std::int64_t batch_of(const AttentionProblem& problem) {
  if (problem.q.rank == 4) return problem.q.shape[0];
  if (problem.cu_seqlens_q.present()) return problem.cu_seqlens_q.shape[0] - 1;
  if (problem.cu_seqlens_k.present()) return problem.cu_seqlens_k.shape[0] - 1;
  if (problem.k_new.present()) return problem.k_new.shape[0];
  if (problem.out.rank == 4) return problem.out.shape[0];  // merge
  return 1;
}

}  // namespace

AttentionGeometry make_geometry(const AttentionProblem& problem) {
  AttentionGeometry geometry;
  geometry.batch = batch_of(problem);
  add_query_sizes(problem, geometry);
  if (problem.pass == Pass::kMerge) {
    geometry.headdim_v = geometry.headdim;
    return geometry;
  }
  add_key_sizes(problem, geometry);
  if (geometry.nheads_q > 0 && geometry.nheads_k > 0) {
    geometry.qhead_per_khead = geometry.nheads_q / geometry.nheads_k;
  }
  if (problem.k_new.present()) geometry.seqlen_new = problem.k_new.shape[1];
  if (problem.rotary_cos.present()) geometry.rotary_dim = 2 * problem.rotary_cos.shape[1];
  geometry.softmax_scale =
      problem.softmax_scale
          ? *problem.softmax_scale
          : static_cast<float>(1.0 / std::sqrt(static_cast<double>(geometry.headdim)));
  geometry.window =
      algorithm::make_window(problem.window_size_left, problem.window_size_right, problem.causal);
  return geometry;
}

algorithm::SeqlenSource seqlen_source(const AttentionProblem& problem,
                                      const AttentionGeometry& geometry,
                                      const AttentionTensors& tensors) {
  const auto lengths = [](const TensorSpec& spec, const void* data) {
    return spec.present() ? static_cast<const std::int32_t*>(data) : nullptr;
  };
  return {.cu_seqlens_q = lengths(problem.cu_seqlens_q, tensors.cu_seqlens_q),
          .cu_seqlens_k = lengths(problem.cu_seqlens_k, tensors.cu_seqlens_k),
          .seqused_q = lengths(problem.seqused_q, tensors.seqused_q),
          .seqused_k = lengths(problem.seqused_k, tensors.seqused_k),
          .leftpad_k = lengths(problem.leftpad_k, tensors.leftpad_k),
          .rows_q = geometry.packed_q ? geometry.total_q : geometry.seqlen_q,
          .rows_k = geometry.packed_k ? geometry.total_k : geometry.seqlen_k,
          .seqlen_new = geometry.seqlen_new};
}

algorithm::KvLayout kv_layout(const AttentionProblem& problem, const AttentionGeometry& geometry,
                              const TensorSpec& spec, const AttentionTensors& tensors) {
  const auto head_axis = static_cast<std::size_t>(spec.rank - 2);
  algorithm::KvLayout layout;
  layout.page_stride = spec.rank == 4 ? spec.strides[0] : 0;
  layout.row_stride = spec.strides[head_axis - 1];
  layout.head_stride = spec.strides[head_axis];
  layout.dim_stride = spec.strides[head_axis + 1];
  if (geometry.paged()) {
    layout.block_table = static_cast<const std::int32_t*>(tensors.block_table);
    layout.block_table_batch_stride = problem.block_table.strides[0];
    layout.block_table_page_stride = problem.block_table.strides[1];
    layout.page_size = geometry.page_size;
    layout.num_pages = geometry.num_pages;
  }
  return layout;
}

RowStrides row_strides(const TensorSpec& spec) {
  if (spec.rank == 3) return {0, spec.strides[0], spec.strides[1], spec.strides[2]};
  return {spec.strides[0], spec.strides[1], spec.strides[2], spec.strides[3]};
}

RowStrides lse_strides(const TensorSpec& spec) {
  if (spec.rank == 2) return {0, spec.strides[1], spec.strides[0], 0};
  return {spec.strides[0], spec.strides[2], spec.strides[1], 0};
}

BiasStrides bias_strides(const TensorSpec& spec) {
  const auto stride = [&](std::size_t axis) {
    return spec.shape[axis] == 1 ? 0 : spec.strides[axis];
  };
  return {stride(0), stride(1), stride(2), stride(3)};
}

algorithm::Dropout host_dropout(const AttentionProblem& problem, const AttentionTensors& tensors) {
  const std::uint64_t seed =
      tensors.dropout_seed_ptr != nullptr ? *tensors.dropout_seed_ptr : tensors.dropout_seed;
  const std::uint64_t offset =
      tensors.dropout_offset_ptr != nullptr ? *tensors.dropout_offset_ptr : tensors.dropout_offset;
  return algorithm::make_dropout(problem.dropout_p, seed, offset);
}

}  // namespace foveal
