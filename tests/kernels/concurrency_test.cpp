// Plans under threads: one plan run by many at once, plans made by many at once, and a caller's own
// thread pool in place of OpenMP. The thread sanitizer runs this file.
#include <atomic>
#include <thread>

#include "kernels/kernel_case_test.hpp"
#include "support/comparison.hpp"

namespace foveal::test {
namespace {

/// A case of each pass with work for several workers.
std::vector<Case> thread_cases() {
  const Case forward{.dtype = DType::kFloat16,
                     .lens = {{200, 200}, {17, 150}, {0, 33}},
                     .q_form = QForm::kPacked,
                     .k_form = KForm::kPaged,
                     .nheads_k = 2,
                     .group = 3,
                     .headdim = 72,
                     .causal = true,
                     .num_threads = 4};
  const Case decode{.dtype = DType::kBFloat16,
                    .lens = {{1, 3000}, {1, 5}},
                    .k_form = KForm::kCache,
                    .group = 4,
                    .append = 2,
                    .num_threads = 4};
  const Case backward{.pass = Pass::kBackward,
                      .lens = {{90, 90}, {90, 90}},
                      .nheads_k = 2,
                      .group = 2,
                      .causal = true,
                      .sinks = true,
                      .bias = BiasKind::kFloat32,
                      .bias_shape = "1hqk",
                      .dbias = true,
                      .dsinks = true,
                      .deterministic = true,
                      .num_threads = 4};
  const Case append{.pass = Pass::kAppend,
                    .lens = {{40, 300}, {40, 280}},
                    .k_form = KForm::kPaged,
                    .nheads_k = 4,
                    .group = 2,
                    .headdim = 128,
                    .append = 64,
                    .rotary = Rotary::kHalves,
                    .rotary_dim = 128,
                    .num_threads = 4};
  const Case merge{
      .pass = Pass::kMerge, .lens = {{300, 0}, {300, 0}}, .nheads_k = 4, .num_threads = 4};
  return for_every_kernel({forward, decode, backward, append, merge}, DeviceType::kCpu);
}

/// Every output and cache of two benches of one case.
void expect_same_outputs(const BuiltCase& a, const BuiltCase& b) {
  for (const Operand& operand : a.bench.all()) {
    EXPECT_TRUE(same_bits(operand, b.bench.at(operand.info->name)));
  }
}

Result<Plan> plan_of(const BuiltCase& built) {
  return plan(built.bench.problem, Device::cpu(static_cast<std::int32_t>(built.c.num_threads)));
}

Status run_plan(const Plan& planned, BuiltCase& built, CpuExecutor* executor) {
  GuardedBuffer workspace(planned.workspace_bytes(), 0xFF);
  const Status status =
      planned.run(built.bench.tensors, workspace.data(), workspace.size(), executor);
  if (!workspace.guards_intact())
    return Status::internal("memory beside the workspace was written");
  return status;
}

/// Runs the tasks on std::thread, two at a time, and counts how often it was asked.
struct ThreadPool {
  std::atomic<int> calls{0};
  CpuExecutor executor{.parallel_for = &ThreadPool::parallel_for, .context = this};

