// cpu_blocked_bwd against the oracle, feature by feature, and what it promises beside numbers:
// equal bits for any number of threads, a workspace that grows with the sequence, a reason where it
// refuses.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <foveal/experimental.hpp>

#include "support/built_case.hpp"
#include "support/case_runner.hpp"
#include "support/comparison.hpp"
#include "support/random.hpp"

namespace foveal::test {
namespace {

constexpr const char* kKernel = "cpu_blocked_bwd";

/// Two sequences of more than two tiles each way, two KV heads of two query heads.
Case two_sequences() {
  Case c;
  c.kernel = kKernel;
  c.pass = Pass::kBackward;
  c.lens = {{150, 170}, {150, 170}};
  c.nheads_k = 2;
  c.group = 2;
  c.headdim = 24;
  c.num_threads = 2;
  c.deterministic = true;
  return c;
}

/// Documents of all sorts: empty on either side or both, straddling, longer than a tile.
Case documents() {
  Case c = two_sequences();
  c.lens = {{0, 4}, {3, 5}, {70, 90}, {0, 0}, {5, 0}, {90, 70}, {64, 64}, {1, 1}};
  c.q_form = QForm::kPacked;
  c.k_form = KForm::kPacked;
  return c;
}

TEST(CpuBackward, EveryDtype) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const bool fp32 : {false, true}) {
      Case c = two_sequences();
      c.dtype = dtype;
      c.causal = true;
      c.fp32_out = c.fp32_grads = fp32;
      EXPECT_TRUE(case_passes(c));
    }
  }
}

TEST(CpuBackward, EveryKindOfHeaddim) {
  for (const std::int64_t headdim : {1, 3, 16, 33, 64, 96, 127, 192, 257, 512}) {
    Case c = two_sequences();
    c.lens = {{70, 130}};
    c.headdim = headdim;
    EXPECT_TRUE(case_passes(c));
  }
}

TEST(CpuBackward, HeaddimOfVDiffers) {
  for (const auto& [d, dv] : {std::pair<std::int64_t, std::int64_t>{192, 128}, {5, 40}}) {
    Workbench bench;
    bench.problem.pass = Pass::kBackward;
    bench.problem.causal = true;
    const auto add = [&](const char* name, std::int64_t rows, std::int64_t heads,
                         std::int64_t dim) {
      bench.add(name, TensorSpec::contiguous(DType::kFloat32, {1, rows, heads, dim}));
      Random values(static_cast<std::uint64_t>(rows * heads + dim));
      bench.fill(name, [&](const Index&) { return values.normal(); });
    };
    add("q", 70, 4, d);
    add("k", 90, 2, d);
    add("v", 90, 2, dv);
    add("dout", 70, 4, dv);
    bench.add("out", TensorSpec::contiguous(DType::kFloat32, {1, 70, 4, dv}));
    bench.add("lse", TensorSpec::contiguous(DType::kFloat32, {1, 4, 70}));
    bench.add("dq", bench.problem.q);
    bench.add("dk", bench.problem.k);
    bench.add("dv", bench.problem.v);
    AttentionProblem forward = bench.problem;
    forward.pass = Pass::kForward;
    forward.dout = forward.dq = forward.dk = forward.dv = {};
    const Result<OracleResult> fwd = oracle(forward, bench.tensors);
    ASSERT_TRUE(fwd.is_ok()) << fwd.status().message();
    std::size_t next = 0;
    bench.fill("out", [&](const Index&) { return fwd->out[next++]; });
    next = 0;
    bench.fill("lse", [&](const Index&) { return fwd->lse[next++]; });
    bench.freeze();
    const Result<OracleResult> expected = oracle(bench.problem, bench.tensors);
    ASSERT_TRUE(expected.is_ok()) << expected.status().message();
    const Status status = bench.run({.kernel = kKernel, .num_threads = 2});
    ASSERT_TRUE(status.is_ok()) << status.message();
    EXPECT_TRUE(bench.check_memory());
    EXPECT_TRUE(compare_norm(bench.at("dq"), expected->dq, {}));
    EXPECT_TRUE(compare_norm(bench.at("dk"), expected->dk, {}));
    EXPECT_TRUE(compare_norm(bench.at("dv"), expected->dv, {}));
  }
}

