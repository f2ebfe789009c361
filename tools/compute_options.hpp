// What is computed besides the tensors: causal, scale, windows, dropout, ... The same options come
// from a file's metadata (`window_size_left`) and from flags (`--window-size-left`), by one table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <foveal/problem.hpp>
#include <foveal/status.hpp>

#include "tools/safetensors.hpp"

namespace CLI {
class App;
}

namespace foveal::tools {

/// The order of dimensions in a file.
enum class TensorLayout : std::uint8_t {
  kBshd,  ///< [batch, seqlen, heads, dim]
  kBhsd,  ///< [batch, heads, seqlen, dim]
  kThd,   ///< [total, heads, dim], packed
};

std::string_view tensor_layout_name(TensorLayout layout);

/// Absent: not said.
struct ComputeOptions {
  std::optional<TensorLayout> layout;
  std::optional<bool> causal, rotary_interleaved, deterministic, batch_invariant;
  std::optional<float> softmax_scale, softcap, dropout_p;
  std::optional<std::int64_t> window_size_left, window_size_right;
  std::optional<std::uint64_t> dropout_seed, dropout_offset;
  std::optional<std::int64_t> max_seqlen;  ///< Of queries and keys, where they are packed.
};

/// The options among a file's metadata; other metadata is left alone. `source` begins a message.
Result<ComputeOptions> options_from_metadata(const SafetensorsMetadata& metadata,
                                             const std::string& source);

/// A flag for each option, and `--window L,R` for both sides. `options` must outlive the parsing.
void add_compute_flags(CLI::App& command, ComputeOptions& options);

/// `flags` where they say something, else `metadata`.
ComputeOptions overlay(const ComputeOptions& flags, const ComputeOptions& metadata);

/// All but the layout.
void apply_options(const ComputeOptions& options, AttentionProblem& problem,
                   AttentionTensors& tensors);

}  // namespace foveal::tools
