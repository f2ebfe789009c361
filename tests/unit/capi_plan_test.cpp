// Plans, launches, explanations and the log of the C interface.
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <foveal/plan.hpp>

#include "capi/boundary.hpp"
#include "unit/capi_problem.hpp"

namespace foveal::test {
namespace {

foveal_status run(const CPlan& plan, const CProblem& p, void* stream = nullptr) {
  CWorkspace workspace(plan.plan);
  return foveal_plan_run(plan.plan, &p.attention, workspace.data(), workspace.bytes(), stream);
}

/// Takes over a string of the library's.
std::string take_text(char* text) {
  EXPECT_NE(text, nullptr);
  std::string copy = text != nullptr ? text : "";
  foveal_string_free(text);
  return copy;
}

TEST(CapiPlan, RunsAgainAndAgainOnOtherData) {
  CProblem first, second;
  first.attention.causal = second.attention.causal = 1;
  const CPlan plan(first.attention);
  EXPECT_STRNE(foveal_plan_kernel(plan.plan), "");
  EXPECT_GT(foveal_plan_predicted_time_us(plan.plan), 0);
  for (CProblem* p : {&first, &second, &first}) {
    p->out.values.assign(p->out.values.size(), -1.0f);
    ASSERT_EQ(run(plan, *p), FOVEAL_OK) << foveal_last_error();
    p->expect_right();
  }
}

TEST(CapiPlan, NeedsNoDataToPlan) {
  CProblem p;
  CProblem without_data;
  for (DLTensor* view : {&without_data.q.view, &without_data.k.view, &without_data.v.view,
                         &without_data.out.view, &without_data.lse.view}) {
    view->data = nullptr;
  }
  const CPlan plan(without_data.attention);
  EXPECT_EQ(run(plan, p), FOVEAL_OK) << foveal_last_error();
  p.expect_right();
  expect_failure(run(plan, without_data), FOVEAL_INVALID_ARGUMENT, {"null"});
}

TEST(CapiPlan, RefusesAnotherProblem) {
  CProblem p;
  const CPlan plan(p.attention);

  CProblem shape;
  std::int64_t fewer[4] = {1, CProblem::kKeys - 1, CProblem::kHeadsK, CProblem::kDim};
  shape.k.view.shape = fewer;
  expect_failure(run(plan, shape), FOVEAL_INVALID_ARGUMENT,
                 {"k is fp32 [1, 7, 2, 16]", "the plan is for fp32 [1, 8, 2, 16]"});

  CProblem strides;
  std::int64_t others[4];
  foveal_bhsd_strides(strides.v.view.shape, others);
  strides.v.view.strides = others;
  expect_failure(run(plan, strides), FOVEAL_INVALID_ARGUMENT, {"v is", "the plan is for"});

  CProblem dtype;
  dtype.q.view.dtype = {kDLBfloat, 16, 1};
  expect_failure(run(plan, dtype), FOVEAL_INVALID_ARGUMENT, {"q is bf16", "the plan is for fp32"});

  CProblem missing;
  missing.attention.lse = nullptr;
  expect_failure(run(plan, missing), FOVEAL_INVALID_ARGUMENT, {"lse is none", "the plan is for"});

  CProblem more;
  CTensor<float> sinks({CProblem::kHeadsQ}, kFp32);
  more.attention.sinks = &sinks.view;
  expect_failure(run(plan, more), FOVEAL_INVALID_ARGUMENT, {"sinks is", "the plan is for none"});

  CProblem device;
  device.q.view.device = {kDLCUDA, 0};
  expect_failure(run(plan, device), FOVEAL_INVALID_ARGUMENT,
                 {"q is on cuda:0", "the plan is for cpu"});
}

TEST(CapiPlan, RefusesOtherOptions) {
  CProblem planned;
  const CPlan plan(planned.attention);
  const auto refuses = [&](const char* option, auto&& change) {
    CProblem p;
    change(p.attention);
    expect_failure(run(plan, p), FOVEAL_INVALID_ARGUMENT,
                   {std::string(option) + " is not the one that was planned"});
  };
  refuses("pass", [](auto& a) { a.pass = FOVEAL_BACKWARD; });
  refuses("causal", [](auto& a) { a.causal = 1; });
  refuses("rotary_interleaved", [](auto& a) { a.rotary_interleaved = 1; });
  refuses("deterministic", [](auto& a) { a.deterministic = 1; });
  refuses("batch_invariant", [](auto& a) { a.batch_invariant = 1; });
  refuses("softmax_scale", [](auto& a) { a.has_softmax_scale = 1; });
  refuses("softcap", [](auto& a) { a.softcap = 1; });
  refuses("dropout_p", [](auto& a) { a.dropout_p = 0.5f; });
  refuses("window_size_left", [](auto& a) { a.has_window = 1; });
  refuses("window_size_right", [](auto& a) {
    a.has_window = 1;
    a.window_size_left = -1;
  });
  refuses("max_seqlen_q", [](auto& a) { a.max_seqlen_q = 1; });
  refuses("max_seqlen_k", [](auto& a) { a.max_seqlen_k = 1; });
}

TEST(CapiPlan, StridesOfSingleElementsDoNotMatter) {
  CProblem p;
  const CPlan plan(p.attention);
  CProblem odd;  // batch is 1: its stride addresses nothing
  std::int64_t strides[4] = {7, CProblem::kHeadsK * CProblem::kDim, CProblem::kDim, 1};
  odd.v.view.strides = strides;
  ASSERT_EQ(run(plan, odd), FOVEAL_OK) << foveal_last_error();
  odd.expect_right();
}

TEST(CapiPlan, WorkspaceTooSmall) {
  CProblem p;
  foveal_device device{};
  device.struct_size = sizeof device;
  device.num_threads = 2;
  const CPlan plan(p.attention, &device);
  CWorkspace workspace(plan.plan);
  if (workspace.bytes() == 0) {  // then nothing is too small
    EXPECT_EQ(foveal_plan_run(plan.plan, &p.attention, nullptr, 0, nullptr), FOVEAL_OK);
    return;
  }
  expect_failure(
      foveal_plan_run(plan.plan, &p.attention, workspace.data(), workspace.bytes() - 1, nullptr),
      FOVEAL_OUT_OF_MEMORY, {"workspace", std::to_string(workspace.bytes())});
  expect_failure(foveal_plan_run(plan.plan, &p.attention, nullptr, workspace.bytes(), nullptr),
                 FOVEAL_OUT_OF_MEMORY, {"workspace has 0 bytes"});
  expect_failure(foveal_plan_run(plan.plan, &p.attention, static_cast<char*>(workspace.data()) + 1,
                                 workspace.bytes(), nullptr),
                 FOVEAL_INVALID_ARGUMENT, {"workspace", "256"});
}

TEST(CapiPlan, NullIsTolerated) {
  CProblem p;
  char* text = nullptr;
  foveal_plan_release(nullptr);
  foveal_string_free(nullptr);
  EXPECT_EQ(foveal_plan_retain(nullptr), nullptr);
  EXPECT_EQ(foveal_plan_workspace_bytes(nullptr), 0u);
  EXPECT_STREQ(foveal_plan_kernel(nullptr), "");
  EXPECT_EQ(foveal_plan_predicted_time_us(nullptr), 0);
  expect_failure(foveal_plan_create(&p.attention, nullptr, nullptr), FOVEAL_INVALID_ARGUMENT,
                 {"plan is null"});
  expect_failure(foveal_plan_run(nullptr, &p.attention, nullptr, 0, nullptr),
                 FOVEAL_INVALID_ARGUMENT, {"plan is null"});
  expect_failure(foveal_plan_explain_text(nullptr, &text), FOVEAL_INVALID_ARGUMENT,
                 {"plan is null"});
  expect_failure(foveal_explain_json(&p.attention, nullptr, &text), FOVEAL_INVALID_ARGUMENT,
                 {"device_name is null"});
  expect_failure(foveal_explain_json(nullptr, "cpu", &text), FOVEAL_INVALID_ARGUMENT,
                 {"foveal_attention is null"});
  expect_failure(foveal_devices_json(nullptr), FOVEAL_INVALID_ARGUMENT, {"json is null"});
  const CPlan plan(p.attention);
  expect_failure(foveal_plan_explain_text(plan.plan, nullptr), FOVEAL_INVALID_ARGUMENT,
                 {"text is null"});
  expect_failure(foveal_plan_run(plan.plan, nullptr, nullptr, 0, nullptr), FOVEAL_INVALID_ARGUMENT,
                 {"foveal_attention is null"});
}

TEST(CapiPlan, AFailedCreateLeavesNoPlan) {
  CProblem p;
  p.attention.q = nullptr;
  auto* plan = reinterpret_cast<foveal_plan*>(&p);  // whatever was there before
  EXPECT_EQ(foveal_plan_create(&p.attention, nullptr, &plan), FOVEAL_INVALID_ARGUMENT);
  EXPECT_EQ(plan, nullptr);
}

TEST(CapiPlan, LivesUntilItsLastReference) {
  CProblem p;
  foveal_plan* plan = nullptr;
  ASSERT_EQ(foveal_plan_create(&p.attention, nullptr, &plan), FOVEAL_OK);
  EXPECT_EQ(foveal_plan_retain(plan), plan);
  foveal_plan_release(plan);
  CWorkspace workspace(plan);
  EXPECT_EQ(foveal_plan_run(plan, &p.attention, workspace.data(), workspace.bytes(), nullptr),
            FOVEAL_OK);
  foveal_plan_release(plan);
}

TEST(CapiThreads, RunOnePlanTogether) {
  CProblem planned;
  planned.attention.causal = 1;
  const CPlan plan(planned.attention);
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      CProblem p;
      p.attention.causal = 1;
      for (int i = 0; i < 50; ++i) {
        p.out.values.assign(p.out.values.size(), -1.0f);
        if (run(plan, p) != FOVEAL_OK) ++failures;
        p.expect_right();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

/// An executor that runs the tasks backwards on the caller's thread and counts.
struct Counting {
  int calls = 0;
  std::int64_t tasks = 0;

  static void parallel_for(void* context, std::int64_t num_tasks,
                           void (*task)(void* task_context, std::int64_t index),
                           void* task_context) {
    auto& self = *static_cast<Counting*>(context);
    ++self.calls;
    self.tasks += num_tasks;
    for (std::int64_t i = num_tasks; i-- > 0;) task(task_context, i);
  }
};

TEST(CapiExecutor, RunsTheTasks) {
  foveal_device device{};
  device.struct_size = sizeof device;
  device.num_threads = 2;
  Counting counting;
  foveal_cpu_executor executor{sizeof executor, &Counting::parallel_for, &counting};
  // Long enough to be worth two workers.
  constexpr std::int64_t kLength = 1024;
  CTensor<float> q({1, kLength, 4, 16}, kFp32), k({1, kLength, 2, 16}, kFp32);
  CTensor<float> v({1, kLength, 2, 16}, kFp32), out({1, kLength, 4, 16}, kFp32);
  v.values.assign(v.values.size(), 2.0f);
  foveal_attention attention{};
  attention.struct_size = sizeof attention;
  attention.q = &q.view;
  attention.k = &k.view;
  attention.v = &v.view;
  attention.out = &out.view;
  ASSERT_EQ(foveal_attention_run(&attention, &device, &executor), FOVEAL_OK) << foveal_last_error();
  EXPECT_GE(counting.calls, 1);
  EXPECT_GE(counting.tasks, 2);
  for (const float value : out.values) ASSERT_NEAR(value, 2.0f, 1e-5);
}

TEST(CapiExecutor, ThatIsNone) {
  CProblem p;
  foveal_cpu_executor executor{};
  expect_failure(foveal_attention_run(&p.attention, nullptr, &executor), FOVEAL_INVALID_ARGUMENT,
                 {"foveal_cpu_executor.struct_size is 0"});
  executor.struct_size = sizeof executor;
  expect_failure(foveal_attention_run(&p.attention, nullptr, &executor), FOVEAL_INVALID_ARGUMENT,
                 {"foveal_cpu_executor.parallel_for is null"});
}

TEST(CapiExplain, PlanAsTextAndJson) {
  CProblem p;
  const CPlan plan(p.attention);
  char* text = nullptr;
  ASSERT_EQ(foveal_plan_explain_text(plan.plan, &text), FOVEAL_OK);
  EXPECT_NE(take_text(text).find(foveal_plan_kernel(plan.plan)), std::string::npos);

  ASSERT_EQ(foveal_plan_explain_json(plan.plan, &text), FOVEAL_OK);
  const auto json = nlohmann::json::parse(take_text(text));
  EXPECT_EQ(json.at("kernel"), foveal_plan_kernel(plan.plan));
  EXPECT_EQ(json.at("workspace_bytes"), foveal_plan_workspace_bytes(plan.plan));
  EXPECT_EQ(json.at("predicted_time_us").get<double>(), foveal_plan_predicted_time_us(plan.plan));
  EXPECT_EQ(json.at("verdicts").size(), kernels().size());
  EXPECT_EQ(json.at("device").at("type"), "cpu");
  // 3 rows over 8 keys, 4 heads, 16 + 16 dimensions, 2 flops each
  EXPECT_EQ(json.at("work").at("flops").get<double>(), 2.0 * 3 * 8 * 4 * 32);
  std::int64_t parts = 0;
  for (const auto& part : json.at("workspace")) parts += part.at("bytes").get<std::int64_t>();
  EXPECT_LE(parts, json.at("workspace_bytes").get<std::int64_t>());
  int chosen = 0;
  for (const auto& verdict : json.at("verdicts")) {
    chosen += verdict.at("outcome") == "chosen";
    EXPECT_NE(verdict.at("reason"), "");
  }
  EXPECT_EQ(chosen, 1);
}

TEST(CapiExplain, DeviceThatIsNotHere) {
  CProblem p;
  char* text = nullptr;
  ASSERT_EQ(foveal_explain_json(&p.attention, "sm_120", &text), FOVEAL_OK) << foveal_last_error();
  const auto json = nlohmann::json::parse(take_text(text));
  EXPECT_EQ(json.at("device").at("sm"), 120);
  EXPECT_EQ(json.at("device").at("present"), false);
  EXPECT_EQ(json.at("verdicts").size(), kernels().size());
  ASSERT_EQ(foveal_explain_text(&p.attention, "cpu:2", &text), FOVEAL_OK) << foveal_last_error();
  EXPECT_NE(take_text(text).find("kernel"), std::string::npos);
  EXPECT_NE(foveal_explain_text(&p.attention, "toaster", &text), FOVEAL_OK);
  EXPECT_EQ(text, nullptr);
}

TEST(CapiExplain, Devices) {
  char* text = nullptr;
  ASSERT_EQ(foveal_devices_json(&text), FOVEAL_OK);
  const auto json = nlohmann::json::parse(take_text(text));
  ASSERT_EQ(json.size(), devices().size());
  EXPECT_EQ(json.at(0).at("type"), "cpu");
  EXPECT_EQ(json.at(0).at("name"), devices().front().name);
}

struct Heard {
  std::mutex mutex;
  std::vector<std::string> messages;

  static void listen(void* context, std::int32_t level, const char* message) {
    auto& self = *static_cast<Heard*>(context);
    EXPECT_TRUE(level == FOVEAL_LOG_INFO || level == FOVEAL_LOG_WARNING);
    const std::lock_guard lock(self.mutex);
    self.messages.emplace_back(message);
  }
};

TEST(CapiLog, HearsOfAPlanUntilTurnedOff) {
  Heard heard;
  foveal_set_log_callback(&Heard::listen, &heard);
  CProblem p;
  p.attention.softcap = 17.25f;  // a problem that no other test plans
  { const CPlan plan(p.attention); }
  foveal_set_log_callback(nullptr, nullptr);
  EXPECT_FALSE(heard.messages.empty());
  const std::size_t count = heard.messages.size();
  p.attention.softcap = 17.5f;
  { const CPlan plan(p.attention); }
  EXPECT_EQ(heard.messages.size(), count);
}

TEST(CapiThreads, PlanWhileTheListenerChanges) {
  Heard heard;
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([t] {
      CProblem p;
      for (int i = 0; i < 40; ++i) {
        p.attention.softcap = static_cast<float>(100 + 40 * t + i);
        const CPlan plan(p.attention);
        EXPECT_EQ(run(plan, p), FOVEAL_OK) << foveal_last_error();
      }
    });
  }
  std::thread listener([&] {
    while (!done) {
      foveal_set_log_callback(&Heard::listen, &heard);
      foveal_set_log_callback(nullptr, nullptr);
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  listener.join();
}

TEST(CapiBoundary, ExceptionsBecomeStatuses) {
  using capi::guarded;
  EXPECT_EQ(guarded([]() -> Status { throw std::bad_alloc(); }), FOVEAL_OUT_OF_MEMORY);
  EXPECT_STREQ(foveal_last_error(), "out of memory");
  EXPECT_EQ(guarded([]() -> Status { throw std::length_error("vector"); }), FOVEAL_OUT_OF_MEMORY);
  EXPECT_EQ(guarded([]() -> Status { throw std::runtime_error("a fault"); }), FOVEAL_INTERNAL);
  EXPECT_STREQ(foveal_last_error(), "a fault");
  EXPECT_EQ(guarded([]() -> Status { throw 7; }), FOVEAL_INTERNAL);
  EXPECT_EQ(guarded([] { return Status::device_error("lost"); }), FOVEAL_DEVICE_ERROR);
  EXPECT_STREQ(foveal_last_error(), "lost");
}

}  // namespace
}  // namespace foveal::test
