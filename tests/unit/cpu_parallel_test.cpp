// Workers and the work queue: every worker once, every item once, on OpenMP or std::thread and on a
// caller's own executor.
#include "cpu/parallel.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace foveal::cpu {
namespace {

std::vector<int> counts(const std::vector<std::atomic<int>>& atomics) {
  std::vector<int> values;
  for (const std::atomic<int>& value : atomics) values.push_back(value.load());
  return values;
}

/// How often each worker ran.
std::vector<int> runs_of(const CpuExecutor* executor, std::int64_t num_workers) {
  std::vector<std::atomic<int>> runs(static_cast<std::size_t>(num_workers));
  auto worker = [&](std::int64_t w) { runs.at(static_cast<std::size_t>(w)).fetch_add(1); };
  run_workers(executor, num_workers, worker);
  return counts(runs);
}

using Task = void (*)(void* task_context, std::int64_t index);

/// What an executor was asked for.
struct Calls {
  int calls = 0;
  std::int64_t num_tasks = 0;
};

void run_backwards(void* context, std::int64_t num_tasks, Task task, void* task_context) {
  auto* calls = static_cast<Calls*>(context);
  ++calls->calls;
  calls->num_tasks = num_tasks;
  for (std::int64_t i = num_tasks - 1; i >= 0; --i) task(task_context, i);
}

void run_on_own_threads(void* /*context*/, std::int64_t num_tasks, Task task, void* task_context) {
  std::vector<std::thread> threads;
  for (std::int64_t i = 0; i < num_tasks; ++i) threads.emplace_back(task, task_context, i);
  for (std::thread& thread : threads) thread.join();
}

TEST(CpuParallel, EveryWorkerRunsOnce) {
  for (const std::int64_t num_workers : {1, 2, 3, 7, 64}) {
    EXPECT_EQ(runs_of(nullptr, num_workers), std::vector<int>(num_workers, 1)) << num_workers;
  }
}

TEST(CpuParallel, NoWorkersIsNoCall) {
  Calls calls;
  const CpuExecutor executor{run_backwards, &calls};
  EXPECT_TRUE(runs_of(&executor, 0).empty());
  EXPECT_EQ(calls.calls, 0);
}

TEST(CpuParallel, CallersExecutorRunsAllWorkersInOneCall) {
  Calls calls;
  const CpuExecutor executor{run_backwards, &calls};
  EXPECT_EQ(runs_of(&executor, 5), std::vector<int>(5, 1));
  EXPECT_EQ(calls.calls, 1);
  EXPECT_EQ(calls.num_tasks, 5);
}

TEST(CpuParallel, ExecutorWithoutFunctionMeansTheDefault) {
  const CpuExecutor executor{};
  EXPECT_EQ(runs_of(&executor, 3), std::vector<int>(3, 1));
}

TEST(CpuParallel, WorkersRunInsideAWorker) {
  std::vector<std::atomic<int>> runs(6);
  auto outer = [&](std::int64_t o) {
    auto inner = [&](std::int64_t i) { runs.at(static_cast<std::size_t>(3 * o + i)).fetch_add(1); };
    run_workers(nullptr, 3, inner);
  };
  run_workers(nullptr, 2, outer);
  EXPECT_EQ(counts(runs), std::vector<int>(6, 1));
}

TEST(CpuParallel, QueueGivesEveryItemOnce) {
  const CpuExecutor own_threads{run_on_own_threads, nullptr};
  for (const CpuExecutor* executor : {static_cast<const CpuExecutor*>(nullptr), &own_threads}) {
    for (const std::int64_t num_items : {0, 1, 5, 1000}) {
      std::vector<std::atomic<int>> taken(static_cast<std::size_t>(num_items));
      WorkQueue queue(num_items);
      auto worker = [&](std::int64_t /*w*/) {
        queue.drain([&](std::int64_t item) { taken.at(static_cast<std::size_t>(item))++; });
      };
      run_workers(executor, 4, worker);
      EXPECT_EQ(counts(taken), std::vector<int>(num_items, 1)) << num_items;
    }
  }
}

TEST(CpuParallel, OneWorkerTakesItemsInOrder) {
  WorkQueue queue(4);
  std::vector<std::int64_t> order;
  queue.drain([&](std::int64_t item) { order.push_back(item); });
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_GE(queue.pop(), queue.num_items());
}

}  // namespace
}  // namespace foveal::cpu
