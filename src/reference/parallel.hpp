// Tasks over threads for the oracle, which stays apart from the kernels' executor.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace foveal::reference {

/// Runs task(i) for i in [0, num_tasks). The order is open, so tasks write to places of their own.
/// `num_threads` 0: as many as the machine has. The first exception of a task is thrown again.
template <class Task>
void for_each_task(std::int64_t num_tasks, std::int32_t num_threads, const Task& task) {
  std::atomic<std::int64_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    try {
      for (std::int64_t i = next++; i < num_tasks; i = next++) task(i);
    } catch (...) {
      next = num_tasks;
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  };

  const std::int64_t wanted = num_threads > 0
                                  ? num_threads
                                  : static_cast<std::int64_t>(std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  try {
    for (std::int64_t i = 1; i < std::min(wanted, num_tasks); ++i) threads.emplace_back(work);
  } catch (...) {
    // Without more threads, or memory for them, those that run do the work.
  }
  work();
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace foveal::reference
