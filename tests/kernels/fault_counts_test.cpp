// Fault class 8: more sequences, heads or query tiles than one axis of a GPU's grid can count.
#include <cstring>

#include "kernels/fault_probe.hpp"

namespace foveal::test {
namespace {

constexpr std::int64_t kMany = 70'000;  // above 65,535
constexpr std::int64_t kHeaddim = 64;

/// One query and one key each, so that out = v and lse = the one logit, (b mod 7) / 8.
struct ManyRows {
  std::vector<float> q, k, v;
};

enum class Arrangement { kBatch, kHeads, kPacked, kDecode };

/// Spec of `rows` vectors: along the batch, the heads or the tokens of a packed tensor.
TensorSpec spec_of(Arrangement arrangement, DType dtype) {
  switch (arrangement) {
    case Arrangement::kBatch:
    case Arrangement::kDecode: return TensorSpec::contiguous(dtype, {kMany, 1, 1, kHeaddim});
    case Arrangement::kHeads: return TensorSpec::contiguous(dtype, {1, 1, kMany, kHeaddim});
    case Arrangement::kPacked: return TensorSpec::contiguous(dtype, {kMany, 1, kHeaddim});
  }
  return {};
}

TensorSpec lse_of(Arrangement arrangement) {
  switch (arrangement) {
    case Arrangement::kBatch:
    case Arrangement::kDecode: return TensorSpec::contiguous(DType::kFloat32, {kMany, 1, 1});
    case Arrangement::kHeads: return TensorSpec::contiguous(DType::kFloat32, {1, kMany, 1});
    case Arrangement::kPacked: return TensorSpec::contiguous(DType::kFloat32, {1, kMany});
  }
  return {};
}

/// value(row, column) of a contiguous operand.
template <class Value>
void set_rows(Operand& operand, Value&& value) {
  for (std::int64_t i = 0; i < operand.spec.numel(); ++i) {
    store_element(operand.spec.dtype, operand.data(), i, value(i / kHeaddim, i % kHeaddim));
  }
}

/// The same values, looked at; the first other one is reported.
template <class Value>
void expect_rows(const Workbench& bench, std::string_view name, Value&& value) {
  const Operand& operand = bench.at(name);
  for (std::int64_t i = 0; i < operand.spec.numel(); ++i) {
    const double actual = load_element(operand.spec.dtype, operand.data(), i);
    const double expected = value(i / kHeaddim, i % kHeaddim);
    if (actual != expected) {
      FAIL() << name << " of row " << i / kHeaddim << ", column " << i % kHeaddim << ": expected "
             << expected << ", got " << actual;
    }
  }
}

double query_value(std::int64_t, std::int64_t d) { return d == 0 ? 1 : 0; }
double key_value(std::int64_t b, std::int64_t d) { return d == 0 ? static_cast<double>(b % 7) : 0; }
double value_value(std::int64_t b, std::int64_t) { return static_cast<double>(b % 1000); }
/// One column of a row, so that dout . v is one product and exact.
double dout_value(std::int64_t b, std::int64_t d) {
  return d == b % kHeaddim ? static_cast<double>(b % 1000) : 0;
}
double logit(std::int64_t b) { return static_cast<double>(b % 7) / 8; }

void add_lengths(Workbench& bench, Arrangement arrangement) {
  if (arrangement == Arrangement::kPacked) {
    for (const char* name : {"cu_seqlens_q", "cu_seqlens_k"}) {
      Operand& lengths = bench.add(name, TensorSpec::contiguous(DType::kInt32, {kMany + 1}));
      for (std::int64_t b = 0; b <= kMany; ++b) lengths.set({b}, static_cast<double>(b));
    }
    bench.problem.max_seqlen_q = bench.problem.max_seqlen_k = 1;
  }
  if (arrangement == Arrangement::kDecode) {
    bench.add("seqused_k", TensorSpec::contiguous(DType::kInt32, {kMany}));
    bench.fill("seqused_k", 1);
  }
}

/// k and v; a decode cache has a second slot, which is NaN.
void add_keys(Workbench& bench, Arrangement arrangement, DType dtype) {
  const bool decode = arrangement == Arrangement::kDecode;
  const TensorSpec spec =
      decode ? TensorSpec::contiguous(dtype, {kMany, 2, 1, kHeaddim}) : spec_of(arrangement, dtype);
  for (const char* name : {"k", "v"}) {
    Operand& operand = bench.add(name, spec);
    if (decode) std::memset(operand.memory.data(), 0xFF, operand.memory.size());
    for (std::int64_t b = 0; b < kMany; ++b) {
      const std::int64_t row = decode ? 2 * b : b;
      for (std::int64_t d = 0; d < kHeaddim; ++d) {
        store_element(dtype, operand.data(), row * kHeaddim + d,
                      *name == 'v' ? value_value(b, d) : key_value(b, d));
      }
    }
  }
}

void fill_lse(Operand& lse) {
  for (std::int64_t b = 0; b < kMany; ++b) {
    store_element(DType::kFloat32, lse.data(), b, logit(b));
  }
}

void run_forward(const std::string& kernel, Arrangement arrangement, DType dtype) {
  Workbench bench;
  bench.problem.causal = true;
  set_rows(bench.add("q", spec_of(arrangement, dtype)), query_value);
  add_keys(bench, arrangement, dtype);
  add_lengths(bench, arrangement);
  bench.add("out", spec_of(arrangement, dtype));
  const Operand& lse = bench.add("lse", lse_of(arrangement));
  if (!kernel_takes(bench.problem, {.kernel = kernel})) return;  // a refusal is an answer
  const Status status = bench.run({.kernel = kernel, .num_threads = 2});
  ASSERT_TRUE(status) << status.message();
  expect_rows(bench, "out", value_value);
  for (std::int64_t b = 0; b < kMany; ++b) {
    ASSERT_EQ(load_element(DType::kFloat32, lse.data(), b), logit(b)) << "sequence " << b;
  }
}

/// One key: dv = dout, and delta = dout . v, so that dq = dk = 0.
void run_backward(const std::string& kernel, Arrangement arrangement, DType dtype) {
  Workbench bench;
  bench.problem.pass = Pass::kBackward;
  const TensorSpec spec = spec_of(arrangement, dtype);
  set_rows(bench.add("q", spec), query_value);
  add_keys(bench, arrangement, dtype);
  add_lengths(bench, arrangement);
  set_rows(bench.add("out", spec), value_value);
  set_rows(bench.add("dout", spec), dout_value);
  fill_lse(bench.add("lse", lse_of(arrangement)));
  for (const char* name : {"dq", "dk", "dv"}) bench.add(name, spec);
  if (!kernel_takes(bench.problem, {.kernel = kernel})) return;
  const Status status = bench.run({.kernel = kernel, .num_threads = 2});
  ASSERT_TRUE(status) << status.message();
  expect_rows(bench, "dv", dout_value);
  for (const char* name : {"dq", "dk"}) expect_rows(bench, name, [](auto...) { return 0.0; });
}

TEST(Fault08_ManyBlocks, Forward) {
  for (const std::string& kernel : usable_kernels_of(Pass::kForward)) {
    for (const DType dtype : kExactDtypes) {
      for (const Arrangement arrangement :
           {Arrangement::kBatch, Arrangement::kHeads, Arrangement::kPacked, Arrangement::kDecode}) {
        SCOPED_TRACE(kernel + " " + dtype_name(dtype) + " arrangement " +
                     std::to_string(static_cast<int>(arrangement)));
        run_forward(kernel, arrangement, dtype);
      }
    }
  }
}

TEST(Fault08_ManyBlocks, Backward) {
  for (const std::string& kernel : usable_kernels_of(Pass::kBackward)) {
    for (const DType dtype : kExactDtypes) {
      for (const Arrangement arrangement :
           {Arrangement::kBatch, Arrangement::kHeads, Arrangement::kPacked}) {
        SCOPED_TRACE(kernel + " " + dtype_name(dtype) + " arrangement " +
                     std::to_string(static_cast<int>(arrangement)));
        run_backward(kernel, arrangement, dtype);
      }
    }
  }
}

/// 4,194,305 queries on one key: 65,536 tiles of 64 rows and one row more.
class LongColumn {
 public:
  static constexpr std::int64_t kRows = 4'194'305;
  static constexpr std::int64_t kDim = 16;

