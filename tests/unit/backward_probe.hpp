// The probes of the backward's fault tests. The gradient probe is q = 0 and dout = 1: then dv[j] is
// the sum over the queries that see j of 1 / (keys that the query sees).
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/built_case.hpp"

namespace foveal::test {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline Case backward_case(std::vector<SeqLens> lens, std::int64_t headdim) {
  Case c;
  c.kernel = "cpu_blocked_bwd";
  c.pass = Pass::kBackward;
  c.lens = std::move(lens);
  c.headdim = headdim;
  c.num_threads = 2;
  return c;
}

inline Case packed_case(std::vector<SeqLens> lens, std::int64_t headdim) {
  Case c = backward_case(std::move(lens), headdim);
  c.q_form = QForm::kPacked;
  c.k_form = KForm::kPacked;
  return c;
}

/// New inputs are in place: out and lse anew, then the kernel.
inline void run_anew(BuiltCase& built) {
  built.compute_forward();
  built.bench.freeze();
  const Status status = built.run();
  ASSERT_TRUE(status.is_ok()) << status.message();
  EXPECT_TRUE(built.bench.check_memory());
}

inline void run_gradient_probe(BuiltCase& built) {
  built.fill_queries("q", [](auto...) { return 0.0; });
  built.fill_queries("dout", [](auto...) { return 1.0; });
  built.fill_keys("v", [](std::int64_t, std::int64_t j, std::int64_t, std::int64_t) {
    return static_cast<double>(j);
  });
  run_anew(built);
}

/// Every element of a gradient against a function of its coordinates.
inline void expect_values(const BuiltCase& built, const char* name, double tolerance,
                          const std::function<double(const Index&)>& expected) {
  const Operand& operand = built.bench.at(name);
  int failures = 0;
  for_each_index(operand.spec, [&](const Index& index) {
    if (failures > 3 || std::abs(operand.get(index) - expected(index)) <= tolerance) return;
    ++failures;
    ADD_FAILURE() << name << "[" << index[0] << ", " << index[1] << ", " << index[2] << ", "
                  << index[3] << "] is " << operand.get(index) << ", not " << expected(index);
  });
}

inline void expect_value(const BuiltCase& built, const char* name, double value,
                         double tolerance = 0) {
  expect_values(built, name, tolerance, [value](const Index&) { return value; });
}

inline void expect_finite(const BuiltCase& built, const char* name) {
  expect_value(built, name, 0, std::numeric_limits<double>::max());
}

}  // namespace foveal::test
