#include "tools/paired_timing.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

namespace foveal::tools {
namespace {

using Clock = std::chrono::steady_clock;

/// Linear interpolation between the order statistics of sorted values.
double quantile(const std::vector<double>& sorted, double fraction) {
  if (sorted.empty()) return 0;
  const double place = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = place - static_cast<double>(below);
  return sorted[below] * (1 - weight) + sorted[above] * weight;
}

std::vector<double> sorted(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values;
}

}  // namespace

Sampler clock_sampler(std::function<Status(std::int64_t)> call) {
  return [call = std::move(call)](std::int64_t first, std::int64_t calls) -> Result<double> {
    const auto begin = Clock::now();
    for (std::int64_t n = 0; n < calls; ++n) FOVEAL_RETURN_IF_ERROR(call(first + n));
    const std::chrono::duration<double, std::micro> time = Clock::now() - begin;
    return time.count() / static_cast<double>(calls);
  };
}

Result<PairedTiming> time_in_turn(const TimingSettings& settings, const Sampler& sample) {
  constexpr double kMaxCalls = 1e6;
  PairedTiming timing;
  std::int64_t next = 0;
  FOVEAL_ASSIGN_OR_RETURN(cold_us, sample(next++, 1));
  FOVEAL_ASSIGN_OR_RETURN(warm_us, sample(next++, 1));
  const double call_us = std::max(std::min(cold_us, warm_us), 1e-3);
  const double calls =
      std::clamp(std::ceil(settings.min_sample_ms * 1e3 / call_us), 1.0, kMaxCalls);
  timing.calls_per_sample = static_cast<std::int64_t>(calls);
  for (std::int64_t round = 0; round < settings.rounds; ++round) {
    for (std::int64_t turn = 0; turn < 2; ++turn) {
      FOVEAL_ASSIGN_OR_RETURN(time_us, sample(next, timing.calls_per_sample));
      next += timing.calls_per_sample;
      // A, B, then B, A: neither arm is always the first.
      const bool is_a = (round + turn) % 2 == 0;
      (is_a ? timing.arm_a : timing.arm_b).push_back(time_us);
    }
  }
  return timing;
}

TimingSummary summarize(const PairedTiming& timing) {
  // Of a normal distribution: the quartiles lie 1.349 deviations apart, and the median's standard
  // error is 1.253 of the mean's.
  constexpr double kQuartilesApart = 1.349;
  constexpr double kMedianError = 1.253;
  std::vector<double> all = timing.arm_a;
  all.insert(all.end(), timing.arm_b.begin(), timing.arm_b.end());
  all = sorted(std::move(all));
  TimingSummary summary;
  if (all.empty()) return summary;
  summary.median_us = quantile(all, 0.5);
  summary.min_us = all.front();
  summary.max_us = all.back();
  summary.quartile_1_us = quantile(all, 0.25);
  summary.quartile_3_us = quantile(all, 0.75);
  summary.median_a_us = quantile(sorted(timing.arm_a), 0.5);
  summary.median_b_us = quantile(sorted(timing.arm_b), 0.5);
  const double deviation = (summary.quartile_3_us - summary.quartile_1_us) / kQuartilesApart;
  const double error = 2 * kMedianError * deviation / std::sqrt(static_cast<double>(all.size()));
  const double difference = std::abs(summary.median_a_us - summary.median_b_us);
  summary.noise = std::max(difference, error) / summary.median_us;
  return summary;
}

}  // namespace foveal::tools
