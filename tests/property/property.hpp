// A property as a test. RapidCheck's own macro fails where too few cases are taken by the kernels
// that are left; here that is so only where all of them are.
#pragma once

#include <sstream>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>  // after gtest.h, which it needs

#include "support/test_kernels.hpp"

namespace foveal::test {

template <class Property>
void check_property(Property&& property) {
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  rc::detail::TestMetadata metadata;
  metadata.id = std::string(test.test_suite_name()) + "/" + test.name();
  metadata.description = test.name();
  const rc::detail::TestResult result =
      rc::detail::checkTestable(std::forward<Property>(property), metadata);
  std::ostringstream text;
  rc::detail::printResultMessage(result, text);
  if (result.is<rc::detail::SuccessResult>()) return;
  if (result.is<rc::detail::GaveUpResult>() && kernels_are_filtered()) {
    GTEST_SKIP() << "FOVEAL_TEST_KERNELS leaves too few cases. " << text.str();
  }
  FAIL() << text.str();
}

}  // namespace foveal::test

#define FOVEAL_PROPERTY(Suite, Name)                               \
  void property_##Suite##_##Name();                                \
  TEST(Suite, Name) { check_property(property_##Suite##_##Name); } \
  void property_##Suite##_##Name()
