// What only a GPU can get wrong, over every CUDA kernel of the table: graphs, streams, threads, the
// current device. Skipped, with the reason, where a kernel can't run here.
#include <array>
#include <set>
#include <string_view>
#include <thread>

#include "kernels/kernel_case_test.hpp"
#include "support/comparison.hpp"
#include "support/scoped_environment.hpp"

namespace foveal::test {
namespace {

/// Heads and sequences enough that cuda_decode's blocks share them evenly.
Case shared_decode_case(DType dtype) {
  Case c{.dtype = dtype, .lens = {{1, 700}, {1, 33}, {1, 900}, {1, 0}, {1, 450}, {1, 1}}};
  c.k_form = KForm::kPaged;
  c.page_size = 64;
  c.nheads_k = 6;
  return c;
}

/// Small problems of a pass with lengths on the device; a kernel is tested with those it takes.
std::vector<Case> device_cases(Pass pass) {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
    Case decode{.pass = pass, .dtype = dtype, .lens = {{1, 700}, {1, 33}, {1, 2000}}};
    decode.k_form = KForm::kCache;
    decode.slack_k = 100;
    decode.nheads_k = 2;
    decode.group = 4;
    Case paged = decode;
    paged.k_form = KForm::kPaged;
    paged.causal = true;
    Case packed{.pass = pass, .dtype = dtype, .lens = {{70, 70}, {0, 5}, {33, 90}}};
    packed.q_form = QForm::kPacked;
    packed.k_form = KForm::kPacked;
    packed.nheads_k = 2;
    packed.group = 2;
    packed.headdim = 128;
    packed.causal = true;
    Case in_pairs = packed;  // of blocks, to which the backward gives such heads
    in_pairs.headdim = 256;
    Case wide = packed;
    wide.headdim = 512;
    if (pass == Pass::kForward) {
      cases.insert(cases.end(), {decode, paged, packed, wide, shared_decode_case(dtype)});
    }
    if (pass == Pass::kBackward) cases.insert(cases.end(), {packed, in_pairs, wide});
    if (pass == Pass::kMerge) cases.push_back({.pass = pass, .dtype = dtype, .lens = {{50, 0}}});
    if (pass != Pass::kAppend) continue;
    for (Case c : {decode, paged}) {
      c.append = 3;
      c.rotary = Rotary::kHalves;
      c.rotary_dim = 32;
      cases.push_back(c);
    }
  }
  return cases;
}

/// Problems of several tiles for every family of tiles, whose blocks end in another order each
/// time.
std::vector<Case> many_tile_cases(Pass pass) {
  std::vector<Case> cases;
  if (pass != Pass::kForward && pass != Pass::kBackward) return cases;
  const auto add = [&](DType dtype, std::int64_t headdim) {
    Case packed{.pass = pass, .dtype = dtype, .lens = {{500, 500}, {0, 5}, {333, 700}}};
    packed.q_form = QForm::kPacked;
    packed.k_form = KForm::kPacked;
    packed.nheads_k = 2;
    packed.group = 2;
    packed.headdim = headdim;
    packed.causal = true;
    Case window = packed;
    window.dtype = dtype == DType::kFloat16 ? DType::kBFloat16 : dtype;
    window.lens = {{400, 400}, {350, 350}};
    window.window_left = 200;
    Case few_rows = packed;
    few_rows.lens = {{9, 1500}, {5, 600}};
    few_rows.causal = false;
    cases.insert(cases.end(), {packed, window, few_rows});
  };
  for (const std::int64_t headdim : {64, 96, 128, 192, 256, 384, 512}) {
    add(DType::kFloat16, headdim);
  }
  add(DType::kFloat32, 128);
  if (pass == Pass::kForward) cases.push_back(shared_decode_case(DType::kFloat16));
  return cases;
}

/// A case on the GPU with a plan and a stream of its own.
struct DeviceRun {
  explicit DeviceRun(const Case& c)
      : built(c), copy(built.bench.problem, built.bench.tensors, built.bench.memory(), stream) {}

  Status prepare() {
    const ForcedKernel forced(built.c.kernel);
    const Result<Plan> planned = plan(built.bench.problem, kTestGpu);
    FOVEAL_RETURN_IF_ERROR(planned.status());
    FOVEAL_RETURN_IF_ERROR(copy.status());
    made = *planned;
    workspace = std::make_unique<DeviceWorkspace>(made->workspace_bytes(), stream);
    FOVEAL_RETURN_IF_ERROR(workspace->status());
    return copy.upload();
  }
  [[nodiscard]] Status launch() const {
    return made->run(copy.tensors(), workspace->data(), workspace->size(), stream.handle());
  }
  Status finish() {
    FOVEAL_RETURN_IF_ERROR(stream.wait());
    FOVEAL_RETURN_IF_ERROR(copy.download());
    return workspace->check_guards();
  }

