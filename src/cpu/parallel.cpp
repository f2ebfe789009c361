#include "cpu/parallel.hpp"

#if FOVEAL_WITH_OPENMP
#include <omp.h>
#else
#include <system_error>
#include <thread>
#include <vector>
#endif

namespace foveal::cpu {
namespace {

using Task = void (*)(void* context, std::int64_t worker);

#if FOVEAL_WITH_OPENMP

/// Inside a caller's own parallel region OpenMP gives one thread, which then runs all workers.
void run_on_threads(std::int64_t num_workers, Task task, void* context) {
#pragma omp parallel for schedule(static, 1) num_threads(static_cast<int>(num_workers))
  for (std::int64_t worker = 0; worker < num_workers; ++worker) task(context, worker);
}

#else

/// Where the system has no thread left to give, the caller's own thread runs the other workers.
void run_on_threads(std::int64_t num_workers, Task task, void* context) {
  std::vector<std::thread> threads;
  std::int64_t started = 1;
  try {
    threads.reserve(static_cast<std::size_t>(num_workers - 1));
    for (; started < num_workers; ++started) threads.emplace_back(task, context, started);
  } catch (const std::exception&) {  // std::system_error or std::bad_alloc: run the rest here
  }
  task(context, 0);
  for (std::int64_t worker = started; worker < num_workers; ++worker) task(context, worker);
  for (std::thread& thread : threads) thread.join();
}

#endif

}  // namespace

void run_workers(const CpuExecutor* executor, std::int64_t num_workers, Task task,
                 void* context) noexcept {
  if (num_workers <= 0) return;
  if (num_workers == 1) return task(context, 0);
  if (executor != nullptr && executor->parallel_for != nullptr) {
    executor->parallel_for(executor->context, num_workers, task, context);
    return;
  }
  run_on_threads(num_workers, task, context);
}

}  // namespace foveal::cpu
