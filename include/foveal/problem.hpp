// The problem: what is to be computed, without a pointer in it. docs/numerics.md has the formulas.
//
//   foveal::AttentionProblem problem;
//   problem.q = TensorSpec::contiguous(DType::kFloat16, {batch, 1, 32, 128});
//   problem.k = problem.v = TensorSpec::contiguous(DType::kFloat16, {batch, capacity, 8, 128});
//   problem.out = problem.q;
//   problem.seqused_k = TensorSpec::contiguous(DType::kInt32, {batch});
//   problem.causal = true;
//
// Shapes (dimensions in this order, any strides):
//   q, out, dout, dq           [batch, seqlen_q, nheads_q, headdim or headdim_v]   dense
//                              [total_q, nheads_q, ...]               packed, with cu_seqlens_q
//   k, v, dk, dv               [batch, seqlen_k, nheads_k, ...]       dense, or a cache of capacity
//                                                                     seqlen_k with seqused_k
//                              [total_k, nheads_k, ...]               packed, with cu_seqlens_k
//                              [num_pages, page_size, nheads_k, ...]  paged, with block_table
//   lse, dlse                  fp32 [batch, nheads_q, seqlen_q], packed [nheads_q, total_q]
//   bias, dbias                [batch or 1, nheads_q or 1, seqlen_q or 1, seqlen_k or 1], in q's
//                              dtype or fp32; a bias of kBool is a mask (0 masks the key)
//   sinks, dsinks              fp32 [nheads_q]
//   alibi_slopes               fp32 [nheads_q] or [batch, nheads_q]
//   cu_seqlens_q, cu_seqlens_k int32 [batch + 1]
//   seqused_q, seqused_k, leftpad_k, cache_batch_idx   int32 [batch]
//   block_table                int32 [batch, max_pages]; entries past a sequence's pages are unused
//   k_new, v_new               [batch, seqlen_new, nheads_k, ...]: tokens to append to the cache at
//                              seqused_k[b] before attending
//   rotary_cos, rotary_sin     [positions, rotary_dim / 2], q's dtype or fp32
//   q_rotated                  as q: where an append pass leaves the rotated q
//   out_a, out_b, lse_a, lse_b as out and lse: the parts of a merge pass
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <foveal/export.h>
#include <foveal/status.hpp>
#include <foveal/tensor.hpp>

namespace foveal {

/// What a plan computes.
enum class Pass : std::int32_t {
  kForward = 0,   ///< out (and lse) from q, k, v; appends k_new and v_new first where given.
  kBackward = 1,  ///< dq, dk, dv (and dbias, dsinks) from q, k, v, out, lse, dout (and dlse).
  kAppend = 2,    ///< k_new and v_new into the cache, with rotary embedding of k_new and q.
  kMerge = 3,     ///< out and lse of the union of two disjoint sets of keys, from both parts.
};

/// "forward", "backward", "append", "merge".
[[nodiscard]] FOVEAL_API const char* pass_name(Pass pass);

struct AttentionProblem {
  Pass pass = Pass::kForward;

  TensorSpec q, k, v, out, lse;
  TensorSpec dout, dlse, dq, dk, dv;
  TensorSpec bias, dbias, sinks, dsinks, alibi_slopes;
  TensorSpec cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k;
  TensorSpec block_table, cache_batch_idx;
  TensorSpec k_new, v_new, rotary_cos, rotary_sin, q_rotated;
  TensorSpec out_a, lse_a, out_b, lse_b;

  /// Upper bounds of the packed lengths; 0 takes the total. They shape the plan, not the result.
  std::int64_t max_seqlen_q = 0;
  std::int64_t max_seqlen_k = 0;

