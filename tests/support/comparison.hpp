// The accuracy rule of docs/numerics.md, applied to one output or gradient.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/workbench.hpp"

namespace foveal::test {

/// Limits of the dtype that q, k and v have. Every one of them has to hold; never an average alone.
struct AccuracyLimits {
  double relative_frobenius = 1e-5;
  double absolute = 0;         ///< On standard normal input; 0: no such limit (fp32).
  double baseline_factor = 2;  ///< Times the baseline's largest error ...
  double floor = 1e-5;         ///< ... plus this, for results of order 1; times larger ones.
};

[[nodiscard]] AccuracyLimits accuracy_limits(DType dtype);

/// The largest error of a row-major result.
[[nodiscard]] double largest_error(const std::vector<double>& expected,
                                   const std::vector<double>& actual);

/// The largest error: at most the limits' factor times `plain`, the baseline's, plus the floor; or
/// what one rounding to the operand's dtype costs. Messages of failures have the worst element, its
/// coordinates and both values.
[[nodiscard]] ::testing::AssertionResult compare_with_plain(const Operand& actual,
                                                            const std::vector<double>& expected,
                                                            double plain,
                                                            const AccuracyLimits& limits);

/// The Frobenius norm of the error.
[[nodiscard]] ::testing::AssertionResult compare_norm(const Operand& actual,
                                                      const std::vector<double>& expected,
                                                      const AccuracyLimits& limits);

/// Each element's error.
[[nodiscard]] ::testing::AssertionResult compare_absolute(const Operand& actual,
                                                          const std::vector<double>& expected,
                                                          const AccuracyLimits& limits);

/// lse: scores are fp32 whatever the inputs are, so its error is fp32's, 1e-5 of 1 + |lse| for
/// scores of the default scale. `relative` is larger for larger ones, and for those of rotated
/// keys, which are as exact as the dtype that the cache holds them in.
inline constexpr double kLseLimit = 1e-5;
[[nodiscard]] ::testing::AssertionResult compare_lse(const Operand& actual,
                                                     const std::vector<double>& expected,
                                                     double relative = kLseLimit);

/// Each element within one rounding of the expected value (and `slack` more), where the arithmetic
/// is a few fp32 operations: rotary embedding, merge.
[[nodiscard]] ::testing::AssertionResult compare_rounded(const Operand& actual,
                                                         const std::vector<double>& expected,
                                                         double slack);

/// The same bits in every element of two operands of one shape and dtype.
[[nodiscard]] ::testing::AssertionResult same_bits(const Operand& a, const Operand& b);

/// Every element of `a` is that of `b` but for roundings, which are of the size of the largest.
[[nodiscard]] ::testing::AssertionResult same_but_roundings(const Operand& a, const Operand& b);

}  // namespace foveal::test
