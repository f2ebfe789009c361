#include "tools/measure_machine.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <system_error>
#include <thread>
#include <vector>

#include "tools/aligned_buffer.hpp"

// Vectors of a size known to the compiler alone, since they are kept in arrays.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/measure_machine.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace foveal::tools::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// A block of the product: 12 accumulators hide the latency of two multiply-adds a cycle and leave
/// room for operands among 16 registers.
constexpr std::size_t kRows = 6;
constexpr std::size_t kVectors = 2;
constexpr std::size_t kDepth = 256;

/// C += A * B for one block, `times` over: A [kDepth, kRows] and B [kDepth, kVectors * lanes] stay
/// in the L1 cache. Returns the multiply-adds done, in FLOP.
double multiply_block(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
                      float* HWY_RESTRICT c, std::int64_t times) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  std::array<std::array<hn::Vec<decltype(d)>, kVectors>, kRows> sum;
  for (auto& row : sum) row.fill(hn::Zero(d));
  for (std::int64_t t = 0; t < times; ++t) {
    for (std::size_t k = 0; k < kDepth; ++k) {
      const auto b0 = hn::Load(d, b + (k * kVectors) * lanes);
      const auto b1 = hn::Load(d, b + (k * kVectors + 1) * lanes);
#pragma GCC unroll 6
      for (std::size_t row = 0; row < kRows; ++row) {
        const auto factor = hn::Set(d, a[k * kRows + row]);
        sum[row][0] = hn::MulAdd(factor, b0, sum[row][0]);
        sum[row][1] = hn::MulAdd(factor, b1, sum[row][1]);
      }
    }
  }
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(sum[row][v], d, c + (row * kVectors + v) * lanes);
    }
  }
  return 2.0 * static_cast<double>(times) * static_cast<double>(kDepth * kRows * kVectors * lanes);
}

/// The sum of `count` words; `count` is a multiple of eight vectors.
std::uint64_t sum_words(const std::uint64_t* HWY_RESTRICT words, std::size_t count) {
  const hn::ScalableTag<std::uint64_t> d;
  const std::size_t lanes = hn::Lanes(d);
  constexpr std::size_t kSums = 8;
  std::array<hn::Vec<decltype(d)>, kSums> sum;
  sum.fill(hn::Zero(d));
  for (std::size_t i = 0; i < count; i += kSums * lanes) {
#pragma GCC unroll 8
    for (std::size_t s = 0; s < kSums; ++s) {
      sum[s] = hn::Add(sum[s], hn::Load(d, words + i + s * lanes));
    }
  }
  for (std::size_t s = 1; s < kSums; ++s) sum[0] = hn::Add(sum[0], sum[s]);
  return hn::GetLane(hn::SumOfLanes(d, sum[0]));
}

std::int64_t max_block_floats() {
  return static_cast<std::int64_t>(kDepth * kVectors * hn::Lanes(hn::ScalableTag<float>()));
}

const char* instruction_set() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace foveal::tools::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace foveal::tools {
namespace {

HWY_EXPORT(multiply_block);
HWY_EXPORT(sum_words);
HWY_EXPORT(max_block_floats);
HWY_EXPORT(instruction_set);

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 5;
constexpr std::int64_t kBlockTimes = 20000;
constexpr std::int64_t kReadBytesPerThread = std::int64_t{64} << 20;
constexpr std::int64_t kReadBytesAtLeast = std::int64_t{256} << 20;
constexpr std::int64_t kBlockRows = 6;
constexpr std::int64_t kBlockDepth = 256;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Runs `work(thread)` on all threads at once, `kRounds` times, and returns the shortest seconds
/// from the common start to the last one's end; negative when threads can't be had.
double best_seconds(std::int32_t num_threads, const std::function<void(std::int32_t)>& work) {
  double best = -1;
  for (int round = 0; round < kRounds; ++round) {
    std::latch ready(num_threads + 1);
    std::vector<std::thread> threads;
    try {
      for (std::int32_t t = 0; t < num_threads; ++t) {
        threads.emplace_back([&, t] {
          ready.arrive_and_wait();
          work(t);
        });
      }
    } catch (const std::system_error&) {
      ready.count_down(num_threads - static_cast<std::ptrdiff_t>(threads.size()));
      ready.arrive_and_wait();
      for (std::thread& thread : threads) thread.join();
      return -1;
    }
    ready.arrive_and_wait();
    const auto begin = Clock::now();
    for (std::thread& thread : threads) thread.join();
    const double seconds = seconds_since(begin);
    if (best < 0 || seconds < best) best = seconds;
  }
  return best;
}

Result<double> measure_fp32_gflops(std::int32_t num_threads) {
  const std::int64_t b_floats = HWY_DYNAMIC_DISPATCH(max_block_floats)();
  const std::int64_t a_floats = kBlockRows * kBlockDepth;
  const std::int64_t floats = a_floats + b_floats + b_floats;  // c is no larger than b
  FOVEAL_ASSIGN_OR_RETURN(
      buffer, AlignedBuffer::allocate(num_threads * floats * 4, "the measurement of fp32"));
  std::atomic<double> flops{0};
  const double seconds = best_seconds(num_threads, [&](std::int32_t thread) {
    auto* a = reinterpret_cast<float*>(buffer.data()) + thread * floats;
    flops =
        HWY_DYNAMIC_DISPATCH(multiply_block)(a, a + a_floats, a + a_floats + b_floats, kBlockTimes);
  });
  if (seconds < 0) return Status::device_error("no threads to measure on");
  return flops * num_threads / seconds / 1e9;
}

Result<double> measure_read_gbs(std::int32_t num_threads) {
  const std::int64_t per_thread =
      std::max(kReadBytesPerThread, kReadBytesAtLeast / num_threads / 4096 * 4096);
  FOVEAL_ASSIGN_OR_RETURN(
      buffer, AlignedBuffer::allocate(num_threads * per_thread, "the measurement of reads"));
  std::atomic<std::uint64_t> sum{0};  // looked at by nobody, but the sums must be made
  const double seconds = best_seconds(num_threads, [&](std::int32_t thread) {
    const auto* words = reinterpret_cast<const std::uint64_t*>(buffer.data() + thread * per_thread);
    sum += HWY_DYNAMIC_DISPATCH(sum_words)(words, static_cast<std::size_t>(per_thread / 8));
  });
  if (seconds < 0) return Status::device_error("no threads to measure on");
  return static_cast<double>(num_threads * per_thread) / seconds / 1e9;
}

}  // namespace

Result<MachineRates> measure_machine(std::int32_t num_threads) {
  FOVEAL_ASSIGN_OR_RETURN(fp32_gflops, measure_fp32_gflops(num_threads));
  FOVEAL_ASSIGN_OR_RETURN(read_gbs, measure_read_gbs(num_threads));
  return MachineRates{.num_threads = num_threads,
                      .instruction_set = HWY_DYNAMIC_DISPATCH(instruction_set)(),
                      .fp32_gflops = fp32_gflops,
                      .read_gbs = read_gbs};
}

}  // namespace foveal::tools

#endif  // HWY_ONCE
