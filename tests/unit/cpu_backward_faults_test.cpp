// Faults that users of other kernels met in masks, lengths and layouts, numbered as in the
// collection that they come from, with right answers worked out by hand.
#include <sys/mman.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "unit/backward_probe.hpp"

namespace foveal::test {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

/// 40 rows on 64 keys, D = 512, 8 heads on 1, some rows masked as a whole.
Case masked_rows_case(bool sinks) {
  Case c = backward_case({{40, 64}}, 512);
  c.group = 8;
  c.bias = BiasKind::kMask;
  c.bias_shape = "11q1";
  c.sinks = c.dsinks = sinks;
  return c;
}

void mask_rows(BuiltCase& built, std::int64_t first, std::int64_t count) {
  built.bench.fill("bias", [&](const Index& index) {
    return index[2] >= first && index[2] < first + count ? 0.0 : 1.0;
  });
  if (built.c.sinks) built.bench.fill("sinks", 0.0);
}

TEST(CpuBackwardFaults, Nr1_RowsThatAreMaskedAsAWhole) {
  struct Rows {
    std::int64_t first, count;
  };
  for (const bool sinks : {false, true}) {
    for (const Rows rows : {Rows{0, 14}, {20, 14}, {0, 40}}) {
      BuiltCase built(masked_rows_case(sinks));
      mask_rows(built, rows.first, rows.count);
      run_gradient_probe(built);
      const double keys = sinks ? 65.0 : 64.0;  // a sink of 0 weighs as much as a key
      expect_value(built, "dv", static_cast<double>(8 * (40 - rows.count)) / keys, 1e-5);
      expect_value(built, "dk", 0);
      expect_finite(built, "dq");  // no NaN
      if (!sinks) continue;
      // out is 2016 / 65 in 512 columns, and dsink = -sum over rows of 1 / 65 * delta.
      const double delta = 512 * 2016.0 / 65.0;
      expect_value(built, "dsinks", -static_cast<double>(40 - rows.count) * delta / 65.0, 0.05);
    }
  }
}

TEST(CpuBackwardFaults, Nr1_MaskedRowsAddNothingWhateverTheyHold) {
  BuiltCase masked(masked_rows_case(false));
  mask_rows(masked, 20, 14);
  Case c = backward_case({{26, 64}}, 512);
  c.group = 8;
  BuiltCase alone(c);
  // Row i of `alone` is row i, or past the masked ones i + 14, of `masked`.
  for (const char* name : {"q", "dout"}) {
    alone.bench.fill(name, [&](const Index& index) {
      return masked.at(name, {0, index[1] < 20 ? index[1] : index[1] + 14, index[2], index[3]});
    });
  }
  for (const char* name : {"k", "v"}) {
    alone.bench.fill(name, [&](const Index& index) { return masked.at(name, index); });
  }
  masked.compute_forward();
  for (const char* name : {"q", "dout", "out"}) {
    Operand& operand = masked.bench.at(name);
    for_each_index(operand.spec, [&](const Index& index) {
      if (index[1] >= 20 && index[1] < 34) operand.set(index, std::nan(""));
    });
  }
  masked.bench.freeze();
  ASSERT_TRUE(masked.run().is_ok());
  run_anew(alone);
  EXPECT_TRUE(compare_norm(masked.bench.at("dk"), alone.bench.at("dk").values(), {}));
  EXPECT_TRUE(compare_norm(masked.bench.at("dv"), alone.bench.at("dv").values(), {}));
  expect_values(masked, "dq", 1e-5, [&](const Index& index) {
    if (index[1] >= 20 && index[1] < 34) return 0.0;
    return alone.at("dq", {0, index[1] < 20 ? index[1] : index[1] - 14, index[2], index[3]});
  });
}

TEST(CpuBackwardFaults, Nr3_CausalWithMoreQueriesThanKeys) {
  const double dv[] = {1 + 1.0 / 2 + 1.0 / 3, 1.0 / 2 + 1.0 / 3, 1.0 / 3};
  for (const std::int64_t n_q : {8, 300}) {
    for (const bool packed : {false, true}) {
      Case c = packed ? packed_case({{n_q, 3}}, 64) : backward_case({{n_q, 3}}, 64);
      c.causal = true;
      BuiltCase probe(c);
      run_gradient_probe(probe);
      expect_values(probe, "dv", 1e-6,
                    [&](const Index& index) { return dv[index[packed ? 0 : 1]]; });
      expect_value(probe, "dk", 0);

      BuiltCase random(c);
      run_anew(random);
      expect_finite(random, "dq");
      for (std::int64_t i = 0; i < n_q - 3; ++i) {
        EXPECT_EQ(random.at("dq", random.q_index(0, i, 0, 5)), 0.0) << "row " << i;
      }
      EXPECT_NE(random.at("dq", random.q_index(0, n_q - 1, 0, 5)), 0.0);
    }
  }
}

TEST(CpuBackwardFaults, Nr4_ADocumentThatBeganInAnEarlierPack) {
  const double third = 1.0 / 3, quarter = 1.0 / 4, fifth = 1.0 / 5;
  const std::vector<double> causal = {third + quarter + fifth,
                                      third + quarter + fifth,
                                      third + quarter + fifth,
                                      quarter + fifth,
                                      fifth,
                                      1 + 0.5 + third + quarter,
                                      0.5 + third + quarter,
                                      third + quarter,
                                      quarter};
  const std::vector<double> window = {0, 0.5, 1, 1, 0.5, 1.5, 1, 1, 0.5};
  for (const std::int64_t headdim : {64, 512}) {
    for (const bool windowed : {false, true}) {
      Case c = packed_case({{3, 5}, {4, 4}}, headdim);
      c.causal = !windowed;
      c.window_left = windowed ? 1 : -1;
      c.window_right = windowed ? 0 : -1;
      const std::vector<double>& dv = windowed ? window : causal;
      BuiltCase built(c);
      run_gradient_probe(built);
      expect_values(built, "dv", 1e-6, [&](const Index& index) { return dv[at(index[0])]; });

      // Nothing of document 0 reaches document 1: not one bit of it moves.
      BuiltCase before(c);
      run_anew(before);
      BuiltCase after(c);
      for (const char* name : {"k", "v"}) {
        after.fill_keys(name, [&](std::int64_t b, std::int64_t j, std::int64_t h, std::int64_t d) {
          return b == 0 ? 1e4 : after.at(name, after.key_index(b, j, h, d));
        });
      }
      run_anew(after);
      for (const char* name : {"dq", "dk", "dv"}) {
        const std::int64_t first = name[1] == 'q' ? 3 : 5;  // of document 1
        expect_finite(after, name);
        for (std::int64_t row = first; row < first + 4; ++row) {
          EXPECT_EQ(after.at(name, {row, 0, 7}), before.at(name, {row, 0, 7}));
        }
      }
    }
  }
}

TEST(CpuBackwardFaults, Nr6_SequencesWithoutQueries) {
  for (const std::int64_t headdim : {64, 256, 512}) {
    Case c = packed_case({{0, 4}, {3, 3}, {2, 5}, {0, 2}}, headdim);
    c.group = 4;
    BuiltCase built(c);
    run_gradient_probe(built);
    expect_value(built, "dk", 0);
    expect_values(built, "dv", 1e-5, [](const Index& index) {
      return index[0] < 4 || index[0] > 11 ? 0.0 : index[0] < 7 ? 4.0 : 1.6;
    });
  }
}

/// Address space, hardly touched; null where there is not enough of it.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes) : bytes_(bytes) {
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped != MAP_FAILED) data_ = static_cast<std::byte*>(mapped);
  }
  ~SparseMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::size_t bytes_;
  std::byte* data_ = nullptr;
};

