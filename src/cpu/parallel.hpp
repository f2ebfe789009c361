// How a CPU kernel spreads over threads: `num_workers` workers, each with its own slab, pull items
// from a shared counter until none is left. An item computes the same bits whichever worker takes
// it, so results don't depend on the number of threads nor on their timing.
#pragma once

#include <atomic>
#include <cstdint>

#include <foveal/plan.hpp>

namespace foveal::cpu {

/// Runs task(context, worker) for every worker in [0, num_workers) and returns when all are done:
/// on `executor` where it has a parallel_for, else on OpenMP or, in a build without it, on
/// std::thread. Workers may run one after the other on one thread. `task` must not throw.
void run_workers(const CpuExecutor* executor, std::int64_t num_workers,
                 void (*task)(void* context, std::int64_t worker), void* context) noexcept;

/// The same for a callable worker(index).
template <class Worker>
void run_workers(const CpuExecutor* executor, std::int64_t num_workers, Worker& worker) noexcept {
  run_workers(
      executor, num_workers,
      [](void* context, std::int64_t index) { (*static_cast<Worker*>(context))(index); }, &worker);
}

/// Items [0, num_items), handed out in ascending order: order them longest first. Lives in the
/// workspace.
class WorkQueue {
 public:
  explicit WorkQueue(std::int64_t num_items) : num_items_(num_items) {}

  /// The next item; num_items or more when there is none left.
  std::int64_t pop() { return next_.fetch_add(1, std::memory_order_relaxed); }

  [[nodiscard]] std::int64_t num_items() const { return num_items_; }

  /// Calls body(item) for items until the queue is empty.
  template <class Body>
  void drain(Body&& body) {
    for (std::int64_t item = pop(); item < num_items_; item = pop()) body(item);
  }

 private:
  std::atomic<std::int64_t> next_{0};
  std::int64_t num_items_;
};

}  // namespace foveal::cpu
