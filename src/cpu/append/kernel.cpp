#include "cpu/append/kernel.hpp"

#include <cstring>

#include "algorithm/rotary.hpp"
#include "cpu/tile_load.hpp"

namespace foveal::cpu {
namespace {

using algorithm::Range;
using algorithm::SeqlenInfo;

/// Elements as they are, bit for bit.
void copy_elements(ConstHeadRow from, HeadRow to, std::int64_t begin, std::int64_t end,
                   std::int64_t bytes) {
  if (from.stride == 1 && to.stride == 1) {
    std::memmove(to.data + begin * bytes, from.data + begin * bytes,
                 static_cast<std::size_t>((end - begin) * bytes));
    return;
  }
  for (std::int64_t d = begin; d < end; ++d) {
    std::memcpy(to.data + d * to.stride * bytes, from.data + d * from.stride * bytes,
                static_cast<std::size_t>(bytes));
  }
}

/// Copies a head of `dim` elements and turns the first rotary_dim of them.
void rotate_head(const RotaryTables& rotary, DType dtype, ConstHeadRow from, HeadRow to,
                 std::int64_t dim, std::int64_t position) {
  const std::int64_t row = min_of(position, rotary.positions - 1);
  for (std::int64_t p = 0; p < rotary.rotary_dim / 2; ++p) {
    const algorithm::RotaryPair pair =
        algorithm::rotary_pair(p, rotary.rotary_dim, rotary.interleaved);
    const float cos = load_scalar(rotary.dtype, rotary.cos,
                                  row * rotary.cos_strides[0] + p * rotary.cos_strides[1]);
    const float sin = load_scalar(rotary.dtype, rotary.sin,
                                  row * rotary.sin_strides[0] + p * rotary.sin_strides[1]);
    const algorithm::RotatedPair turned =
        algorithm::rotate(load_scalar(dtype, from.data, pair.first * from.stride),
                          load_scalar(dtype, from.data, pair.second * from.stride), cos, sin);
    store_scalar(dtype, to.data, pair.first * to.stride, turned.first);
    store_scalar(dtype, to.data, pair.second * to.stride, turned.second);
  }
  copy_elements(from, to, rotary.rotary_dim, dim, dtype_bytes(dtype));
}

/// One new token: all KV heads of k and v into its row of the cache.
void append_token(const AppendArgs& args, const SeqlenInfo& info, std::int64_t b, std::int64_t i) {
  const AttentionTensors& tensors = args.context.tensors;
  const std::int64_t bytes = dtype_bytes(args.dtype);
  const std::int64_t row = info.seqlen_cache + i;
  const std::int64_t cache = cache_row(tensors, b);
  const std::int64_t position = algorithm::rotary_position(info.seqlen_cache, i, true);
  for (std::int64_t head = 0; head < args.geometry.nheads_k; ++head) {
    const auto place = [&](const algorithm::KvLayout& layout) {
      return algorithm::kv_locator(layout, b, cache, head, info.k_begin).row_offset(row) * bytes;
    };
    const auto origin = [&](const void* base, const RowStrides& strides) {
      return static_cast<const std::byte*>(base) + strides.offset(b, i, head) * bytes;
    };
    rotate_head(args.rotary, args.dtype,
                {origin(tensors.k_new, args.k_new_strides), args.k_new_strides.dim},
                {args.k + place(args.k_layout), args.k_layout.dim_stride}, args.geometry.headdim,
                position);
    copy_elements({origin(tensors.v_new, args.v_new_strides), args.v_new_strides.dim},
                  {args.v + place(args.v_layout), args.v_layout.dim_stride}, 0,
                  args.geometry.headdim_v, bytes);
  }
}

/// One row of q, all heads, into q_rotated. Rows past seqlen_q have no position: they become 0.
void rotate_query(const AppendArgs& args, const SeqlenInfo& info, std::int64_t b, std::int64_t i) {
  const std::int64_t bytes = dtype_bytes(args.dtype);
  const std::int64_t position = algorithm::rotary_position(info.seqlen_cache, i, args.q_advances);
  for (std::int64_t head = 0; head < args.geometry.nheads_q; ++head) {
    const std::int64_t row = info.q_begin + i;
    const ConstHeadRow from{static_cast<const std::byte*>(args.context.tensors.q) +
                                args.q_strides.offset(b, row, head) * bytes,
                            args.q_strides.dim};
    const HeadRow to{args.q_rotated + args.q_rotated_strides.offset(b, row, head) * bytes,
                     args.q_rotated_strides.dim};
    if (i < info.seqlen_q) {
      rotate_head(args.rotary, args.dtype, from, to, args.geometry.headdim, position);
      continue;
    }
    for (std::int64_t d = 0; d < args.geometry.headdim; ++d) {
      store_scalar(args.dtype, to.data, d * to.stride, 0.0f);
    }
  }
}

RotaryTables rotary_tables(const AttentionProblem& problem, const AttentionTensors& tensors,
                           const AttentionGeometry& geometry) {
  RotaryTables tables;
  const TensorSpec& cos = problem.rotary_cos;
  const TensorSpec& sin = problem.rotary_sin;
  if (!cos.present()) return tables;
  tables.cos = tensors.rotary_cos;
  tables.sin = tensors.rotary_sin;
  tables.dtype = cos.dtype;
  for (std::size_t axis = 0; axis < 2; ++axis) {
    tables.cos_strides[axis] = cos.strides[axis];
    tables.sin_strides[axis] = sin.strides[axis];
  }
  tables.positions = cos.shape[0];
  tables.rotary_dim = geometry.rotary_dim;
  tables.interleaved = problem.rotary_interleaved;
  return tables;
}

/// The cache is an output of this pass, though it stands among the inputs of AttentionTensors.
std::byte* writable(const void* cache) {
  return const_cast<std::byte*>(static_cast<const std::byte*>(cache));
}

}  // namespace

AppendArgs::AppendArgs(const planner::LaunchContext& launch)
    : context(launch),
      geometry(launch.geometry),
      lengths(seqlen_source(launch.problem, launch.geometry, launch.tensors)),
      dtype(launch.problem.k.dtype),
      k_layout(kv_layout(launch.problem, launch.geometry, launch.problem.k, launch.tensors)),
      v_layout(kv_layout(launch.problem, launch.geometry, launch.problem.v, launch.tensors)),
      k_new_strides(row_strides(launch.problem.k_new)),
      v_new_strides(row_strides(launch.problem.v_new)),
      k(writable(launch.tensors.k)),
      v(writable(launch.tensors.v)),
      rotary(rotary_tables(launch.problem, launch.tensors, launch.geometry)),
      q_advances(launch.geometry.window.left != algorithm::kUnbounded ||
                 launch.geometry.window.right != algorithm::kUnbounded) {
  if (!launch.problem.q_rotated.present()) return;
  q_strides = row_strides(launch.problem.q);
  q_rotated_strides = row_strides(launch.problem.q_rotated);
  q_rotated = static_cast<std::byte*>(launch.tensors.q_rotated);
}

void append_rows(const AppendArgs& args, std::int64_t b, Range rows) {
  const SeqlenInfo info = algorithm::seqlen_info(args.lengths, b);
  const std::int64_t room = info.capacity_k - info.seqlen_cache;
  const Range tokens = algorithm::intersect(rows, {0, min_of(args.geometry.seqlen_new, room)});
  for (std::int64_t i = tokens.min; i < tokens.max; ++i) append_token(args, info, b, i);
  if (!args.rotates_q()) return;
  const Range queries = algorithm::intersect(rows, {0, info.capacity_q});
  for (std::int64_t i = queries.min; i < queries.max; ++i) rotate_query(args, info, b, i);
}

}  // namespace foveal::cpu
