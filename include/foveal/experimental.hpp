// Parts whose form may change between minor versions.
#pragma once

#include <cstdint>
#include <vector>

#include <foveal/export.h>
#include <foveal/problem.hpp>
#include <foveal/status.hpp>

namespace foveal {

/// The fp64 oracle: attention straight from the formulas of docs/numerics.md, in double, reading
/// the same operands as a plan (CPU memory). Slow and plain on purpose, never dispatched to.
/// Results are contiguous, in the dimension order of problem.hpp; those not asked for are empty.
struct OracleResult {
  std::vector<double> out;  ///< [batch, seqlen_q, nheads_q, headdim_v] or [total_q, ...]
  std::vector<double> lse;  ///< [batch, nheads_q, seqlen_q] or [nheads_q, total_q]
  std::vector<double> dq, dk, dv, dbias, dsinks;
  std::vector<double> k_cache, v_cache, q_rotated;  ///< After an append.
};

struct OracleOptions {
  /// Rows of q to compute, as flat indices into [batch * seqlen_q] or [total_q]; empty: all. The
  /// other rows of out and lse are NaN. Forward only.
  std::vector<std::int64_t> rows;
  /// Backward: take out and lse from the tensors, as for one part of keys that are split over
  /// devices, in place of computing both in double.
  bool use_given_out_and_lse = false;
  std::int32_t num_threads = 0;  ///< 0: as many as the machine has.
};

/// Computes `problem` (any pass) without touching its output tensors.
[[nodiscard]] FOVEAL_API Result<OracleResult> oracle(const AttentionProblem& problem,
                                                     const AttentionTensors& tensors,
                                                     const OracleOptions& options = {});

}  // namespace foveal
