// cpu_blocked_fwd gives the same bits for any timing and executor and, batch invariant, for any
// number of threads and any batch.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <foveal/attention.hpp>
#include <foveal/experimental.hpp>

#include "core/half.hpp"
#include "cpu/fwd/kernel.hpp"
#include "cpu_tile.hpp"
#include "plan/kernel_table.hpp"
#include "support/built_case.hpp"
#include "support/random.hpp"

namespace foveal::cpu {
namespace {

using test::BuiltCase;
using test::Case;
using test::Index;
using test::Operand;

constexpr const char* kKernel = "cpu_blocked_fwd";

Case case_of(const std::string& line) {
  std::string error;
  const auto parsed = test::parse_case(line, error);
  EXPECT_TRUE(parsed) << error;
  return parsed.value_or(Case{});
}

std::vector<std::uint64_t> bits_of(const Operand& operand) {
  std::vector<std::uint64_t> bits;
  for (const double value : operand.values()) bits.push_back(std::bit_cast<std::uint64_t>(value));
  return bits;
}

struct ResultBits {
  std::vector<std::uint64_t> out, lse;
  bool operator==(const ResultBits&) const = default;
};

ResultBits run_bits(BuiltCase& built, std::int64_t num_threads,
                    const CpuExecutor* executor = nullptr) {
  built.bench.restore();
  const Status status =
      built.bench.run({.kernel = kKernel, .num_threads = num_threads, .executor = executor});
  EXPECT_TRUE(status) << status.message();
  return {bits_of(built.bench.at("out")), bits_of(built.bench.at("lse"))};
}

using Task = void (*)(void* task_context, std::int64_t index);

void one_after_the_other(void* /*context*/, std::int64_t num_tasks, Task task, void* task_context) {
  for (std::int64_t i = 0; i < num_tasks; ++i) task(task_context, i);
}

void last_to_first(void* /*context*/, std::int64_t num_tasks, Task task, void* task_context) {
  for (std::int64_t i = num_tasks - 1; i >= 0; --i) task(task_context, i);
}

void own_threads(void* /*context*/, std::int64_t num_tasks, Task task, void* task_context) {
  std::vector<std::thread> threads;
  for (std::int64_t i = 0; i < num_tasks; ++i) threads.emplace_back(task, task_context, i);
  for (std::thread& thread : threads) thread.join();
}

/// Prefill, ragged decode that is split, packed documents, and rows that see nothing.
constexpr const char* kThreadCases[] = {
    "forward dtype=fp16 lens=200/300 hk=2 group=3 d=48 causal=1 softcap=20",
    "forward dtype=bf16 lens=1/2500,1/3,1/1100,1/0 k=cache slack_k=10 hk=1 group=4 d=64 sinks=1",
    "forward lens=70/70,0/9,130/20,1/1,33/65 q=packed k=packed hk=2 d=33 causal=1 dropout=0.2",
    "forward dtype=fp16 lens=2/2100,5/700 q=packed_used k=paged slack_q=3 hk=2 group=2 d=16 "
    "left=900",
};

TEST(CpuForwardThreads, SamePlanSameBitsOnAnyExecutor) {
  const CpuExecutor executors[] = {
      {one_after_the_other, nullptr}, {last_to_first, nullptr}, {own_threads, nullptr}};
  for (const char* line : kThreadCases) {
    BuiltCase built(case_of(line));
    const ResultBits first = run_bits(built, 4);
    EXPECT_EQ(run_bits(built, 4), first) << line;
    for (const CpuExecutor& executor : executors) {
      EXPECT_EQ(run_bits(built, 4, &executor), first) << line;
    }
  }
}

TEST(CpuForwardThreads, BatchInvariantBitsDoNotDependOnTheThreads) {
  for (const char* line : kThreadCases) {
    BuiltCase built(case_of(std::string(line) + " batch_invariant=1"));
    const ResultBits first = run_bits(built, 1);
    for (std::int64_t num_threads = 2; num_threads <= 5; ++num_threads) {
      EXPECT_EQ(run_bits(built, num_threads), first) << num_threads << " threads: " << line;
    }
  }
}

TEST(CpuForwardThreads, OnePlanRunsOnManyThreadsAtOnce) {
  BuiltCase built(case_of(kThreadCases[1]));
  const ResultBits expected = run_bits(built, 2);
  const auto planned = plan(built.bench.problem, Device::cpu(2));
  ASSERT_TRUE(planned) << planned.status().message();
  const std::int64_t count = built.bench.problem.out.numel();
  std::vector<std::vector<std::uint16_t>> outs(3, std::vector<std::uint16_t>(count));
  std::vector<std::thread> callers;
  for (auto& out : outs) {
    callers.emplace_back([&] {
      AttentionTensors tensors = built.bench.tensors;
      std::vector<float> lse(static_cast<std::size_t>(built.bench.problem.lse.numel()));
      tensors.out = out.data();
      tensors.lse = lse.data();
      const std::size_t bytes = planned->workspace_bytes();
      const std::unique_ptr<void, decltype(&std::free)> workspace(
          std::aligned_alloc(kWorkspaceAlignment, (bytes + 255) / 256 * 256), &std::free);
      const CpuExecutor executor{one_after_the_other, nullptr};
      ASSERT_TRUE(
          planned->run(tensors, workspace.get(), bytes, const_cast<CpuExecutor*>(&executor)));
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const auto& out : outs) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double value = to_float(BFloat16{out[i]});
      ASSERT_EQ(std::bit_cast<std::uint64_t>(value), expected.out[i]) << i;
    }
  }
}

// Batch invariance -----------------------------------------------------------

/// Attends to the items of a launch in an order of the caller's, on one thread, in tiles of so many
/// rows and of so many KV heads, or as many as the plan has.
std::vector<float> attend_in_order(
    BuiltCase& built, const std::function<std::int64_t(std::int64_t, std::int64_t)>& order,
    std::int64_t tile_rows = kForwardRows[1], std::int64_t num_splits = 5,
    std::int64_t heads_per_item = 0) {
  const AttentionProblem& problem = built.bench.problem;
  const AttentionGeometry geometry = make_geometry(problem);
  planner::KernelConfig config =
      kBlockedForward.configure(problem, geometry, *device_info(Device::cpu(1)));
  const TileMath& math = tile_math(problem.q.dtype, config.isa);
  config.tile.m = tile_rows;
  config.num_splits = num_splits;
  if (heads_per_item > 0) config.heads_per_item = heads_per_item;
  size_workspace(config, math, geometry);
  std::vector<float> out(static_cast<std::size_t>(problem.out.numel()));
  AttentionTensors tensors = built.bench.tensors;
  tensors.out = out.data();
  const planner::LaunchContext context{problem, geometry, config, tensors, nullptr, nullptr};

  std::vector<std::byte> storage(work_index_bytes(geometry.batch));
  const WorkIndex index =
      build_work_index(geometry, config, seqlen_source(problem, geometry, tensors), storage.data());
  constexpr std::int64_t kSlabFloats = 1 << 20;
  const Floats tiles = aligned_floats(kSlabFloats);
  const Floats slots = aligned_floats(kSlabFloats);
  Slab tile_slab(reinterpret_cast<std::byte*>(tiles.get()), 4 * kSlabFloats);
  Slab slot_slab(reinterpret_cast<std::byte*>(slots.get()), 4 * kSlabFloats);
  const ForwardScratch scratch(tile_slab, math, config.tile, geometry);
  const ForwardPartials partials(slot_slab, index.num_slots, config.tile, geometry);
  const ForwardArgs args(context, partials);
  const std::int64_t num_items = index.queue->num_items();
  for (std::int64_t i = 0; i < num_items; ++i) {
    attend(args, scratch, index.item(order(i, num_items), geometry.nheads_k));
  }
  return out;
}

TEST(CpuForward, RowsHaveTheSameBitsInTilesOfAnySize) {
  const auto forwards = [](std::int64_t i, std::int64_t /*count*/) { return i; };
  for (const char* line : {"forward lens=200/333 group=3 d=40 causal=1 lse=0 fp32_out=1",
                           "forward lens=300/300 d=64 left=70 right=9 lse=0 fp32_out=1"}) {
    for (const char* dtype : {" dtype=fp32", " dtype=bf16"}) {
      BuiltCase built(case_of(std::string(line) + dtype));
      const std::vector<float> expected = attend_in_order(built, forwards, kForwardRows[0], 1);
      EXPECT_EQ(attend_in_order(built, forwards, kForwardRows[1], 1), expected) << line << dtype;
      EXPECT_EQ(attend_in_order(built, forwards, kForwardRows[2], 1), expected) << line << dtype;
      EXPECT_EQ(attend_in_order(built, forwards, 16, 1), expected) << line << dtype;
    }
  }
}

TEST(CpuForward, ItemsInAnyOrderGiveTheSameBits) {
  BuiltCase built(
      case_of("forward lens=2/700,3/900 q=packed k=packed hk=2 group=2 d=20 sinks=1 "
              "lse=0"));
  const auto forwards = [](std::int64_t i, std::int64_t /*count*/) { return i; };
  const std::vector<float> expected = attend_in_order(built, forwards);
  EXPECT_EQ(attend_in_order(built, [](std::int64_t i, std::int64_t n) { return n - 1 - i; }),
            expected);
  EXPECT_EQ(attend_in_order(built, [](std::int64_t i, std::int64_t n) { return (i + 7) % n; }),
            expected);
  const auto oracle_result = oracle(built.bench.problem, built.bench.tensors);
  ASSERT_TRUE(oracle_result) << oracle_result.status().message();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(expected[i], oracle_result->out[i], 1e-5) << i;
  }
}

TEST(CpuForward, HeadsTakenTogetherHaveTheBitsOfEachAlone) {
  const auto forwards = [](std::int64_t i, std::int64_t /*count*/) { return i; };
  for (const char* line :
       {"forward lens=1/700 hk=5 d=128 lse=0 fp32_out=1",
        "forward lens=1/333,1/40 k=cache slack_k=30 hk=3 group=4 d=64 sinks=1 lse=0 fp32_out=1",
        "forward lens=2/700,3/450 q=packed k=packed hk=3 group=2 d=48 left=201 softcap=9 lse=0 "
        "fp32_out=1"}) {
    for (const char* dtype : {" dtype=fp32", " dtype=bf16", " dtype=fp16"}) {
      BuiltCase built(case_of(std::string(line) + dtype));
      const std::vector<float> expected = attend_in_order(built, forwards, kForwardRows[3], 3, 1);
      EXPECT_EQ(attend_in_order(built, forwards, kForwardRows[3], 3, 2), expected) << line << dtype;
      EXPECT_EQ(attend_in_order(built, forwards, kForwardRows[3], 3, 3), expected) << line << dtype;
    }
  }
}

/// One sequence of a batch: its values are functions of `id`, wherever it stands.
struct Member {
  std::uint64_t id = 0;
  std::int64_t seqlen_q = 1;
  std::int64_t seqlen_k = 1;
};

double value_of(std::uint64_t id, std::uint64_t part, std::int64_t row, std::int64_t h,
                std::int64_t d) {
  const auto place = static_cast<std::uint64_t>((row * 64 + h) * 1024 + d);
  return test::Random(test::derive_seed(test::derive_seed(id, part), place)).normal();
}

constexpr std::int64_t kHeadsK = 2;
constexpr std::int64_t kGroup = 3;
constexpr std::int64_t kDim = 24;

/// out of member `which` of a packed (queries) batch on dense caches of `capacity`.
std::vector<std::uint64_t> member_bits(const std::vector<Member>& batch, std::size_t which,
                                       std::int64_t capacity, std::int64_t num_threads) {
  const auto count = static_cast<std::int64_t>(batch.size());
  std::vector<std::int64_t> begins = {0};
  for (const Member& member : batch) begins.push_back(begins.back() + member.seqlen_q);
  test::Workbench bench;
  const auto spec = [](std::initializer_list<std::int64_t> shape) {
    return TensorSpec::contiguous(DType::kBFloat16, shape);
  };
  bench.problem.causal = true;
  bench.problem.batch_invariant = true;
  bench.add("q", spec({begins.back(), kHeadsK * kGroup, kDim}));
  bench.add("k", spec({count, capacity, kHeadsK, kDim}));
  bench.add("v", spec({count, capacity, kHeadsK, kDim}));
  bench.add("out", spec({begins.back(), kHeadsK * kGroup, kDim}));
  bench.add("cu_seqlens_q", TensorSpec::contiguous(DType::kInt32, {count + 1}));
  bench.add("seqused_k", TensorSpec::contiguous(DType::kInt32, {count}));
  bench.fill("cu_seqlens_q",
             [&](const Index& at) { return static_cast<double>(begins.at(at[0])); });
  bench.fill("seqused_k",
             [&](const Index& at) { return static_cast<double>(batch.at(at[0]).seqlen_k); });
  for (std::size_t b = 0; b < batch.size(); ++b) {
    for (std::int64_t i = 0; i < batch[b].seqlen_q; ++i) {
      for (std::int64_t h = 0; h < kHeadsK * kGroup; ++h) {
        for (std::int64_t d = 0; d < kDim; ++d) {
          bench.at("q").set({begins[b] + i, h, d}, value_of(batch[b].id, 0, i, h, d));
        }
      }
    }
    for (std::int64_t j = 0; j < batch[b].seqlen_k; ++j) {
      for (std::int64_t h = 0; h < kHeadsK; ++h) {
        for (std::int64_t d = 0; d < kDim; ++d) {
          const auto place = static_cast<std::int64_t>(b);
          bench.at("k").set({place, j, h, d}, value_of(batch[b].id, 1, j, h, d));
          bench.at("v").set({place, j, h, d}, value_of(batch[b].id, 2, j, h, d));
        }
      }
    }
  }
  bench.freeze();
  const Status status = bench.run({.kernel = kKernel, .num_threads = num_threads});
  EXPECT_TRUE(status) << status.message();
  std::vector<std::uint64_t> bits;
  for (std::int64_t i = begins[which]; i < begins[which + 1]; ++i) {
    for (std::int64_t h = 0; h < kHeadsK * kGroup; ++h) {
      for (std::int64_t d = 0; d < kDim; ++d) {
        bits.push_back(std::bit_cast<std::uint64_t>(bench.at("out").get({i, h, d})));
      }
    }
  }
  return bits;
}

TEST(CpuForward, BatchInvariantBitsAreThoseOfTheSequenceAlone) {
  const Member members[] = {
      {1, 1, 2300},   // decode, three splits
      {2, 21, 1500},  // 63 packed rows: one tile, split
      {3, 22, 1500},  // 66 packed rows: two tiles, not split
      {4, 1, 17},
  };
  for (const Member& member : members) {
    const auto alone = member_bits({member}, 0, member.seqlen_k, 1);
    EXPECT_EQ(member_bits({member}, 0, 4096, 4), alone) << "capacity, threads " << member.id;
    EXPECT_EQ(member_bits({{7, 1, 1}, member}, 1, 2304, 2), alone) << "short mate " << member.id;
    EXPECT_EQ(member_bits({member, {8, 40, 3000}, {9, 3, 70}}, 0, 3000, 3), alone)
        << "long mates " << member.id;
  }
}

// Splits ---------------------------------------------------------------------

}  // namespace
}  // namespace foveal::cpu
