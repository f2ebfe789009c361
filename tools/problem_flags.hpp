// A problem from flags alone, for `foveal explain`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <foveal/problem.hpp>
#include <foveal/status.hpp>

#include "tools/compute_options.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace foveal::tools {

struct ProblemFlags {
  std::string pass = "forward";
  std::string dtype = "fp16";
  std::string out_dtype;  ///< Empty: as dtype.
  std::string bias = "none";
  std::int64_t batch = -1;     ///< -1: 1.
  std::int64_t seqlen_q = -1;  ///< -1: as seqlen_k.
  std::int64_t seqlen_k = -1;  ///< -1: as seqlen_q, 1024 at least.
  std::int64_t nheads_q = 16;
  std::int64_t nheads_k = -1;  ///< -1: as nheads_q.
  std::int64_t headdim = 128;
  std::int64_t headdim_v = -1;  ///< -1: as headdim.
  std::int64_t page_size = 0;
  std::int64_t seqlen_new = 0;
  std::int64_t rotary_dim = 0;
  std::vector<std::int64_t> doc_lens;    ///< Packed documents: their queries, and keys where
  std::vector<std::int64_t> doc_lens_k;  ///< these are not given.
  bool varlen = false;                   ///< Packed: `batch` documents of seqlen_q and seqlen_k.
  bool lse = false;
  bool seqused_k = false;
  bool sinks = false;
  bool alibi = false;
};

/// Returns the options, so that a command can tell which were given.
std::vector<const CLI::Option*> add_problem_flags(CLI::App& command, ProblemFlags& flags);

struct FlagProblem {
  AttentionProblem problem;
  /// Packed lengths as cu_seqlens, for the work of exactly these documents.
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k;
};

/// `options` are those of add_compute_flags().
Result<FlagProblem> problem_from_flags(const ProblemFlags& flags, const ComputeOptions& options);

}  // namespace foveal::tools
