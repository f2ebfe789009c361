#include "tools/measure_machine.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <system_error>
#include <thread>
#include <vector>

#include "tools/aligned_buffer.hpp"

// Vectors whose size the compiler knows, since they are members of a struct.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/measure_machine.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace foveal::tools::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// A block of the product: 6 rows of 2 vectors are 12 accumulators, which hide the latency of two
/// multiply-adds a cycle and leave room for operands among 16 registers.
constexpr std::size_t kRows = 6;
constexpr std::size_t kVectors = 2;
constexpr std::size_t kDepth = 256;

using FloatTag = hn::ScalableTag<float>;
using Floats = hn::Vec<FloatTag>;
using WordTag = hn::ScalableTag<std::uint64_t>;

/// One row of the block. Rows are variables with names, since an array of them would live in
/// memory.
struct BlockRow {
  Floats left;
  Floats right;
};

HWY_INLINE void multiply_row(BlockRow& row, float factor, Floats left, Floats right) {
  const Floats factors = hn::Set(FloatTag(), factor);
  row.left = hn::MulAdd(factors, left, row.left);
  row.right = hn::MulAdd(factors, right, row.right);
}

/// C += A * B for one block, `times` over: A [kDepth, kRows] and B [kDepth, kVectors * lanes] stay
/// in the L1 cache. Returns the multiply-adds done, in FLOP.
double multiply_block(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
                      float* HWY_RESTRICT c, std::int64_t times) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const BlockRow zero{hn::Zero(d), hn::Zero(d)};
  BlockRow row0 = zero, row1 = zero, row2 = zero, row3 = zero, row4 = zero, row5 = zero;
  for (std::int64_t t = 0; t < times; ++t) {
    for (std::size_t k = 0; k < kDepth; ++k) {
      const float* factors = a + k * kRows;
      const Floats left = hn::Load(d, b + (k * kVectors) * lanes);
      const Floats right = hn::Load(d, b + (k * kVectors + 1) * lanes);
      multiply_row(row0, factors[0], left, right);
      multiply_row(row1, factors[1], left, right);
      multiply_row(row2, factors[2], left, right);
      multiply_row(row3, factors[3], left, right);
      multiply_row(row4, factors[4], left, right);
      multiply_row(row5, factors[5], left, right);
    }
  }
  for (const BlockRow* row : {&row0, &row1, &row2, &row3, &row4, &row5}) {
    hn::StoreU(row->left, d, c);
    hn::StoreU(row->right, d, c + lanes);
    c += kVectors * lanes;
  }
  return 2.0 * static_cast<double>(times) * static_cast<double>(kDepth * kRows * kVectors * lanes);
}

/// The sum of `count` words; `count` is a multiple of four vectors.
std::uint64_t sum_words(const std::uint64_t* HWY_RESTRICT words, std::size_t count) {
  const WordTag d;
  const std::size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  for (std::size_t i = 0; i < count; i += 4 * lanes) {
    sum0 = hn::Add(sum0, hn::Load(d, words + i));
    sum1 = hn::Add(sum1, hn::Load(d, words + i + lanes));
    sum2 = hn::Add(sum2, hn::Load(d, words + i + 2 * lanes));
    sum3 = hn::Add(sum3, hn::Load(d, words + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
}

std::int64_t max_block_floats() {
  return static_cast<std::int64_t>(kDepth * kVectors * hn::Lanes(FloatTag()));
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

constexpr int kRounds = 10;
constexpr std::int64_t kBlockTimes = 60000;
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
