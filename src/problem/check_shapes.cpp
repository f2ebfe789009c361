// Shapes against each other, and the combinations that the contract leaves out.
#include <cstdint>
#include <initializer_list>
#include <span>

#include "core/format.hpp"
#include "problem/validate.hpp"

namespace foveal::checks {
namespace {

constexpr std::int64_t kMaxHeaddim = 512;

using Shape = std::initializer_list<std::int64_t>;

bool has_shape(const TensorSpec& spec, Shape shape) {
  if (static_cast<std::size_t>(spec.rank) != shape.size()) return false;
  std::size_t axis = 0;
  for (const std::int64_t extent : shape) {
    if (spec.shape[axis++] != extent) return false;
  }
  return true;
}

std::span<const std::int64_t> shape_of(const TensorSpec& spec) {
  return {spec.shape.data(), static_cast<std::size_t>(spec.rank)};
}

/// `name [2, 3]: it must be [2, 4], [batch, seqlen_k]`
Status check_shape(const char* name, const TensorSpec& spec, Shape shape, const char* meaning) {
  if (!spec.present() || has_shape(spec, shape)) return Status::ok();
  return Status::invalid_argument(concat(name, " ", shape_of(spec), ": it must be ",
                                         std::span<const std::int64_t>(shape.begin(), shape.size()),
                                         ", ", meaning));
}

Status check_rank(const char* name, const TensorSpec& spec, std::int32_t low, std::int32_t high) {
  if (!spec.present() || (spec.rank >= low && spec.rank <= high)) return Status::ok();
  return Status::invalid_argument(concat(name, " has ", spec.rank, " dimensions: ", low,
                                         high > low ? concat(" or ", high) : "", " needed"));
}

/// One-dimensional int32 arrays are read without strides.
Status check_lengths(const char* name, const TensorSpec& spec, std::int64_t count,
                     const char* meaning) {
  if (!spec.present()) return Status::ok();
  FOVEAL_RETURN_IF_ERROR(check_shape(name, spec, {count}, meaning));
  if (count > 1 && spec.strides[0] != 1) {
    return Status::invalid_argument(
        concat(name, " has stride ", spec.strides[0], ": its elements must be adjacent"));
  }
  return Status::ok();
}

Status check_headdim(const char* name, std::int64_t headdim) {
  if (headdim < 1) return Status::invalid_argument(concat(name, " ", headdim, ": at least 1"));
  if (headdim > kMaxHeaddim) {
    return Status::invalid_argument(concat(name, " ", headdim, ": at most ", kMaxHeaddim));
  }
  return Status::ok();
}

/// Rows of q: a tensor of q's layout with its own last dimension.
Status check_rows(const char* name, const TensorSpec& spec, const AttentionGeometry& geometry,
                  std::int64_t dim) {
  if (geometry.packed_q) {
    return check_shape(name, spec, {geometry.total_q, geometry.nheads_q, dim},
                       "[total_q, nheads_q, dim]");
  }
  return check_shape(name, spec, {geometry.batch, geometry.seqlen_q, geometry.nheads_q, dim},
                     "[batch, seqlen_q, nheads_q, dim]");
}

Status check_lse(const char* name, const TensorSpec& spec, const AttentionGeometry& geometry) {
  if (geometry.packed_q) {
    return check_shape(name, spec, {geometry.nheads_q, geometry.total_q}, "[nheads_q, total_q]");
  }
  return check_shape(name, spec, {geometry.batch, geometry.nheads_q, geometry.seqlen_q},
                     "[batch, nheads_q, seqlen_q]");
}

Status check_bias(const char* name, const TensorSpec& spec, const AttentionGeometry& geometry) {
  if (!spec.present()) return Status::ok();
  const std::int64_t full[] = {geometry.batch, geometry.nheads_q, geometry.seqlen_q,
                               geometry.seqlen_k};
  for (std::size_t axis = 0; axis < 4; ++axis) {
    if (spec.shape[axis] != 1 && spec.shape[axis] != full[axis]) {
      return Status::invalid_argument(concat(name, " ", shape_of(spec), ": it must broadcast to ",
                                             std::span<const std::int64_t>(full),
                                             ", [batch, nheads_q, seqlen_q, seqlen_k]"));
    }
  }
  return Status::ok();
}

Status check_heads(const AttentionProblem& problem, const AttentionGeometry& geometry) {
  FOVEAL_RETURN_IF_ERROR(check_headdim("headdim", geometry.headdim));
  FOVEAL_RETURN_IF_ERROR(check_headdim("headdim_v", geometry.headdim_v));
  if (!problem.q.present()) return Status::ok();
  const std::int64_t headdim_q = problem.q.shape[static_cast<std::size_t>(problem.q.rank - 1)];
  if (headdim_q != geometry.headdim) {
    return Status::invalid_argument(
        concat("q has headdim ", headdim_q, " and k ", geometry.headdim, ": they must be equal"));
  }
  const bool whole =
      geometry.nheads_k == 0 ? geometry.nheads_q == 0 : geometry.nheads_q % geometry.nheads_k == 0;
  if (!whole) {
    return Status::invalid_argument(concat(
        "nheads_q ", geometry.nheads_q, ": it must be a multiple of nheads_k ", geometry.nheads_k));
  }
  return Status::ok();
}

/// k and v against each other and against the batch.
Status check_keys(const AttentionProblem& problem, const AttentionGeometry& geometry) {
  const TensorSpec& k = problem.k;
  const TensorSpec& v = problem.v;
  if (v.rank != k.rank) {
    return Status::invalid_argument(
        concat("v has ", v.rank, " dimensions and k ", k.rank, ": they must be equal"));
  }
  for (std::size_t axis = 0; axis + 1 < static_cast<std::size_t>(k.rank); ++axis) {
    if (k.shape[axis] != v.shape[axis]) {
      return Status::invalid_argument(concat("v ", shape_of(v), " and k ", shape_of(k),
                                             ": they may differ in the last dimension only"));
    }
  }
  if (k.rank == 4 && !geometry.paged() && !problem.cache_batch_idx.present() &&
      k.shape[0] != geometry.batch) {
    return Status::invalid_argument(concat("k has a batch of ", k.shape[0], ": it must be ",
                                           geometry.batch,
                                           ", the number of sequences, without cache_batch_idx"));
  }
  return Status::ok();
}

/// A gradient of k or v has its operand's shape.
Status check_as(const char* name, const TensorSpec& spec, const TensorSpec& model,
                const char* model_name) {
  if (!spec.present()) return Status::ok();
  bool same = spec.rank == model.rank;
  for (std::size_t axis = 0; same && axis < static_cast<std::size_t>(spec.rank); ++axis) {
    same = spec.shape[axis] == model.shape[axis];
  }
  if (same) return Status::ok();
  return Status::invalid_argument(
      concat(name, " ", shape_of(spec), ": it must be ", shape_of(model), ", as ", model_name));
}

Status check_append(const AttentionProblem& problem, const AttentionGeometry& geometry) {
  if (!problem.k_new.present()) return Status::ok();
  FOVEAL_RETURN_IF_ERROR(
      check_shape("k_new", problem.k_new,
                  {geometry.batch, geometry.seqlen_new, geometry.nheads_k, geometry.headdim},
                  "[batch, seqlen_new, nheads_k, headdim]"));
  FOVEAL_RETURN_IF_ERROR(
      check_shape("v_new", problem.v_new,
                  {geometry.batch, geometry.seqlen_new, geometry.nheads_k, geometry.headdim_v},
                  "[batch, seqlen_new, nheads_k, headdim_v]"));
  if (!problem.rotary_cos.present()) return Status::ok();
  FOVEAL_RETURN_IF_ERROR(
      check_as("rotary_sin", problem.rotary_sin, problem.rotary_cos, "rotary_cos"));
  if (geometry.rotary_dim > geometry.headdim) {
    return Status::invalid_argument(concat("rotary_cos has ", geometry.rotary_dim / 2,
                                           " pairs: at most headdim / 2 = ", geometry.headdim / 2));
  }
  return check_rows("q_rotated", problem.q_rotated, geometry, geometry.headdim);
}

Status check_side_operands(const AttentionProblem& problem, const AttentionGeometry& geometry) {
  const std::int64_t batch = geometry.batch;
  const char* sequences = "one a sequence";
  FOVEAL_RETURN_IF_ERROR(
      check_lengths("cu_seqlens_q", problem.cu_seqlens_q, batch + 1, "[batch + 1]"));
  FOVEAL_RETURN_IF_ERROR(
      check_lengths("cu_seqlens_k", problem.cu_seqlens_k, batch + 1, "[batch + 1]"));
  FOVEAL_RETURN_IF_ERROR(check_lengths("seqused_q", problem.seqused_q, batch, sequences));
  FOVEAL_RETURN_IF_ERROR(check_lengths("seqused_k", problem.seqused_k, batch, sequences));
  FOVEAL_RETURN_IF_ERROR(check_lengths("leftpad_k", problem.leftpad_k, batch, sequences));
  FOVEAL_RETURN_IF_ERROR(
      check_lengths("cache_batch_idx", problem.cache_batch_idx, batch, sequences));
  FOVEAL_RETURN_IF_ERROR(check_shape("block_table", problem.block_table,
                                     {batch, geometry.max_pages}, "[batch, max_pages]"));
  FOVEAL_RETURN_IF_ERROR(check_shape("sinks", problem.sinks, {geometry.nheads_q}, "[nheads_q]"));
  FOVEAL_RETURN_IF_ERROR(check_shape("dsinks", problem.dsinks, {geometry.nheads_q}, "[nheads_q]"));
  if (problem.alibi_slopes.rank == 1) {
    FOVEAL_RETURN_IF_ERROR(
        check_shape("alibi_slopes", problem.alibi_slopes, {geometry.nheads_q}, "[nheads_q]"));
  } else {
    FOVEAL_RETURN_IF_ERROR(check_shape("alibi_slopes", problem.alibi_slopes,
                                       {batch, geometry.nheads_q},
                                       "[nheads_q] or [batch, nheads_q]"));
  }
  FOVEAL_RETURN_IF_ERROR(check_bias("bias", problem.bias, geometry));
  return check_as("dbias", problem.dbias, problem.bias, "bias");
}

Status check_merge(const AttentionProblem& problem) {
  FOVEAL_RETURN_IF_ERROR(check_rank("out", problem.out, 3, 4));
  FOVEAL_RETURN_IF_ERROR(check_as("out_a", problem.out_a, problem.out, "out"));
  FOVEAL_RETURN_IF_ERROR(check_as("out_b", problem.out_b, problem.out, "out"));
  const AttentionGeometry geometry = make_geometry(problem);
  FOVEAL_RETURN_IF_ERROR(check_lse("lse_a", problem.lse_a, geometry));
  FOVEAL_RETURN_IF_ERROR(check_lse("lse_b", problem.lse_b, geometry));
  return check_lse("lse", problem.lse, geometry);
}

/// Ranks that make_geometry() relies on.
Status check_ranks(const AttentionProblem& problem) {
  FOVEAL_RETURN_IF_ERROR(check_rank("q", problem.q, 3, 4));
  FOVEAL_RETURN_IF_ERROR(check_rank("k", problem.k, 3, 4));
  FOVEAL_RETURN_IF_ERROR(check_rank("v", problem.v, 3, 4));
  FOVEAL_RETURN_IF_ERROR(check_rank("k_new", problem.k_new, 4, 4));
  FOVEAL_RETURN_IF_ERROR(check_rank("v_new", problem.v_new, 4, 4));
  FOVEAL_RETURN_IF_ERROR(check_rank("block_table", problem.block_table, 2, 2));
  FOVEAL_RETURN_IF_ERROR(check_rank("rotary_cos", problem.rotary_cos, 2, 2));
  FOVEAL_RETURN_IF_ERROR(check_rank("rotary_sin", problem.rotary_sin, 2, 2));
  FOVEAL_RETURN_IF_ERROR(check_rank("cu_seqlens_q", problem.cu_seqlens_q, 1, 1));
  FOVEAL_RETURN_IF_ERROR(check_rank("cu_seqlens_k", problem.cu_seqlens_k, 1, 1));
  FOVEAL_RETURN_IF_ERROR(check_rank("bias", problem.bias, 4, 4));
  return check_rank("alibi_slopes", problem.alibi_slopes, 1, 2);
}

Status check_packing(const AttentionProblem& problem) {
  const auto agree = [](const char* name, const TensorSpec& spec, const char* lengths,
                        const TensorSpec& cu_seqlens) {
    if (spec.rank == 3 && !cu_seqlens.present()) {
      return Status::invalid_argument(
          concat(name, " has 3 dimensions, which means packed: ", lengths, " is missing"));
    }
    if (spec.rank != 3 && cu_seqlens.present()) {
      return Status::invalid_argument(concat(lengths, " is given, but ", name, " has ", spec.rank,
                                             " dimensions: packed tensors have 3"));
    }
    if (cu_seqlens.present() && cu_seqlens.shape[0] < 1) {
      return Status::invalid_argument(concat(lengths, " is empty: it has batch + 1 entries"));
    }
    return Status::ok();
  };
  FOVEAL_RETURN_IF_ERROR(agree("q", problem.q, "cu_seqlens_q", problem.cu_seqlens_q));
  return agree("k", problem.k, "cu_seqlens_k", problem.cu_seqlens_k);
}

}  // namespace

Status check_combinations(const AttentionProblem& problem) {
  if (problem.pass == Pass::kMerge) return Status::ok();
  FOVEAL_RETURN_IF_ERROR(check_ranks(problem));
  FOVEAL_RETURN_IF_ERROR(check_packing(problem));
  if (problem.block_table.present() && problem.k.rank != 4) {
    return Status::invalid_argument(
        "block_table is given, but k is packed: pages are [num_pages, page_size, nheads_k, "
        "headdim]");
  }
  if (problem.block_table.present() && problem.k.shape[1] < 1) {
    return Status::invalid_argument("k has pages of 0 tokens: page_size is at least 1");
  }
  if (problem.cache_batch_idx.present() && (problem.block_table.present() || problem.k.rank == 3)) {
    return Status::invalid_argument(
        "cache_batch_idx is given, but k is packed or paged: it selects rows of a dense cache");
  }
  if (problem.k_new.present() && problem.k.rank == 3) {
    return Status::invalid_argument(
        "k_new is given, but k is packed: tokens are appended to a dense or paged cache");
  }
  if (problem.bias.present() && (problem.q.rank == 3 || problem.k.rank == 3)) {
    return Status::unsupported(
        "bias is given, but q or k is packed (cu_seqlens): bias takes dense q and k");
  }
  return Status::ok();
}

Status check_shapes(const AttentionProblem& problem) {
  if (problem.pass == Pass::kMerge) return check_merge(problem);
  const AttentionGeometry geometry = make_geometry(problem);
  FOVEAL_RETURN_IF_ERROR(check_keys(problem, geometry));
  FOVEAL_RETURN_IF_ERROR(check_heads(problem, geometry));
  FOVEAL_RETURN_IF_ERROR(check_append(problem, geometry));
  FOVEAL_RETURN_IF_ERROR(check_rows("out", problem.out, geometry, geometry.headdim_v));
  FOVEAL_RETURN_IF_ERROR(check_rows("dout", problem.dout, geometry, geometry.headdim_v));
  FOVEAL_RETURN_IF_ERROR(check_rows("dq", problem.dq, geometry, geometry.headdim));
  FOVEAL_RETURN_IF_ERROR(check_lse("lse", problem.lse, geometry));
  FOVEAL_RETURN_IF_ERROR(check_lse("dlse", problem.dlse, geometry));
  FOVEAL_RETURN_IF_ERROR(check_as("dk", problem.dk, problem.k, "k"));
  FOVEAL_RETURN_IF_ERROR(check_as("dv", problem.dv, problem.v, "v"));
  return check_side_operands(problem, geometry);
}

}  // namespace foveal::checks
