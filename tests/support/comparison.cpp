#include "support/comparison.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace foveal::test {
namespace {

std::string coordinates(const TensorSpec& spec, std::size_t flat) {
  Index index{};
  auto rest = static_cast<std::int64_t>(flat);
  for (std::size_t axis = static_cast<std::size_t>(spec.rank); axis-- > 0;) {
    index[axis] = rest % spec.shape[axis];
    rest /= spec.shape[axis];
  }
  std::string text = "[";
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(spec.rank); ++axis) {
    text += (axis > 0 ? ", " : "") + std::to_string(index[axis]);
  }
  return text + "]";
}

/// Distance of two values: 0 where both are the same infinity, infinite where only one is finite.
double distance(double expected, double actual) {
  if (expected == actual) return 0;
  const double difference = std::abs(expected - actual);
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

struct Errors {
  double largest = 0;
  double norm = 0;  ///< Frobenius, of the error
  double expected_norm = 0;
  double largest_expected = 0;
  std::size_t worst = 0;
};

Errors measure(const std::vector<double>& expected, const std::vector<double>& actual) {
  Errors errors;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = distance(expected[i], actual[i]);
    errors.norm += error * error;
    if (std::isfinite(expected[i])) {
      errors.expected_norm += expected[i] * expected[i];
      errors.largest_expected = std::max(errors.largest_expected, std::abs(expected[i]));
    }
    if (error > errors.largest) {
      errors.largest = error;
      errors.worst = i;
    }
  }
  errors.norm = std::sqrt(errors.norm);
  errors.expected_norm = std::sqrt(errors.expected_norm);
  return errors;
}

::testing::AssertionResult failure_at(const Operand& actual, const std::vector<double>& expected,
                                      std::size_t worst) {
  const std::vector<double> values = actual.values();
  ::testing::AssertionResult failure = ::testing::AssertionFailure();
  failure.operator<<(actual.info->name) << coordinates(actual.spec, worst);
  failure << ": expected " << expected[worst] << ", got " << values[worst] << " (error "
          << distance(expected[worst], values[worst]) << ")";
  return failure;
}

::testing::AssertionResult wrong_size(const Operand& actual, const std::vector<double>& expected) {
  return ::testing::AssertionFailure() << actual.info->name << " has " << actual.spec.numel()
                                       << " elements, the reference " << expected.size();
}

/// Operands that lie alike in the same bytes: a comparison of millions of elements in no time.
bool same_storage(const Operand& a, const Operand& b) {
  return a.spec == b.spec && a.origin == b.origin && a.memory.size() == b.memory.size() &&
         std::memcmp(a.memory.data(), b.memory.data(), a.memory.size()) == 0;
}

}  // namespace

AccuracyLimits accuracy_limits(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return {.relative_frobenius = 0.005, .absolute = 0.05};
    case DType::kBFloat16: return {.relative_frobenius = 0.01, .absolute = 0.05};
    default: return {};
  }
}

double largest_error(const std::vector<double>& expected, const std::vector<double>& actual) {
  return measure(expected, actual).largest;
}