  std::optional<float> softmax_scale;  ///< Absent: 1 / sqrt(headdim).
  float softcap = 0;                   ///< 0 is off.
  float dropout_p = 0;                 ///< Probability to drop, in [0, 1].
  std::int64_t window_size_left = -1;  ///< Keys left of the diagonal that a row sees; -1: all.
  std::int64_t window_size_right = -1;
  bool causal = false;              ///< Bottom-right aligned; the same as window right 0.
  bool rotary_interleaved = false;  ///< Pairs (2i, 2i+1); false: (i, i + rotary_dim / 2).
  bool deterministic = false;       ///< Every output bitwise equal from run to run.
  bool batch_invariant = false;     ///< A sequence's bits don't depend on its batch.

  bool operator==(const AttentionProblem&) const = default;
};

/// The data of a problem's operands, same names. Null for operands that the problem lacks, and
/// allowed for operands without elements. `k` and `v` are written when the pass appends.
struct AttentionTensors {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void *out = nullptr, *lse = nullptr;
  const void *dout = nullptr, *dlse = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  const void* bias = nullptr;
  void* dbias = nullptr;
  const void* sinks = nullptr;
  void* dsinks = nullptr;
  const void* alibi_slopes = nullptr;
  const void *cu_seqlens_q = nullptr, *cu_seqlens_k = nullptr;
  const void *seqused_q = nullptr, *seqused_k = nullptr, *leftpad_k = nullptr;
  const void *block_table = nullptr, *cache_batch_idx = nullptr;
  const void *k_new = nullptr, *v_new = nullptr;
  const void *rotary_cos = nullptr, *rotary_sin = nullptr;
  void* q_rotated = nullptr;
  const void *out_a = nullptr, *lse_a = nullptr, *out_b = nullptr, *lse_b = nullptr;

  /// Of the dropout mask. Where a pointer is given the value is read from it when the kernel runs
  /// (device memory on a GPU), so that a captured graph draws anew at each replay.
  std::uint64_t dropout_seed = 0, dropout_offset = 0;
  const std::uint64_t *dropout_seed_ptr = nullptr, *dropout_offset_ptr = nullptr;
};

/// One operand: its name and where the problem and the tensors keep it. Exactly one of `input`
/// and `output` is set; out and lse are outputs of a forward pass and are read by a backward one.
struct OperandInfo {
  const char* name;
  TensorSpec AttentionProblem::*spec;
  const void* AttentionTensors::*input;
  void* AttentionTensors::*output;

  [[nodiscard]] const void* data(const AttentionTensors& tensors) const {
    return input ? tensors.*input : tensors.*output;
  }
};

/// All operands in the order of the structs.
[[nodiscard]] FOVEAL_API std::span<const OperandInfo> operands();

/// Checks everything that can be known without data: shapes against each other, dtypes, options.
/// One clause, one message. The planner calls it; callers need not.
[[nodiscard]] FOVEAL_API Status validate(const AttentionProblem& problem);

/// Checks what only host-readable data can tell: null pointers, cu_seqlens, seqused, block_table,
/// rotary positions. CPU launches call it before any work.
[[nodiscard]] FOVEAL_API Status validate(const AttentionProblem& problem,
                                         const AttentionTensors& tensors);

/// One line: `forward fp16 b1 q[1, 1, 32, 128] k[1, 8192, 8, 128] causal lse`.
[[nodiscard]] FOVEAL_API std::string to_string(const AttentionProblem& problem);

/// Work and traffic of a problem: what a roofline needs.
struct AttentionWork {
  double visible_pairs = 0;  ///< (query, key) pairs over all query heads.
  double flops = 0;          ///< 2 * (headdim + headdim_v) a pair forward, 2.5 times that backward.
  double read_bytes = 0;     ///< Each operand that is needed, once.
  double written_bytes = 0;
};

/// With `tensors`: from the lengths in host memory. Without: from capacities and max_seqlen.
[[nodiscard]] FOVEAL_API AttentionWork attention_work(const AttentionProblem& problem,
                                                      const AttentionTensors* tensors = nullptr);

}  // namespace foveal