  static void parallel_for(void* context, std::int64_t num_tasks, void (*task)(void*, std::int64_t),
                           void* task_context) {
    ++static_cast<ThreadPool*>(context)->calls;
    std::atomic<std::int64_t> next{0};
    const auto work = [&] {
      for (std::int64_t i = next++; i < num_tasks; i = next++) task(task_context, i);
    };
    std::thread other(work);
    work();
    other.join();
  }
};

/// Runs the tasks on the calling thread, the last first.
void run_backwards(void*, std::int64_t num_tasks, void (*task)(void*, std::int64_t),
                   void* task_context) {
  for (std::int64_t i = num_tasks; i-- > 0;) task(task_context, i);
}

TEST(Concurrency, OnePlanOnManyThreads) {
  for (const Case& c : thread_cases()) {
    SCOPED_TRACE(to_line(c));
    const ForcedKernel forced(c.kernel);
    BuiltCase alone(c);
    const Result<Plan> planned = plan_of(alone);
    ASSERT_TRUE(planned) << planned.status().message();
    ThreadPool pool;
    ASSERT_TRUE(run_plan(*planned, alone, &pool.executor));

    constexpr int kThreads = 4;
    std::vector<std::unique_ptr<BuiltCase>> cases;
    for (int thread = 0; thread < kThreads; ++thread)
      cases.push_back(std::make_unique<BuiltCase>(c));
    std::vector<Status> results(kThreads);
    std::vector<std::thread> threads;
    for (std::size_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        ThreadPool own;
        for (int repeat = 0; repeat < 3; ++repeat) {
          cases[thread]->bench.restore();
          results[thread] = run_plan(*planned, *cases[thread], &own.executor);
          if (!results[thread]) return;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t thread = 0; thread < kThreads; ++thread) {
      ASSERT_TRUE(results[thread]) << results[thread].message();
      expect_same_outputs(alone, *cases[thread]);
    }
  }
}

TEST(Concurrency, ManyThreadsPlanAtOnce) {
  const std::vector<Case> cases = thread_cases();
  std::vector<std::unique_ptr<BuiltCase>> built;
  for (const Case& c : cases) built.push_back(std::make_unique<BuiltCase>(c));
  if (built.empty()) GTEST_SKIP() << "FOVEAL_TEST_KERNELS names no CPU kernel";
  std::vector<std::string> serial;
  for (const auto& one : built) serial.emplace_back(plan_of(*one)->kernel());
  std::atomic<int> different{0};
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t repeat = 0; repeat < 50; ++repeat) {
        const std::size_t which = (thread + repeat) % built.size();
        AttentionProblem problem = built[which]->bench.problem;
        if (problem.pass == Pass::kForward) {  // ever new plans, so that the cache is written too
          problem.softmax_scale = static_cast<float>(repeat + 1) / 16;
        }
        const Result<Plan> planned = plan(problem, Device::cpu(1 + static_cast<int>(repeat % 3)));
        if (!planned || planned->kernel() != serial[which]) ++different;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(different, 0);
}

TEST(Concurrency, LogCallbackHearsOtherThreads) {
  static std::atomic<int> heard{0};
  heard = 0;
  set_log_callback([](void*, LogLevel, const char*) { ++heard; }, nullptr);
  std::vector<std::thread> threads;
  for (std::int64_t thread = 0; thread < 3; ++thread) {
    threads.emplace_back([thread] {
      for (std::int64_t i = 0; i < 20; ++i) {
        AttentionProblem problem;
        problem.q = problem.k = problem.v = problem.out =
            TensorSpec::contiguous(DType::kFloat32, {1, 1000 * (thread + 1) + i, 1, 8});
        (void)plan(problem, Device::cpu(1)).is_ok();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  set_log_callback(nullptr, nullptr);
  EXPECT_GE(heard, 60) << "every new plan is a choice";
}

TEST(CallersParallelFor, GivesTheSameBits) {
  for (const Case& c : thread_cases()) {
    SCOPED_TRACE(to_line(c));
    const ForcedKernel forced(c.kernel);
    BuiltCase own(c);
    BuiltCase pooled(c);
    BuiltCase reversed(c);
    const Result<Plan> planned = plan_of(own);
    ASSERT_TRUE(planned) << planned.status().message();
    ThreadPool pool;
    CpuExecutor serial{.parallel_for = run_backwards, .context = nullptr};
    CpuExecutor none{};
    ASSERT_TRUE(run_plan(*planned, own, &none)) << "an executor without a function is OpenMP";
    ASSERT_TRUE(run_plan(*planned, pooled, &pool.executor));
    ASSERT_TRUE(run_plan(*planned, reversed, &serial));
    EXPECT_GT(pool.calls, 0) << "the pool was never asked";
    expect_same_outputs(own, pooled);
    expect_same_outputs(own, reversed);
  }
}

TEST(CallersParallelFor, GridCases) {
  ThreadPool pool;
  for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kAppend, Pass::kMerge}) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      Case c = random_case(pass, 1000 + seed);
      c.num_threads = 3;
      c.deterministic = true;
      for (const Case& one : for_every_kernel({c}, DeviceType::kCpu)) {
        BuiltCase own(one);
        BuiltCase pooled(one);
        if (!kernel_takes(own.bench.problem, {.kernel = one.kernel})) continue;
        ASSERT_TRUE(own.run()) << one;
        ASSERT_TRUE(
            pooled.bench.run({.kernel = one.kernel, .num_threads = 3, .executor = &pool.executor}))
            << one;
        expect_same_outputs(own, pooled);
      }
    }
  }
}

}  // namespace
}  // namespace foveal::test