::testing::AssertionResult compare_with_plain(const Operand& actual,
                                              const std::vector<double>& expected, double plain,
                                              const AccuracyLimits& limits) {
  const std::vector<double> values = actual.values();
  if (values.size() != expected.size()) return wrong_size(actual, expected);
  const double most = limits.baseline_factor * plain +
                      limits.floor * std::max(1.0, measure(expected, values).largest_expected);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double allowed = std::max(most, 1.01 * half_ulp(actual.spec.dtype, expected[i]));
    if (!(distance(expected[i], values[i]) <= allowed)) {
      return failure_at(actual, expected, i)
             << ", at most " << allowed << ": the plain path's largest is " << plain;
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult compare_norm(const Operand& actual, const std::vector<double>& expected,
                                        const AccuracyLimits& limits) {
  const std::vector<double> values = actual.values();
  if (values.size() != expected.size()) return wrong_size(actual, expected);
  const Errors errors = measure(expected, values);
  // An error below the rule's own floor is none, however small the values, and nothing has a share
  // of a norm of 0: there compare_with_plain alone says what is too much.
  if (errors.expected_norm == 0) return ::testing::AssertionSuccess();
  const double most = limits.relative_frobenius * errors.expected_norm;
  if (errors.largest <= limits.floor || errors.norm <= most) return ::testing::AssertionSuccess();
  return failure_at(actual, expected, errors.worst)
         << "; relative Frobenius error " << errors.norm / errors.expected_norm << ", at most "
         << limits.relative_frobenius;
}

::testing::AssertionResult compare_absolute(const Operand& actual,
                                            const std::vector<double>& expected,
                                            const AccuracyLimits& limits) {
  const std::vector<double> values = actual.values();
  if (values.size() != expected.size()) return wrong_size(actual, expected);
  for (std::size_t i = 0; limits.absolute > 0 && i < values.size(); ++i) {
    // A gradient may be so large that to store it costs more.
    const double allowed =
        std::max(limits.absolute, 1.01 * half_ulp(actual.spec.dtype, expected[i]));
    if (!(distance(expected[i], values[i]) <= allowed)) {
      return failure_at(actual, expected, i) << ", at most " << allowed;
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult compare_lse(const Operand& actual, const std::vector<double>& expected,
                                       double relative) {
  const std::vector<double> values = actual.values();
  if (values.size() != expected.size()) return wrong_size(actual, expected);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double allowed = std::isfinite(expected[i]) ? relative * (1 + std::abs(expected[i])) : 0;
    if (!(distance(expected[i], values[i]) <= allowed)) {
      return failure_at(actual, expected, i) << ", at most " << allowed;
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult compare_rounded(const Operand& actual,
                                           const std::vector<double>& expected, double slack) {
  const std::vector<double> values = actual.values();
  if (values.size() != expected.size()) return wrong_size(actual, expected);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double allowed = 1.01 * half_ulp(actual.spec.dtype, expected[i]) + slack;
    if (!(distance(expected[i], values[i]) <= allowed)) {
      return failure_at(actual, expected, i) << ", at most " << allowed;
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult same_bits(const Operand& a, const Operand& b) {
  if (same_storage(a, b)) return ::testing::AssertionSuccess();
  if (a.spec.dtype != b.spec.dtype || a.spec.numel() != b.spec.numel()) {
    return ::testing::AssertionFailure() << a.info->name << ": different shapes or dtypes";
  }
  std::vector<Index> places;
  for_each_index(b.spec, [&](const Index& index) { places.push_back(index); });
  const auto width = static_cast<std::size_t>(dtype_bytes(a.spec.dtype));
  ::testing::AssertionResult result = ::testing::AssertionSuccess();
  std::size_t flat = 0;
  for_each_index(a.spec, [&](const Index& index) {
    const Index& other = places[flat++];
    const auto* bytes_a = static_cast<const std::byte*>(a.data()) +
                          offset_of(a.spec, index) * static_cast<std::int64_t>(width);
    const auto* bytes_b = static_cast<const std::byte*>(b.data()) +
                          offset_of(b.spec, other) * static_cast<std::int64_t>(width);
    if (result && std::memcmp(bytes_a, bytes_b, width) != 0) {
      result = ::testing::AssertionFailure()
               << a.info->name << coordinates(a.spec, flat - 1) << ": " << a.get(index) << " and "
               << b.get(other) << " differ";
    }
  });
  return result;
}

::testing::AssertionResult same_but_roundings(const Operand& a, const Operand& b) {
  double largest = 0;
  double distance = 0;
  for_each_index(a.spec, [&](const Index& index) {
    largest = std::max(largest, std::abs(b.get(index)));
    distance = std::max(distance, std::abs(a.get(index) - b.get(index)));
  });
  if (distance <= largest / 64) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << a.info->name << ": " << distance << " apart where the largest is " << largest;
}

}  // namespace foveal::test