TEST(CpuBackward, EveryKindOfGroup) {
  for (const std::int64_t group : {1, 3, 6, 7, 16, 70}) {
    Case c = two_sequences();
    c.lens = {{11, 90}, {11, 90}};
    c.group = group;
    c.causal = true;
    c.window_left = 70;
    EXPECT_TRUE(case_passes(c));
  }
}

TEST(CpuBackward, CausalOfEveryShape) {
  for (const auto& lens : {SeqLens{150, 150}, {3, 200}, {200, 3}, {64, 128}, {65, 64}, {1, 1}}) {
    Case c = two_sequences();
    c.lens = {lens, lens};
    c.causal = true;
    EXPECT_TRUE(case_passes(c));
  }
}

TEST(CpuBackward, Windows) {
  struct Sides {
    std::int64_t left, right;
  };
  for (const Sides sides : {Sides{5, 0}, {-1, 3}, {17, 9}, {0, 0}, {100, 100}, {500, 500}}) {
    for (const auto& lens : {SeqLens{150, 170}, {170, 40}}) {
      Case c = two_sequences();
      c.lens = {lens, lens};
      c.window_left = sides.left;
      c.window_right = sides.right;
      EXPECT_TRUE(case_passes(c));
    }
  }
}

TEST(CpuBackward, Softcap) {
  for (const bool packed : {false, true}) {
    Case c = packed ? documents() : two_sequences();
    c.softcap = 1.5f;
    c.causal = packed;
    EXPECT_TRUE(case_passes(c));
  }
}

TEST(CpuBackward, BiasIsSummedOverEveryBroadcastAxis) {
  for (int axes = 0; axes < 16; ++axes) {
    Case c = two_sequences();
    c.lens = {{130, 150}, {130, 150}};
    c.bias = axes % 2 == 0 ? BiasKind::kFloat32 : BiasKind::kSameDtype;
    c.dbias = true;
    c.causal = axes % 3 == 0;
    c.softcap = axes % 4 == 0 ? 2.0f : 0.0f;
    for (std::size_t axis = 0; axis < 4; ++axis) {
      if ((axes >> axis & 1) != 0) c.bias_shape[axis] = '1';
    }
    EXPECT_TRUE(case_passes(c));
  }
}

TEST(CpuBackward, BiasInHalfPrecisionAndCachesOfDifferentLengths) {
  Case c = two_sequences();
  c.dtype = DType::kBFloat16;
  c.bias = BiasKind::kSameDtype;
  c.dbias = true;
  c.lens = {{150, 10}, {20, 170}, {0, 30}};
  c.q_form = QForm::kUsed;
  c.k_form = KForm::kCache;
  c.slack_q = 5;
  c.slack_k = 7;
  c.leftpad = 9;
  c.q_layout = c.out_layout = Layout::kPadded;
  EXPECT_TRUE(case_passes(c));
}

TEST(CpuBackward, BoolMaskHidesKeysAndWholeRows) {
  for (const char* shape : {"bhqk", "11q1", "111k", "b11k"}) {
    Case c = two_sequences();
    c.bias = BiasKind::kMask;
    c.bias_shape = shape;
    EXPECT_TRUE(case_passes(c));
  }
}

TEST(CpuBackward, Alibi) {
  for (const AlibiKind kind : {AlibiKind::kHeads, AlibiKind::kBatchHeads}) {
    Case c = documents();
    c.alibi = kind;
    c.causal = kind == AlibiKind::kHeads;
    EXPECT_TRUE(case_passes(c));
  }
}

TEST(CpuBackward, SinksAndDlse) {
  for (const bool packed : {false, true}) {
    Case c = packed ? documents() : two_sequences();
    c.causal = true;
    c.sinks = c.dsinks = true;
    c.dlse = true;
    EXPECT_TRUE(case_passes(c));
  }
}

TEST(CpuBackward, Dropout) {
  for (const float p : {0.1f, 0.6f, 1.0f}) {
    Case c = documents();
    c.dropout = p;
    c.dlse = p > 0.5f;
    c.causal = true;
    EXPECT_TRUE(case_passes(c));
  }
}

