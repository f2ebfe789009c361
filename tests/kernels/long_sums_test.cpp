// Sums over tens of thousands of keys or rows are as exact as short ones: some units truncate as
// they accumulate, and what each step loses has one sign.
#include <gtest/gtest.h>

#include "fault_probe.hpp"

namespace foveal::test {
namespace {

TEST(LongSums, ForwardOverKeys) {
  const Case c{.lens = {{3, 20'000}}, .group = 2};
  for_each_kernel(c, kAllDtypes, [](BuiltCase&) {});
}

TEST(LongSums, BackwardOverKeys) {
  const Case c{.pass = Pass::kBackward, .lens = {{3, 20'000}}, .group = 2};
  for_each_kernel(c, kAllDtypes, [](BuiltCase&) {});
}

TEST(LongSums, BackwardOverRows) {
  const Case c{.pass = Pass::kBackward, .lens = {{20'000, 3}}, .group = 2};
  for_each_kernel(c, kAllDtypes, [](BuiltCase&) {});
}

}  // namespace
}  // namespace foveal::test
