// The arguments that forward, backward and the cache operator share, and what they mean for a
// problem. Checks are the engine's.
#pragma once

#include <cstdint>
#include <optional>

#include <foveal/problem.hpp>

#include "operand.hpp"
#include "stack.hpp"

namespace foveal::python {

/// The numbers are those of foveal._torch_library.Causal.
enum class Causal : std::int64_t {
  kNo = 0,
  kBottomRight = 1,
  kTopLeft = 2,  ///< PyTorch's is_causal: row i sees keys j <= i, whatever the lengths.
};

/// In the schema: `Tensor? bias, ..., bool batch_invariant`.
struct Options {
  OptionalTensor bias, sinks, alibi_slopes;
  OptionalTensor cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k;
  OptionalTensor leftpad_k, block_table, cache_batch_idx;
  OptionalTensor dropout_state;  ///< int64 [2]: seed and offset, read when the kernel runs.
  std::int64_t max_seqlen_q = 0, max_seqlen_k = 0;
  std::optional<double> softmax_scale;
  double softcap = 0, dropout_p = 0;
  std::int64_t window_size_left = -1, window_size_right = -1;
  Causal causal = Causal::kNo;
  Layout layout = Layout::kBshd;
  bool deterministic = false, batch_invariant = false;
};

#define FOVEAL_TORCH_OPTIONS                                                                 \
  "Tensor? bias, Tensor? sinks, Tensor? alibi_slopes, "                                      \
  "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? seqused_q, Tensor? seqused_k, "       \
  "Tensor? leftpad_k, Tensor? block_table, Tensor? cache_batch_idx, Tensor? dropout_state, " \
  "SymInt max_seqlen_q, SymInt max_seqlen_k, float? softmax_scale, float softcap, "          \
  "float dropout_p, SymInt window_size_left, SymInt window_size_right, int causal, "         \
  "bool bhsd, bool deterministic, bool batch_invariant"

Options read_options(ArgumentReader& arguments);

/// Puts the options, and the operands and data that come with them, into a problem whose q and k
/// (and dq ... dbias, where it has them) are set.
void apply_options(const Options& options, const Tensor& anchor, AttentionProblem& problem,
                   AttentionTensors& tensors);

/// True where PyTorch's causal rule leaves keys at the end that no row sees; the problem is cut to
/// the keys before them.
[[nodiscard]] bool drops_last_keys(Causal causal, const AttentionProblem& problem);

}  // namespace foveal::python
