// A result against a reference, element by element.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <foveal/problem.hpp>

#include "tools/attention_results.hpp"

namespace foveal::tools {

/// Which rows of q count: those before seqused_q, as flat rows of [batch, seqlen_q] or [total_q].
std::vector<bool> rows_in_use(const AttentionProblem& problem, const AttentionTensors& tensors);

struct ErrorStats {
  std::int64_t compared = 0;    ///< Elements.
  double relative = 0;          ///< ||result - reference|| / ||reference||, Frobenius.
  double max_abs = 0;           ///< Largest |result - reference|.
  double max_reference = 0;     ///< Largest |reference|.
  std::int64_t not_finite = 0;  ///< Elements where only one is finite, or the infinities differ.
  std::vector<std::int64_t> worst;  ///< Where max_abs is, or the first that isn't finite.
};

/// `data` as `result` describes it, `reference` row-major in the same shape. NaN equals NaN, and
/// infinities of one sign are equal: neither enters the norms. Rows that are false in `rows` are
/// left out.
ErrorStats compare(const ResultTensor& result, std::span<const double> data,
                   std::span<const double> reference, const std::vector<bool>& rows);

}  // namespace foveal::tools
