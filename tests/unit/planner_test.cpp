// The planner's promises: a verdict for every kernel, overrides, steps, workspace checks, the
// cache.
#include "plan/planner.hpp"

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <foveal/attention.hpp>

#include "plan/kernel_table.hpp"
#include "support/scoped_environment.hpp"

namespace foveal {
namespace {

using test::ScopedEnvironment;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr DType kF32 = DType::kFloat32;

AttentionProblem small_forward() {
  AttentionProblem p;
  p.q = p.out = TensorSpec::contiguous(kF32, {1, 4, 4, 16});
  p.k = p.v = TensorSpec::contiguous(kF32, {1, 6, 2, 16});
  p.lse = TensorSpec::contiguous(kF32, {1, 4, 4});
  return p;
}

AttentionProblem small_append() {
  AttentionProblem p = small_forward();
  p.k_new = p.v_new = TensorSpec::contiguous(kF32, {1, 2, 2, 16});
  p.seqused_k = TensorSpec::contiguous(DType::kInt32, {1});
  return p;
}

DeviceInfo cpu() { return *device_info(Device::cpu(2)); }

TEST(Planner, GivesEveryKernelAVerdictWithAReason) {
  const auto explanation = explain(small_forward(), cpu());
  ASSERT_TRUE(explanation) << explanation.status().message();
  EXPECT_EQ(explanation->verdicts.size(), planner::kernel_table().size());
  int chosen = 0;
  for (const KernelVerdict& verdict : explanation->verdicts) {
    EXPECT_FALSE(verdict.reason.empty()) << verdict.name;
    chosen += verdict.outcome == KernelVerdict::Outcome::kChosen;
    if (verdict.outcome == KernelVerdict::Outcome::kChosen) {
      EXPECT_EQ(verdict.name, explanation->kernel);
      EXPECT_GT(verdict.predicted_time_us, 0);
    }
  }
  EXPECT_EQ(chosen, 1);
  EXPECT_THAT(to_string(*explanation), HasSubstr(explanation->kernel));
}

TEST(Planner, ChoosesForEveryPassOfTheTable) {
  for (const KernelInfo& kernel : kernels()) EXPECT_NE(planner::find_kernel(kernel.name), nullptr);
  EXPECT_EQ(planner::find_kernel("no_such_kernel"), nullptr);
}

TEST(Planner, ExplainsADeviceThatIsNotHere) {
  const auto device = device_from_name("sm_120");
  ASSERT_TRUE(device) << device.status().message();
  EXPECT_FALSE(device->present);
  const auto explanation = explain(small_forward(), *device);
  ASSERT_TRUE(explanation) << explanation.status().message();
  for (const KernelVerdict& verdict : explanation->verdicts) {
    const planner::KernelEntry* entry = planner::find_kernel(verdict.name);
    if (entry->device != DeviceType::kCpu || entry->pass != Pass::kForward) continue;
    EXPECT_EQ(verdict.outcome, KernelVerdict::Outcome::kUnsupported);
    EXPECT_THAT(verdict.reason, HasSubstr(device->name));
  }
}

TEST(Planner, RefusesAnUnknownForcedKernel) {
  const ScopedEnvironment forced("FOVEAL_FORCE_KERNEL", "cpu_blocked_fwd,fastest");
  const auto planned = plan(small_forward(), Device::cpu(2));
  ASSERT_FALSE(planned);
  EXPECT_EQ(planned.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(planned.status().message(),
              HasSubstr("FOVEAL_FORCE_KERNEL=fastest: no kernel has this name; there are "));
}

TEST(Planner, ForcesAKernelAndLeavesOtherPassesAlone) {
  const ScopedEnvironment forced("FOVEAL_FORCE_KERNEL", "cpu_blocked_fwd");
  const auto planned = plan(small_forward(), Device::cpu(2));
  ASSERT_TRUE(planned) << planned.status().message();
  EXPECT_EQ(planned->kernel(), "cpu_blocked_fwd");
  for (const KernelVerdict& verdict : planned->explanation().verdicts) {
    if (verdict.name == "cpu_blocked_fwd") {
      EXPECT_EQ(verdict.reason, "forced by FOVEAL_FORCE_KERNEL");
    }
  }
  AttentionProblem merging;
  merging.pass = Pass::kMerge;
  merging.out = merging.out_a = merging.out_b = TensorSpec::contiguous(kF32, {1, 4, 4, 16});
  merging.lse_a = merging.lse_b = TensorSpec::contiguous(kF32, {1, 4, 4});
  const auto other = plan(merging, Device::cpu(2));
  ASSERT_TRUE(other) << other.status().message();
}

TEST(Planner, PlansAnAppendBeforeTheForward) {
  AttentionProblem problem = small_append();
  problem.rotary_cos = problem.rotary_sin = TensorSpec::contiguous(kF32, {8, 4});
  const auto state = planner::make_plan(problem, cpu(), {});
  ASSERT_TRUE(state) << state.status().message();
  ASSERT_EQ(state->steps.size(), 2u);
  EXPECT_EQ(state->steps[0].problem.pass, Pass::kAppend);
  EXPECT_EQ(state->steps[1].problem.pass, Pass::kForward);
  EXPECT_EQ(state->steps[1].geometry.seqlen_new, 2);
  EXPECT_EQ(state->q_rotated_offset, 0);
  EXPECT_GE(state->workspace_bytes, 4 * 4 * 16 * 4);
  EXPECT_GE(state->steps[0].workspace_offset, 4 * 4 * 16 * 4);
  EXPECT_EQ(state->steps[0].workspace_offset % 256, 0);
  EXPECT_EQ(state->steps[1].workspace_offset % 256, 0);
}

TEST(Planner, WorkspacePartsBeginAligned) {
  planner::KernelConfig config;
  config.workspace = {{"a", 1}, {"b", 256}, {"c", 257}};
  EXPECT_EQ(config.workspace_offset(0), 0);
  EXPECT_EQ(config.workspace_offset(1), 256);
  EXPECT_EQ(config.workspace_offset(2), 512);
  EXPECT_EQ(config.workspace_bytes(), 1024);
}

TEST(Plan, ChecksItsWorkspace) {
  const auto planned = plan(small_append(), Device::cpu(2));
  ASSERT_TRUE(planned) << planned.status().message();
  const std::size_t bytes = planned->workspace_bytes();
  ASSERT_GT(bytes, 0u);
  EXPECT_THAT(planned->run({}, nullptr, 0).message(),
              HasSubstr("workspace has 0 bytes: the plan needs " + std::to_string(bytes)));
  std::vector<std::byte> memory(bytes + 2 * kWorkspaceAlignment);
  auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  address = (address + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  auto* aligned = reinterpret_cast<std::byte*>(address);
  EXPECT_THAT(planned->run({}, aligned, bytes - 1).message(), HasSubstr("the plan needs"));
  EXPECT_THAT(planned->run({}, aligned + 8, bytes).message(),
              HasSubstr("workspace is not aligned to 256 bytes"));
  EXPECT_THAT(planned->run({}, aligned, bytes).message(), HasSubstr("q has no data"));
}

TEST(Plan, WithoutQueryHeadsAppendsAndWritesNothingElse) {
  AttentionProblem p = small_append();
  p.q = p.out = TensorSpec::contiguous(kF32, {1, 4, 0, 16});
  p.lse = TensorSpec::contiguous(kF32, {1, 0, 4});
  std::vector<float> guard(64, 7), k(6 * 2 * 16, 1), v = k, appended(2 * 2 * 16, 3);
  const std::int32_t used = 4;
  AttentionTensors tensors{.q = guard.data(), .k = k.data(), .v = v.data()};
  tensors.out = tensors.lse = guard.data();
  tensors.seqused_k = &used;
  tensors.k_new = tensors.v_new = appended.data();
  const Status status = forward(p, tensors, Device::cpu(2));
  ASSERT_TRUE(status) << status.message();
  EXPECT_THAT(guard, Each(7.0f));
  EXPECT_THAT(std::vector<float>(k.begin(), k.begin() + 128), Each(1.0f));
  EXPECT_THAT(std::vector<float>(k.begin() + 128, k.end()), Each(3.0f));
  EXPECT_THAT(std::vector<float>(v.begin() + 128, v.end()), Each(3.0f));
}

TEST(Plan, IsCachedAndSeesChanges) {
  const AttentionProblem problem = small_forward();
  const auto first = plan(problem, Device::cpu(2));
  const auto second = plan(problem, Device::cpu(2));
  ASSERT_TRUE(first && second);
  EXPECT_EQ(&first->explanation(), &second->explanation());
  const auto threads = plan(problem, Device::cpu(3));
  ASSERT_TRUE(threads);
  EXPECT_NE(&first->explanation(), &threads->explanation());
  AttentionProblem causal = problem;
  causal.causal = true;
  const auto other = plan(causal, Device::cpu(2));
  ASSERT_TRUE(other);
  EXPECT_NE(&first->explanation(), &other->explanation());
  EXPECT_TRUE(other->problem().causal);
}

TEST(Plan, EveryOptionIsPartOfTheCacheKey) {
  AttentionProblem base = small_forward();
  base.q = base.out = TensorSpec::contiguous(kF32, {8, 4, 16});
  base.k = base.v = TensorSpec::contiguous(kF32, {8, 2, 16});
  base.lse = TensorSpec::contiguous(kF32, {4, 8});
  base.cu_seqlens_q = base.cu_seqlens_k = TensorSpec::contiguous(DType::kInt32, {3});
  const auto first = plan(base, Device::cpu(2));
  ASSERT_TRUE(first) << first.status().message();
  using Change = void (*)(AttentionProblem&);
  const Change changes[] = {
      [](AttentionProblem& p) { p.max_seqlen_q = 5; },
      [](AttentionProblem& p) { p.max_seqlen_k = 5; },
      [](AttentionProblem& p) { p.softmax_scale = 0.25f; },
      [](AttentionProblem& p) { p.softcap = 3; },
      [](AttentionProblem& p) { p.dropout_p = 0.5f; },
      [](AttentionProblem& p) { p.window_size_left = 2; },
      [](AttentionProblem& p) { p.window_size_right = 2; },
      [](AttentionProblem& p) { p.causal = true; },
      [](AttentionProblem& p) { p.rotary_interleaved = true; },
      [](AttentionProblem& p) { p.deterministic = true; },
      [](AttentionProblem& p) { p.batch_invariant = true; },
      [](AttentionProblem& p) { p.lse = {}; },
      [](AttentionProblem& p) { p.q.strides[0] = 128; },
      [](AttentionProblem& p) { p.v.strides[2] = 0; },
  };
  for (const Change change : changes) {
    AttentionProblem changed = base;
    change(changed);
    const auto other = plan(changed, Device::cpu(2));
    ASSERT_TRUE(other) << other.status().message();
    EXPECT_EQ(other->problem(), changed) << "change " << &change - changes;
  }
}

TEST(Plan, DefaultThreadsFollowTheEnvironment) {
  const ScopedEnvironment threads("FOVEAL_NUM_THREADS", "3");
  const auto planned = plan(small_forward(), Device::cpu());
  ASSERT_TRUE(planned);
  EXPECT_EQ(planned->explanation().device.num_threads, 3);
}

TEST(Plan, TheInstructionSetFollowsTheEnvironment) {
  const ScopedEnvironment isa("FOVEAL_CPU_ISA", "portable");
  const auto lowered = plan(small_forward(), Device::cpu(2));
  ASSERT_TRUE(lowered);
  EXPECT_EQ(lowered->explanation().device.isa, "portable");
  EXPECT_THAT(lowered->explanation().configuration, HasSubstr("threads, portable"));
  EXPECT_THAT(lowered->explanation().device.limits_source, HasSubstr("2 threads of portable"));
}

TEST(Plan, RefusesAnInstructionSetThatIsNotThere) {
  const ScopedEnvironment isa("FOVEAL_CPU_ISA", "mmx");
  EXPECT_THAT(plan(small_forward(), Device::cpu(2)).status().message(),
              AllOf(HasSubstr("FOVEAL_CPU_ISA=mmx: this processor has "), HasSubstr("portable")));
}

TEST(Plan, RefusesAnEnvironmentThatMakesNoSense) {
  for (const char* value : {"abc", "0", "-3", "1025", "99999999999999999999"}) {
    const ScopedEnvironment threads("FOVEAL_NUM_THREADS", value);
    EXPECT_EQ(plan(small_forward(), Device::cpu()).status().message(),
              std::string("FOVEAL_NUM_THREADS=") + value + ": a whole number from 1 to 1024");
  }
  for (const char* value : {"abc", "0", "-3"}) {
    const ScopedEnvironment smem("FOVEAL_MAX_SMEM", value);
    EXPECT_EQ(device_from_name("sm_90").status().message(),
              std::string("FOVEAL_MAX_SMEM=") + value + ": a number of bytes above 0");
  }
}

TEST(Plan, RefusesThreadsOutOfRange) {
  EXPECT_EQ(plan(small_forward(), Device::cpu(-1)).status().message(),
            "num_threads -1: between 0 and 1024");
  EXPECT_EQ(plan(small_forward(), Device::cpu(1025)).status().message(),
            "num_threads 1025: between 0 and 1024");
}

TEST(Log, HearsOfNewPlans) {
  std::vector<std::string> heard;
  set_log_callback(
      [](void* context, LogLevel, const char* message) {
        static_cast<std::vector<std::string>*>(context)->emplace_back(message);
      },
      &heard);
  AttentionProblem problem = small_forward();
  problem.softcap = 17.25f;  // a problem that no other test plans
  ASSERT_TRUE(plan(problem, Device::cpu(2)));
  ASSERT_FALSE(heard.empty());
  EXPECT_THAT(heard[0], HasSubstr("softcap 17.25"));
  const std::size_t count = heard.size();
  ASSERT_TRUE(plan(problem, Device::cpu(2)));
  EXPECT_EQ(heard.size(), count) << "a cached plan is no new choice";
  set_log_callback(nullptr, nullptr);
  problem.softcap = 17.5f;
  ASSERT_TRUE(plan(problem, Device::cpu(2)));
  EXPECT_EQ(heard.size(), count);
}

TEST(Devices, AreFoundByName) {
  EXPECT_EQ(device_from_name("cpu:3")->num_threads, 3);
  EXPECT_EQ(device_from_name("sm_90")->smem_per_block_bytes, 227 << 10);
  for (const char* name : {"", "gpu", "cpu:", "cpu:0", "cpu:x", "cuda:x", "sm_"}) {
    const auto device = device_from_name(name);
    ASSERT_FALSE(device) << name;
    EXPECT_THAT(device.status().message(),
                HasSubstr("cpu, cpu:THREADS, cuda, cuda:INDEX or sm_NN"));
  }
  EXPECT_THAT(device_from_name("sm_75").status().message(),
              HasSubstr("device sm_75: described are"));
  const ScopedEnvironment smem("FOVEAL_MAX_SMEM", "101376");
  EXPECT_EQ(device_from_name("sm_90")->smem_per_block_bytes, 101376);
}

TEST(Devices, TheCpuComesFirstWithItsLimits) {
  const std::vector<DeviceInfo> list = devices();
  ASSERT_FALSE(list.empty());
  EXPECT_EQ(list[0].type, DeviceType::kCpu);
  EXPECT_GT(list[0].fp32_gflops, 0);
  EXPECT_GT(list[0].read_gbs, 0);
  EXPECT_FALSE(list[0].limits_source.empty());
  EXPECT_EQ(usable_kernels(list[0]).size(), kernels().size());
}

TEST(Work, CountsVisiblePairsLikeALoop) {
  for (std::int64_t seqlen_q = 0; seqlen_q <= 6; ++seqlen_q) {
    for (std::int64_t seqlen_k = 0; seqlen_k <= 6; ++seqlen_k) {
      for (std::int64_t left = -1; left <= 7; ++left) {
        for (std::int64_t right = -1; right <= 7; ++right) {
          const algorithm::Mask mask{seqlen_q, seqlen_k,
                                     algorithm::make_window(left, right, false)};
          double pairs = 0;
          for (std::int64_t i = 0; i < seqlen_q; ++i) {
            for (std::int64_t j = 0; j < seqlen_k; ++j) {
              const std::int64_t distance = j - (i + seqlen_k - seqlen_q);
              pairs += (left < 0 || distance >= -left) && (right < 0 || distance <= right);
            }
          }
          ASSERT_EQ(algorithm::visible_pairs(mask), pairs)
              << seqlen_q << " " << seqlen_k << " " << left << " " << right;
        }
      }
    }
  }
}

TEST(Work, FollowsTheFormulas) {
  AttentionProblem problem = small_forward();
  problem.causal = true;  // 3 + 4 + 5 + 6 pairs a head
  const AttentionWork work = attention_work(problem);
  EXPECT_EQ(work.visible_pairs, 4 * 18);
  EXPECT_EQ(work.flops, 4 * 16 * 4 * 18);
  EXPECT_EQ(work.read_bytes, 4 * (4 * 4 * 16 + 2 * 6 * 2 * 16));
  EXPECT_EQ(work.written_bytes, 4 * (4 * 4 * 16 + 4 * 4));
}

}  // namespace
}  // namespace foveal
