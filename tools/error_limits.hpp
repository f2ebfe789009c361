// How far a result may be from a reference: by the type it is computed in and the size of what is
// added up. `foveal run --help` states the rule.
#pragma once

#include <span>
#include <string_view>

#include <foveal/problem.hpp>
#include <foveal/tensor.hpp>

#include "tools/attention_results.hpp"
#include "tools/compare_results.hpp"

namespace foveal::tools {

/// Sizes that rounding errors are proportional to.
struct ErrorScales {
  /// Of the scores that count: the larger of softmax_scale times the largest row norms of q and k,
  /// and of the largest |lse|, which a bias can make large.
  double score = 0;
  double value = 0;  ///< Largest |v|: of the terms of out.
  double dout = 0;   ///< Largest |dout|: of the terms of dv.
  double ds = 0;     ///< Bound of |dout.out| + |dlse|: of the terms of dsinks and dbias.
  double dq = 0;     ///< Of the terms of dq: softmax_scale * ds * largest |k|.
  double dk = 0;     ///< Of the terms of dk: softmax_scale * ds * largest |q|.
};

/// From the inputs and the oracle's out and lse; what isn't finite is left out.
ErrorScales error_scales(const AttentionResults& results, std::span<const double> out,
                         std::span<const double> lse);

struct ErrorLimits {
  double relative;  ///< Of ErrorStats::relative; infinite for lse, whose zero is arbitrary.
  double max_abs;   ///< Of ErrorStats::max_abs.
  double
      vanishing;  ///< A reference that is nowhere larger is rounding noise: so may the result be.
};

/// `dtype` is that of q, k and v.
ErrorLimits error_limits(std::string_view result, DType dtype, const ErrorScales& scales,
                         double max_reference);

bool within(const ErrorStats& stats, const ErrorLimits& limits);

/// The rule in words, for --help.
extern const char* const kErrorRule;

}  // namespace foveal::tools
