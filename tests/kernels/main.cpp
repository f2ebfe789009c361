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

void register_replay(const char* line) {
  ::testing::RegisterTest("Replay", "Line", nullptr, nullptr, __FILE__, __LINE__,
                          [line]() -> Replay* { return new Replay(line); });
}

}  // namespace
}  // namespace foveal::test

int main(int argc, char** argv) {
  // Before the command line is read, so that a filter given there still wins.
  if (const char* line = std::getenv("FOVEAL_REPLAY"); line != nullptr) {
    foveal::test::register_replay(line);
    GTEST_FLAG_SET(filter, "Replay.*");
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
