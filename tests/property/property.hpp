// A property as a test. RapidCheck's own macro fails where too few cases are taken by the kernels
// that are left; here it does so only where none is left out.
#pragma once

#include <sstream>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "support/test_kernels.hpp"

namespace foveal::test {

inline void check_property(void (*property)()) {
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  rc::detail::TestMetadata named;  // RC_PARAMS reproduces a failure by its id
  named.description = test.name();
  named.id = test.test_suite_name();
  named.id.append("/").append(named.description);
  const rc::detail::TestResult result = rc::detail::checkTestable(property, named);
  if (result.is<rc::detail::SuccessResult>()) return;
  std::ostringstream why;
  rc::detail::printResultMessage(result, why);
  if (result.is<rc::detail::GaveUpResult>() && kernels_are_filtered()) {
    GTEST_SKIP() << "FOVEAL_TEST_KERNELS leaves too few cases. " << why.str();
  }
  FAIL() << why.str();
}

}  // namespace foveal::test

#define FOVEAL_PROPERTY(Suite, Name)                               \
  void property_##Suite##_##Name();                                \
  TEST(Suite, Name) { check_property(property_##Suite##_##Name); } \
  void property_##Suite##_##Name()
