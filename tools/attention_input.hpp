// What `foveal run` computes: a safetensors file by the convention of docs/file-format.md, as a
// problem and its tensors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <foveal/problem.hpp>
#include <foveal/status.hpp>

#include "tools/aligned_buffer.hpp"
#include "tools/compute_options.hpp"
#include "tools/safetensors.hpp"

namespace foveal::tools {

struct AttentionInput {
  SafetensorsFile file;
  TensorLayout layout = TensorLayout::kBshd;
  /// A forward problem with the inputs alone: no out, no lse, nothing that only a backward takes.
  AttentionProblem problem;
  AttentionTensors tensors;
  TensorSpec dout, dlse;               ///< Of a backward; their data is in `tensors`.
  std::optional<DType> rounded_from;   ///< The file's type of q, where --dtype made it narrower.
  std::vector<AlignedBuffer> buffers;  ///< Of the tensors that aren't used where they lie.

  [[nodiscard]] bool heads_first() const { return layout == TensorLayout::kBhsd; }
  [[nodiscard]] bool has_backward() const { return dout.present(); }
};

/// Reads and checks the file's names, types and dimensions; validate() does the rest. `dtype` is
/// the type to convert the inputs to.
Result<AttentionInput> load_attention_input(const std::string& path, const ComputeOptions& flags,
                                            std::optional<DType> dtype);

/// `status` with the file's path before its message.
Status in_file(const std::string& path, const Status& status);

}  // namespace foveal::tools
