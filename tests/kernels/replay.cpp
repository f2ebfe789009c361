// FOVEAL_REPLAY='<line>' runs one case and nothing else: the line that a failing test printed.
#include <cstdlib>

#include <gtest/gtest.h>

#include "kernels/kernel_case_test.hpp"

namespace foveal::test {
namespace {

class Replay : public ::testing::Test {
 public:
  explicit Replay(const char* line) : line_(line) {}

  void TestBody() override {
    std::string error;
    const std::optional<Case> c = parse_case(line_, error);
    ASSERT_TRUE(c) << error;
    expect_case(*c);
  }

 private:
  const char* line_;
};

/// Before main() reads the command line, so that a filter given there still wins.
const bool registered = [] {
  const char* line = std::getenv("FOVEAL_REPLAY");
  if (line == nullptr) return false;
  ::testing::RegisterTest("Replay", "Line", nullptr, nullptr, __FILE__, __LINE__,
                          [line]() -> Replay* { return new Replay(line); });
  GTEST_FLAG_SET(filter, "Replay.*");
  return true;
}();

}  // namespace
}  // namespace foveal::test