  explicit LongColumn(Pass pass) {
    bench.problem.pass = pass;
    const TensorSpec rows = TensorSpec::contiguous(DType::kFloat16, {1, kRows, 1, kDim});
    const TensorSpec key = TensorSpec::contiguous(DType::kFloat16, {1, 1, 1, kDim});
    bench.add("q", rows);
    bench.add("k", key);
    bench.add("v", key);
    bench.fill("k", 1);
    bench.fill("v", [](const Index& index) { return static_cast<double>(index[3] + 1); });
    bench.add("out", rows);
    bench.add("lse", TensorSpec::contiguous(DType::kFloat32, {1, 1, kRows}));
  }

  [[nodiscard]] Status run(const std::string& kernel) {
    return bench.run({.kernel = kernel, .num_threads = 2});
  }
  [[nodiscard]] double element(std::string_view name, std::int64_t i) const {
    const Operand& operand = bench.at(name);
    return load_element(operand.spec.dtype, operand.data(), i);
  }

  Workbench bench;
};

TEST(Fault08_SlowLongColumn, Forward) {
  for (const std::string& kernel : usable_kernels_of(Pass::kForward)) {
    LongColumn column(Pass::kForward);
    if (!kernel_takes(column.bench.problem, {.kernel = kernel})) continue;
    const Status status = column.run(kernel);
    ASSERT_TRUE(status) << status.message();
    for (std::int64_t i = 0; i < LongColumn::kRows; ++i) {
      ASSERT_EQ(column.element("lse", i), 0) << "row " << i;
      ASSERT_EQ(column.element("out", i * LongColumn::kDim + i % LongColumn::kDim),
                static_cast<double>(i % LongColumn::kDim + 1))
          << "row " << i;
    }
  }
}

TEST(Fault08_SlowLongColumn, Backward) {
  for (const std::string& kernel : usable_kernels_of(Pass::kBackward)) {
    LongColumn column(Pass::kBackward);
    Operand& out = column.bench.at("out");
    for (std::int64_t i = 0; i < out.spec.numel(); ++i) {
      store_element(DType::kFloat16, out.data(), i, static_cast<double>(i % LongColumn::kDim + 1));
    }
    Operand& dout = column.bench.add("dout", out.spec);
    dout.set({0, LongColumn::kRows - 1, 0, 3}, 2);
    dout.set({0, 65'536, 0, 3}, 5);
    column.bench.add("dq", out.spec);
    column.bench.add("dk", column.bench.at("k").spec);
    column.bench.add("dv", column.bench.at("v").spec);
    if (!kernel_takes(column.bench.problem, {.kernel = kernel})) continue;
    const Status status = column.run(kernel);
    ASSERT_TRUE(status) << status.message();
    for (std::int64_t d = 0; d < LongColumn::kDim; ++d) {
      EXPECT_EQ(column.element("dv", d), d == 3 ? 7 : 0);
      EXPECT_EQ(column.element("dk", d), 0);
    }
    for (std::int64_t i = 0; i < out.spec.numel(); ++i) {
      ASSERT_EQ(column.element("dq", i), 0) << "element " << i;
    }
  }
}

}  // namespace
}  // namespace foveal::test
