// Times one thing twice, turn by turn: the difference between the two is what the machine's noise
// does to a comparison (an A/A run).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <foveal/status.hpp>

namespace foveal::tools {

struct TimingSettings {
  std::int64_t rounds = 9;      ///< Samples of each arm.
  double min_sample_ms = 20.0;  ///< A sample repeats the call until it takes so long.
};

/// Times of one call in microseconds.
struct PairedTiming {
  std::vector<double> arm_a;  ///< In the order taken.
  std::vector<double> arm_b;
  std::int64_t calls_per_sample = 0;
};

/// Microseconds a call, over `calls` calls (or a few more) from number `first` on. Calls of both
/// arms are counted together, so that a caller can rotate over buffers.
using Sampler = std::function<Result<double>(std::int64_t first, std::int64_t calls)>;

Result<PairedTiming> time_in_turn(const TimingSettings& settings, const Sampler& sample);

/// By the clock: `call(n)` runs the n-th call of all.
Sampler clock_sampler(std::function<Status(std::int64_t)> call);

/// What a comparison needs to know of a set of times.
struct TimingSummary {
  double median_us = 0;
  double min_us = 0;
  double max_us = 0;
  double quartile_1_us = 0;
  double quartile_3_us = 0;
  double median_a_us = 0;
  double median_b_us = 0;
  /// Relative: the larger of the A/A difference and twice the standard error of the median.
  double noise = 0;
};

TimingSummary summarize(const PairedTiming& timing);

}  // namespace foveal::tools