  BuiltCase built;
  DeviceStream stream;
  DeviceCopy copy;
  std::optional<Plan> made;
  std::unique_ptr<DeviceWorkspace> workspace;
};

/// What a kernel gives twice: every output and cache the same bits, but for a dq whose sums have no
/// order.
::testing::AssertionResult same_results(const BuiltCase& a, const BuiltCase& b) {
  const bool ordered = a.c.pass != Pass::kBackward || a.c.deterministic;
  for (const Operand& operand : a.bench.all()) {
    const Operand& other = b.bench.at(operand.info->name);
    const bool in_bits = ordered || std::string_view(operand.info->name) != "dq";
    const auto same = in_bits ? same_bits(operand, other) : same_but_roundings(operand, other);
    if (!same) return same;
  }
  return ::testing::AssertionSuccess();
}

// Where no kernel is left to test, as by FOVEAL_TEST_KERNELS, there is no test.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaKernels);

class CudaKernels : public ::testing::TestWithParam<KernelInfo> {
 protected:
  void SetUp() override {
    const std::string reason = cuda_refusal(GetParam().name);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  /// `check(c)` for every case that the kernel takes; deterministic, where it takes that, so that
  /// all bits can be compared.
  void for_each_case(const std::function<void(const Case&)>& check) const {
    for_each_case_of(device_cases(GetParam().pass), check);
  }
  void for_each_case_of(const std::vector<Case>& cases,
                        const std::function<void(const Case&)>& check) const {
    int checked = 0;
    for (Case c : cases) {
      c.kernel = GetParam().name;
      const auto taken = [&] {
        return kernel_takes(BuiltCase(c).bench.problem, {.kernel = c.kernel});
      };
      c.deterministic = c.pass == Pass::kBackward;
      if (!taken()) c.deterministic = false;
      if (!taken()) continue;
      SCOPED_TRACE(to_line(c));
      check(c);
      ++checked;
    }
    if (checked == 0 && shared_memory_is_limited()) GTEST_SKIP() << "FOVEAL_MAX_SMEM is too small";
    EXPECT_GT(checked, 0) << "the kernel takes none of the cases";
  }
};

/// Halves what a cache holds, in host memory.
void shorten(BuiltCase& built) {
  if (!built.bench.has("seqused_k")) return;
  Operand& used = built.bench.at("seqused_k");
  for (std::size_t b = 0; b < built.sequences.size(); ++b) {
    Sequence& s = built.sequences[b];
    const std::int64_t cached = s.cached / 2;
    s.lens.k -= s.cached - cached;
    built.c.lens[b].k = s.lens.k;
    s.cached = cached;
    used.set({static_cast<std::int64_t>(b)}, static_cast<double>(cached));
  }
  built.bench.freeze();
}

TEST_P(CudaKernels, GraphReplaysWithOtherLengths) {
  for_each_case([](const Case& c) {
    DeviceRun recorded(c);
    ASSERT_TRUE(recorded.prepare());
    DeviceGraph graph;
    const Status captured = graph.capture(*recorded.made, recorded.copy.tensors(),
                                          *recorded.workspace, recorded.stream);
    ASSERT_TRUE(captured) << captured.message();
    for (const bool shortened : {false, true, false}) {
      BuiltCase direct(c);
      recorded.built.bench.copy_memory_from(direct.bench);
      if (shortened) {
        shorten(direct);
        recorded.built.bench.copy_memory_from(direct.bench);
      }
      const Status ran = direct.run();
      ASSERT_TRUE(ran) << ran.message();
      ASSERT_TRUE(recorded.copy.upload());
      const Status replayed = graph.replay(recorded.stream);
      ASSERT_TRUE(replayed) << replayed.message();
      const Status finished = recorded.finish();
      ASSERT_TRUE(finished) << finished.message();
      EXPECT_TRUE(same_results(direct, recorded.built)) << (shortened ? "shorter" : "as captured");
    }
  });
}

TEST_P(CudaKernels, StreamsDoNotDisturbEachOther) {
  for_each_case([](const Case& c) {
    BuiltCase alone(c);
    ASSERT_TRUE(alone.run());
    std::vector<std::unique_ptr<DeviceRun>> runs;
    for (int stream = 0; stream < 8; ++stream) {
      runs.push_back(std::make_unique<DeviceRun>(c));
      ASSERT_TRUE(runs.back()->prepare());
    }
    for (int repeat = 0; repeat < 3; ++repeat) {
      for (const auto& run : runs) {
        // An append goes behind what is there: twice is not once.
        if (repeat > 0 && c.append > 0) continue;
        ASSERT_TRUE(run->launch());
      }
    }
    for (const auto& run : runs) {
      const Status finished = run->finish();
      ASSERT_TRUE(finished) << finished.message();
      EXPECT_TRUE(same_results(alone, run->built));
    }
  });
}

TEST_P(CudaKernels, ThreadsShareAPlan) {
  for_each_case([](const Case& c) {
    BuiltCase alone(c);
    ASSERT_TRUE(alone.run());
    constexpr std::size_t kThreads = 4;
    std::vector<std::unique_ptr<DeviceRun>> runs;
    for (std::size_t thread = 0; thread < kThreads; ++thread) {
      runs.push_back(std::make_unique<DeviceRun>(c));
      ASSERT_TRUE(runs.back()->prepare());
      runs.back()->made = runs.front()->made;
    }
    std::vector<Status> results(kThreads);
    std::vector<std::thread> threads;
    for (std::size_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        results[thread] = runs[thread]->launch();
        if (results[thread]) results[thread] = runs[thread]->finish();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t thread = 0; thread < kThreads; ++thread) {
      ASSERT_TRUE(results[thread]) << results[thread].message();
      EXPECT_TRUE(same_results(alone, runs[thread]->built));
    }
  });
}

/// A length that none can be, in host memory; empty where the case has no lengths.
std::string spoil_lengths(BuiltCase& built) {
  for (const char* name : {"seqused_k", "cu_seqlens_k"}) {
    if (!built.bench.has(name)) continue;
    Operand& lengths = built.bench.at(name);
    lengths.set({1}, -5);
    return name;
  }
  return "";
}

TEST_P(CudaKernels, ClampsLengthsOrRefusesThemWhenAsked) {
  for_each_case([](const Case& c) {
    DeviceRun run(c);
    const std::string name = spoil_lengths(run.built);
    ASSERT_TRUE(run.prepare());
    {
      const ScopedEnvironment asked("FOVEAL_CHECK", "1");
      const Status checked = run.launch();
      if (name.empty()) {
        ASSERT_TRUE(checked) << checked.message();
      } else {
        ASSERT_EQ(checked.code(), StatusCode::kInvalidArgument);
        EXPECT_NE(checked.message().find(name), std::string::npos) << checked.message();
      }
    }
    const Status clamped = run.launch();
    ASSERT_TRUE(clamped) << clamped.message();
    const Status finished = run.finish();
    ASSERT_TRUE(finished) << finished.message();
  });
}

// One sequence has all rows or keys, or ends before it begins: others share them, tiles are listed
// twice, and blocks that wait for one another's turns wait for what never comes.
TEST_P(CudaKernels, EndsThoughLengthsContradictOneAnother) {
  for_each_case([](const Case& c) {
    for (const std::string name : {"cu_seqlens_q", "cu_seqlens_k"}) {
      for (const std::int64_t end : {1, 2}) {
        for (const bool deterministic : std::set{false, c.deterministic}) {
          Case spoilt = c;
          spoilt.deterministic = deterministic;
          DeviceRun run(spoilt);
          if (!run.built.bench.has(name)) continue;
          SCOPED_TRACE(name + "[" + std::to_string(end) + "]");
          Operand& ends = run.built.bench.at(name);
          ends.set({end}, end == 1 ? ends.get({3}) : 0.0);
          const Status prepared = run.prepare();
          ASSERT_TRUE(prepared) << prepared.message();
          const Status launched = run.launch();
          ASSERT_TRUE(launched) << launched.message();
          const Status finished = run.finish();
          ASSERT_TRUE(finished) << finished.message();
        }
      }
    }
  });
}

TEST_P(CudaKernels, GraphsAreCapturedUnchecked) {
  for_each_case([](const Case& c) {
    const ScopedEnvironment asked("FOVEAL_CHECK", "1");
    DeviceRun run(c);
    ASSERT_TRUE(run.prepare());
    DeviceGraph graph;
    const Status captured =
        graph.capture(*run.made, run.copy.tensors(), *run.workspace, run.stream);
    ASSERT_TRUE(captured) << captured.message();
    ASSERT_TRUE(run.stream.wait());
    const Status checked = run.launch();
    ASSERT_TRUE(checked) << checked.message();
    ASSERT_TRUE(run.finish());
  });
}

/// A thread whose current device is another GPU, or the same; Plan::run goes to the plan's own and
/// comes back.
TEST_P(CudaKernels, CurrentDeviceIsTheCallersAgain) {
  for_each_case([](const Case& c) {
    BuiltCase alone(c);
    ASSERT_TRUE(alone.run());
    DeviceRun run(c);
    ASSERT_TRUE(run.prepare());
    {
      const CurrentGpu elsewhere(last_gpu());
      const Status launched = run.launch();
      ASSERT_TRUE(launched) << launched.message();
      EXPECT_EQ(current_gpu(), last_gpu());
    }
    const Status finished = run.finish();
    ASSERT_TRUE(finished) << finished.message();
    EXPECT_TRUE(same_results(alone, run.built));
  });
}

TEST_P(CudaKernels, TwentyRunsAreTheSame) {
  const std::vector<Case> cases = many_tile_cases(GetParam().pass);
  if (cases.empty()) GTEST_SKIP() << "neither a forward nor a backward";
  for_each_case_of(cases, [](const Case& c) {
    DeviceRun first(c);
    DeviceRun again(c);
    ASSERT_TRUE(first.prepare());
    ASSERT_TRUE(first.launch());
    ASSERT_TRUE(first.finish());
    ASSERT_TRUE(again.prepare());
    for (int run = 1; run < 20; ++run) {
      ASSERT_TRUE(again.launch());
      const Status finished = again.finish();
      ASSERT_TRUE(finished) << finished.message();
      ASSERT_TRUE(same_results(first.built, again.built)) << "run " << run;
    }
  });
}

std::string kernel_name(const ::testing::TestParamInfo<KernelInfo>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Table, CudaKernels, ::testing::ValuesIn(cuda_kernels()), kernel_name);

/// Seed and offset lie side by side on the host; each has its own copy.
TEST(CudaHarness, CopiesSeedAndOffset) {
  if (const std::string reason = no_gpu_reason(); !reason.empty()) GTEST_SKIP() << reason;
  const std::array<std::uint64_t, 2> state{0x1234567890abcdefu, 42};
  AttentionTensors tensors;
  tensors.dropout_seed_ptr = &state[0];
  tensors.dropout_offset_ptr = &state[1];
  const DeviceStream stream;
  const DeviceCopy copy({}, tensors, {}, stream);
  ASSERT_TRUE(copy.upload());
  std::array<std::uint64_t, 2> seen{};
  ASSERT_TRUE(copy_bytes(&seen[0], copy.tensors().dropout_seed_ptr, 8, stream));
  ASSERT_TRUE(copy_bytes(&seen[1], copy.tensors().dropout_offset_ptr, 8, stream));
  EXPECT_EQ(seen, state);
}

/// A stray write on the GPU is seen like one on the host.
TEST(CudaHarness, SeesStrayWrites) {
  if (const std::string reason = no_gpu_reason(); !reason.empty()) GTEST_SKIP() << reason;
  BuiltCase built({.pass = Pass::kMerge, .lens = {{5, 0}}, .headdim = 8});
  ASSERT_TRUE(built.run());
  const DeviceStream stream;
  const DeviceCopy copy(built.bench.problem, built.bench.tensors, built.bench.memory(), stream);
  ASSERT_TRUE(copy.upload());
  ASSERT_TRUE(copy.download());
  ASSERT_TRUE(built.bench.check_memory());
  const Operand& out = built.bench.at("out");
  const auto spoil = [&](const void* device, std::int64_t byte, const char* expected) {
    auto* at = static_cast<std::byte*>(const_cast<void*>(device)) + byte;
    ASSERT_TRUE(fill_bytes(at, 0x11, 1, stream));
    ASSERT_TRUE(copy.download());
    const ::testing::AssertionResult result = built.bench.check_memory();
    EXPECT_FALSE(result);
    EXPECT_NE(std::string(result.message()).find(expected), std::string::npos) << result.message();
    BuiltCase again({.pass = Pass::kMerge, .lens = {{5, 0}}, .headdim = 8});
    ASSERT_TRUE(again.run());
    built.bench.copy_memory_from(again.bench);
    ASSERT_TRUE(copy.upload());
  };
  const auto bytes = static_cast<std::int64_t>(out.memory.size());
  spoil(copy.tensors().out, -1, "out: a guard byte");
  spoil(copy.tensors().out, bytes, "out: a guard byte");
  spoil(copy.tensors().out_a, 0, "out_a is an input and was changed");

  const DeviceWorkspace workspace(64, stream);
  EXPECT_TRUE(workspace.check_guards());
  ASSERT_TRUE(fill_bytes(static_cast<std::byte*>(workspace.data()) + 64, 0, 1, stream));
  EXPECT_FALSE(workspace.check_guards());
}

}  // namespace
}  // namespace foveal::test
