// The results of a file's forward and backward, and the problems that give them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <foveal/problem.hpp>
#include <foveal/status.hpp>

#include "tools/aligned_buffer.hpp"
#include "tools/attention_input.hpp"

namespace foveal::tools {

/// Which dimensions of a result, in the problem's order, are rows of q.
enum class RowAxes : std::uint8_t {
  kNone,      ///< dk, dv, dbias, dsinks, and the cache after an append.
  kLeading,   ///< out, dq: [batch, seqlen_q, ...] or [total_q, ...]
  kTrailing,  ///< lse: [batch, nheads_q, seqlen_q] or [nheads_q, total_q]
};

struct ResultTensor {
  std::string name;  ///< The operand's: "out".
  TensorSpec spec;
  RowAxes rows = RowAxes::kNone;
  bool heads_first = false;  ///< Its memory is [batch, heads, seqlen, dim].
  AlignedBuffer buffer;
};

struct AttentionResults {
  AttentionProblem forward;
  std::optional<AttentionProblem> backward;
  /// Of both: the inputs, and the results' memory. Where the pass appends, k and v are copies.
  AttentionTensors tensors;
  std::vector<ResultTensor> results;

  [[nodiscard]] const ResultTensor* find(std::string_view name) const;
};

/// out and lse; after an append k and v; with dout also dq, dk, dv, dsinks (with sinks) and dbias
/// (with a float bias). The problems and all that the host can read of their data are valid; float
/// results are NaN until a kernel writes them.
Result<AttentionResults> make_results(const AttentionInput& input);

/// The same without memory for the results, which nobody may then write: to plan and explain.
Result<AttentionResults> describe_results(const AttentionInput& input);

}  // namespace foveal::tools