TEST(CpuBackward, PackedDocuments) {
  for (const QForm q_form : {QForm::kPacked, QForm::kPackedUsed}) {
    for (const KForm k_form : {KForm::kPacked, KForm::kPackedUsed}) {
      Case c = documents();
      c.q_form = q_form;
      c.k_form = k_form;
      c.slack_q = c.slack_k = 4;
      c.window_left = 33;
      c.leftpad = k_form == KForm::kPackedUsed ? 3 : 0;
      EXPECT_TRUE(case_passes(c));
    }
  }
}

TEST(CpuBackward, LengthsAndLeftPaddingOfACache) {
  for (const std::int64_t leftpad : {0, 5, 70}) {
    Case c = two_sequences();
    c.lens = {{150, 10}, {20, 170}, {0, 30}, {64, 64}, {7, 0}};
    c.q_form = QForm::kUsed;
    c.k_form = KForm::kCache;
    c.slack_q = 5;
    c.slack_k = 7;
    c.leftpad = leftpad;
    c.causal = true;
    c.dropout = 0.2f;
    EXPECT_TRUE(case_passes(c));
  }
}

TEST(CpuBackward, EveryLayout) {
  for (const Layout layout :
       {Layout::kBhsd, Layout::kPackedSlice, Layout::kDimOutermost, Layout::kExpandedHeads,
        Layout::kExpandedBatch, Layout::kExpandedAll, Layout::kReversed, Layout::kMisaligned,
        Layout::kPadded, Layout::kOddUnitStrides}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
      const bool expanded = layout == Layout::kExpandedHeads || layout == Layout::kExpandedBatch ||
                            layout == Layout::kExpandedAll;
      Case c = two_sequences();
      c.lens = {{20, 70}, {20, 70}};
      c.dtype = dtype;
      c.causal = true;
      c.dlse = true;
      c.q_layout = c.kv_layout = layout;
      c.out_layout = expanded ? Layout::kBshd : layout;
      EXPECT_TRUE(case_passes(c));
      // One of the two alone, so that no stride is taken from another operand.
      c.q_layout = Layout::kBshd;
      EXPECT_TRUE(case_passes(c));
    }
  }
}

TEST(CpuBackward, AnySubsetOfTheGradients) {
  for (int only = 0; only < 5; ++only) {
    Case c = two_sequences();
    c.lens = {{70, 90}};
    c.causal = true;
    c.sinks = true;
    c.bias = BiasKind::kFloat32;
    c.dq = only == 0;
    c.dk = only == 1;
    c.dv = only == 2;
    c.dbias = only == 3;
    c.dsinks = only == 4;
    EXPECT_TRUE(case_passes(c));
  }
}

TEST(CpuBackward, EverythingAtOnce) {
  Case c = two_sequences();
  c.lens = {{150, 90}, {40, 170}};
  c.dtype = DType::kBFloat16;
  c.q_form = QForm::kUsed;
  c.k_form = KForm::kCache;
  c.slack_q = c.slack_k = 3;
  c.leftpad = 6;
  c.headdim = 40;
  c.group = 3;
  c.causal = true;
  c.window_left = 100;
  c.softcap = 3.0f;
  c.scale = 0.3f;
  c.sinks = c.dsinks = true;
  c.bias = BiasKind::kFloat32;
  c.bias_shape = "1hqk";
  c.dbias = true;
  c.alibi = AlibiKind::kBatchHeads;
  c.dropout = 0.2f;
  c.dlse = true;
  c.q_layout = Layout::kDimOutermost;
  c.kv_layout = Layout::kReversed;
  c.out_layout = Layout::kPadded;
  EXPECT_TRUE(case_passes(c));
}

TEST(CpuBackward, EmptyTensors) {
  const std::vector<std::vector<SeqLens>> batches = {{}, {{0, 5}}, {{5, 0}}, {{0, 0}, {0, 0}}};
  for (const std::vector<SeqLens>& lens : batches) {
    for (const bool packed : {false, true}) {
      Case c = two_sequences();
      c.lens = lens;
      c.sinks = c.dsinks = true;
      if (packed) {
        c.q_form = QForm::kPacked;
        c.k_form = KForm::kPacked;
      } else if (!lens.empty()) {
        c.bias = BiasKind::kFloat32;
        c.bias_shape = "1111";
        c.dbias = true;
      }
      EXPECT_TRUE(case_passes(c));
    }
  }
}