TEST(CpuBackwardFaults, Nr7_OffsetsPast2To31) {
  constexpr std::int64_t kStride = std::int64_t{1} << 30;
  const SparseMemory memory(static_cast<std::size_t>((3 * kStride + 128) * 2));
  if (memory.data() == nullptr) GTEST_SKIP() << "no address space of 6.5 GB";
  Case c = packed_case({{4, 4}}, 64);
  c.dtype = DType::kFloat16;
  BuiltCase near(c);
  ASSERT_TRUE(near.run().is_ok());

  // The same, but tokens of dout and dk lie 2^30 elements apart, side by side.
  BuiltCase far(c);
  const TensorSpec spec = TensorSpec::strided(DType::kFloat16, {4, 1, 64}, {kStride, 64, 1});
  std::byte* dout = memory.data();
  std::byte* dk = memory.data() + 64 * 2;
  for_each_index(spec, [&](const Index& index) {
    store_element(DType::kFloat16, dout, offset_of(spec, index), near.at("dout", index));
  });
  far.bench.problem.dout = far.bench.problem.dk = spec;
  far.bench.tensors.dout = dout;
  far.bench.tensors.dk = dk;
  ASSERT_TRUE(far.run().is_ok());
  EXPECT_TRUE(same_bits(near.bench.at("dq"), far.bench.at("dq")));
  EXPECT_TRUE(same_bits(near.bench.at("dv"), far.bench.at("dv")));
  expect_values(near, "dk", 0, [&](const Index& index) {
    return load_element(DType::kFloat16, dk, offset_of(spec, index));
  });
}

TEST(CpuBackwardFaults, Nr10_DoutIsOneElement) {
  Case c = backward_case({{5, 5}}, 64);
  c.causal = true;
  c.q_layout = Layout::kExpandedAll;
  BuiltCase built(c);
  ASSERT_EQ(built.bench.at("dout").spec.strides, (std::array<std::int64_t, 4>{0, 0, 0, 0}));
  run_gradient_probe(built);
  const double dv[] = {2.2833333, 1.2833333, 0.7833333, 0.45, 0.2};
  expect_values(built, "dv", 1e-6, [&](const Index& index) { return dv[index[1]]; });
  expect_value(built, "dk", 0);
}

TEST(CpuBackwardFaults, Nr10_DoutIsATransposedView) {
  Case c = backward_case({{70, 90}}, 64);
  c.nheads_k = 3;
  BuiltCase contiguous(c);
  c.q_layout = Layout::kBhsd;
  BuiltCase transposed(c);
  ASSERT_TRUE(contiguous.run().is_ok());
  ASSERT_TRUE(transposed.run().is_ok());
  for (const char* name : {"dq", "dk", "dv"}) {
    EXPECT_TRUE(same_bits(contiguous.bench.at(name), transposed.bench.at(name)));
  }
}

}  // namespace
}  // namespace foveal::test
