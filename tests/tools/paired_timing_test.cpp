#include "tools/paired_timing.hpp"

#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace foveal::tools {
namespace {

TEST(PairedTiming, SummarizesBothArms) {
  PairedTiming timing;
  timing.arm_a = {10, 12, 11};
  timing.arm_b = {14, 13, 15};
  const TimingSummary summary = summarize(timing);
  EXPECT_DOUBLE_EQ(summary.median_us, 12.5);
  EXPECT_DOUBLE_EQ(summary.min_us, 10);
  EXPECT_DOUBLE_EQ(summary.max_us, 15);
  EXPECT_DOUBLE_EQ(summary.quartile_1_us, 11.25);
  EXPECT_DOUBLE_EQ(summary.quartile_3_us, 13.75);
  EXPECT_DOUBLE_EQ(summary.median_a_us, 11);
  EXPECT_DOUBLE_EQ(summary.median_b_us, 14);
  EXPECT_DOUBLE_EQ(summary.noise, 3 / 12.5) << "the A/A difference is the larger part";
}

TEST(PairedTiming, ASpreadIsNoiseEvenWhereTheArmsAgree) {
  PairedTiming timing;
  timing.arm_a = timing.arm_b = {10, 20, 30};
  const TimingSummary summary = summarize(timing);
  EXPECT_DOUBLE_EQ(summary.median_a_us, summary.median_b_us);
  EXPECT_GT(summary.noise, 0.3);
  timing.arm_a = timing.arm_b = {20, 20, 20};
  EXPECT_EQ(summarize(timing).noise, 0);
}

TEST(PairedTiming, CountsCallsThroughAndGivesBothArmsTheirRounds) {
  std::vector<std::int64_t> numbers;
  const TimingSettings settings{.rounds = 4, .min_sample_ms = 0};
  const auto timing = time_in_turn(settings, clock_sampler([&](std::int64_t n) {
                                     numbers.push_back(n);
                                     return Status::ok();
                                   }));
  ASSERT_TRUE(timing);
  EXPECT_EQ(timing->calls_per_sample, 1);
  EXPECT_EQ(timing->arm_a.size(), 4u);
  EXPECT_EQ(timing->arm_b.size(), 4u);
  ASSERT_EQ(numbers.size(), 2u + 8u) << "two calls to warm up and calibrate, then one a sample";
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(numbers[i], static_cast<std::int64_t>(i));
  }
}

TEST(PairedTiming, RepeatsShortCallsUntilASampleIsLongEnough) {
  const TimingSettings settings{.rounds = 3, .min_sample_ms = 8};
  const auto timing = time_in_turn(settings, clock_sampler([](std::int64_t) {
                                     std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                     return Status::ok();
                                   }));
  ASSERT_TRUE(timing);
  EXPECT_GE(timing->calls_per_sample, 2);
  EXPECT_LE(timing->calls_per_sample, 8);
}

TEST(PairedTiming, StopsAtAnError) {
  int calls = 0;
  const auto timing =
      time_in_turn({}, clock_sampler([&](std::int64_t) {
                     return ++calls == 2 ? Status::internal("broken") : Status::ok();
                   }));
  ASSERT_FALSE(timing);
  EXPECT_EQ(timing.status().message(), "broken");
  EXPECT_EQ(calls, 2);
}

TEST(PairedTiming, TakesASamplersOwnTimes) {
  std::int64_t asked = 0;
  const auto timing = time_in_turn({.rounds = 3, .min_sample_ms = 1},
                                   [&](std::int64_t, std::int64_t calls) -> Result<double> {
                                     asked += calls;
                                     return 250.0;
                                   });
  ASSERT_TRUE(timing);
  EXPECT_EQ(timing->calls_per_sample, 4);
  EXPECT_EQ(timing->arm_a, std::vector<double>(3, 250.0));
  EXPECT_EQ(asked, 2 + 6 * 4);
}

}  // namespace
}  // namespace foveal::tools