/// Keys 0 .. 59 and 60 .. 99 on two ranks: each has all queries, and out and lse of the whole.
TEST(CpuBackward, KeysOverTwoRanksAddUp) {
  Case whole = two_sequences();
  whole.lens = {{30, 100}};
  whole.dlse = true;
  BuiltCase all(whole);
  const Result<OracleResult> expected = oracle(all.bench.problem, all.bench.tensors);
  ASSERT_TRUE(expected.is_ok()) << expected.status().message();

  std::vector<double> dq(expected->dq.size(), 0.0);
  for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 60}, {60, 40}}) {
    Case part = whole;
    part.lens = {{30, count}};
    BuiltCase rank(part);
    for (const char* name : {"q", "out", "lse", "dout", "dlse"}) {
      rank.bench.fill(name, [&](const Index& index) { return all.at(name, index); });
    }
    for (const char* name : {"k", "v"}) {
      rank.bench.fill(name, [&](const Index& index) {
        return all.at(name, {index[0], index[1] + first, index[2], index[3]});
      });
    }
    rank.bench.freeze();
    const Status status = rank.run();
    ASSERT_TRUE(status.is_ok()) << status.message();
    const std::vector<double> part_of_dq = rank.bench.at("dq").values();
    for (std::size_t i = 0; i < dq.size(); ++i) dq[i] += part_of_dq[i];
    const auto row = static_cast<std::size_t>(whole.nheads_k * whole.headdim);
    const auto from = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first) * row);
    const auto to = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first + count) * row);
    const std::vector<double> dk(expected->dk.begin() + from, expected->dk.begin() + to);
    const std::vector<double> dv(expected->dv.begin() + from, expected->dv.begin() + to);
    EXPECT_TRUE(compare_norm(rank.bench.at("dk"), dk, {}));
    EXPECT_TRUE(compare_norm(rank.bench.at("dv"), dv, {}));
  }
  for (std::size_t i = 0; i < dq.size(); ++i) EXPECT_NEAR(dq[i], expected->dq[i], 1e-5);
}

/// Runs workers one after the other, the last first.
void run_backwards(void* context, std::int64_t num_tasks,
                   void (*task)(void* task_context, std::int64_t index), void* task_context) {
  ++*static_cast<int*>(context);
  for (std::int64_t index = num_tasks; index-- > 0;) task(task_context, index);
}

TEST(CpuBackwardThreads, AnyNumberGivesTheSameBits) {
  Case dense = two_sequences();
  dense.causal = true;
  dense.sinks = dense.dsinks = true;
  dense.bias = BiasKind::kFloat32;
  dense.bias_shape = "1h1k";
  dense.dbias = true;
  dense.dropout = 0.1f;
  Case packed = documents();
  packed.dtype = DType::kBFloat16;
  packed.window_left = 40;
  for (Case c : {dense, packed}) {
    c.num_threads = 1;
    BuiltCase one(c);
    ASSERT_TRUE(one.run().is_ok());
    for (std::int64_t threads = 2; threads <= 5; ++threads) {
      BuiltCase many(c);
      int calls = 0;
      const CpuExecutor executor{run_backwards, &calls};
      const bool own_pool = threads == 4;
      ASSERT_TRUE(many.bench
                      .run({.kernel = kKernel,
                            .num_threads = threads,
                            .executor = own_pool ? &executor : nullptr})
                      .is_ok());
      EXPECT_EQ(calls, own_pool ? 2 : 0) << "the plan has several workers and two parallel steps";
      for (const char* name : {"dq", "dk", "dv", "dbias", "dsinks"}) {
        if (!one.bench.has(name)) continue;
        EXPECT_TRUE(same_bits(one.bench.at(name), many.bench.at(name))) << threads << " threads";
      }
    }
  }
}

}  // namespace
}  // namespace foveal::test
