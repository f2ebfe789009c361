// Fault classes of memory layout: views that are not contiguous, expanded gradients, caches with
// NaN where nothing is in use, block tables that are too short or point outside.
#include <foveal/plan.hpp>
#include <tuple>

#include "kernels/fault_probe.hpp"
#include "support/operand_layout.hpp"

namespace foveal::test {
namespace {

/// Kernels that copy whole units may leave misaligned views to another kernel: other sums, as good.
bool keeps_bits(Layout layout) { return layout != Layout::kMisaligned; }

/// The outputs of a built case and of its copy on adjacent tensors have the same bits.
void expect_as_contiguous(BuiltCase& built, Layout view) {
  Case c = built.c;
  c.q_layout = c.kv_layout = c.out_layout = Layout::kBshd;
  BuiltCase copy(c);
  for (const Operand& operand : built.bench.all()) {
    if (is_output_of(c.pass, operand.info->name)) continue;
    for_each_index(operand.spec, [&](const Index& index) {
      copy.bench.at(operand.info->name).set(index, operand.get(index));
    });
  }
  run_probe(built);
  run_probe(copy);
  for (const Operand& operand : built.bench.all()) {
    if (!is_output_of(c.pass, operand.info->name)) continue;
    const Operand& expected = copy.bench.at(operand.info->name);
    EXPECT_TRUE(keeps_bits(view) ? same_bits(operand, expected)
                                 : same_but_roundings(operand, expected));
  }
}

constexpr Layout kViews[] = {Layout::kBhsd,          Layout::kPackedSlice,   Layout::kDimOutermost,
                             Layout::kExpandedHeads, Layout::kExpandedBatch, Layout::kReversed,
                             Layout::kMisaligned,    Layout::kPadded};

Case layout_case(Pass pass) { return {.pass = pass, .lens = {{62, 62}, {62, 62}}, .nheads_k = 3}; }

void expect_views(Pass pass) {
  for (const Layout layout : kViews) {
    for (const char* operand : {"q", "kv", "out", "all"}) {
      Case c = layout_case(pass);
      const std::string_view which = operand;
      if (which == "out" && shares_memory(layout)) continue;
      if (which == "q" || which == "all") c.q_layout = layout;
      if (which == "kv" || which == "all") c.kv_layout = layout;
      if (which == "out") c.out_layout = layout;
      for_each_kernel(
          c, kAllDtypes, [&](BuiltCase& built) { expect_as_contiguous(built, layout); },
          RandomData::kSkip);
    }
  }
}

TEST(Fault09_Strides, ForwardViewsEqualCopies) { expect_views(Pass::kForward); }
TEST(Fault09_Strides, BackwardViewsEqualCopies) { expect_views(Pass::kBackward); }

TEST(Fault09_Strides, OneOperandAtATime) {
  for (const Layout layout : kViews) {
    for (const char* name : {"q", "k", "v"}) {
      int checked = 0;
      for_each_kernel(
          layout_case(Pass::kForward), kAllDtypes,
          [&](BuiltCase& built) {
            Operand& before = built.bench.at(name);
            const std::vector<double> values = before.values();
            const auto& shape = before.spec.shape;
            const PlacedSpec placed =
                place_rows(before.spec.dtype, {shape[0], shape[1], shape[2], shape[3]}, layout);
            Operand& view = built.bench.add(name, placed.spec, placed.lead);
            std::size_t next = 0;
            for_each_index(view.spec, [&](const Index& index) { view.set(index, values[next++]); });
            if (!kernel_takes(built.bench.problem, {.kernel = built.c.kernel})) return;
            ++checked;
            expect_as_contiguous(built, layout);
          },
          RandomData::kSkip);
      EXPECT_TRUE(checked > 0 || kernels_are_filtered()) << "no kernel takes such a " << name;
    }
  }
}

/// q, k and v as slices of one [B, S, 3, H, D], in one piece of memory.
TEST(Fault09_Strides, SlicesOfOneTensor) {
  for_each_kernel(layout_case(Pass::kForward), kAllDtypes, [&](BuiltCase& built) {
    run_probe(built);
    const std::int64_t width = 3 * 64;
    GuardedBuffer storage(
        static_cast<std::size_t>(2 * 62 * 3 * width * dtype_bytes(built.c.dtype)));
    BuiltCase sliced(built.c);
    std::int64_t slice = 0;
    for (const char* name : {"q", "k", "v"}) {
      const Operand& operand = sliced.bench.at(name);
      TensorSpec spec = operand.spec;
      spec.strides = {62 * 3 * width, 3 * width, 64, 1};
      std::byte* data = storage.data() + slice++ * width * dtype_bytes(spec.dtype);
      for_each_index(spec, [&](const Index& index) {
        store_element(spec.dtype, data, offset_of(spec, index), operand.get(index));
      });
      sliced.bench.problem.*(operand.info->spec) = spec;
      sliced.bench.tensors.*(operand.info->input) = data;
    }
    const Status status = sliced.run();
    ASSERT_TRUE(status) << status.message();
    EXPECT_TRUE(same_bits(built.bench.at("out"), sliced.bench.at("out")));
    EXPECT_TRUE(same_bits(built.bench.at("lse"), sliced.bench.at("lse")));
  });
}

TEST(Fault09_Strides, UnitDimensionsWithAnyStride) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    for (const SeqLens lens : {SeqLens{1, 62}, SeqLens{62, 1}, SeqLens{62, 62}}) {
      for (const std::int64_t headdim : {1, 64}) {
        Case c{.pass = pass, .lens = {lens}, .headdim = headdim};
        c.q_layout = c.kv_layout = c.out_layout = Layout::kOddUnitStrides;
        for_each_kernel(c, kAllDtypes, [](BuiltCase& built) {
          expect_as_contiguous(built, Layout::kOddUnitStrides);
        });
      }
    }
  }
}

TEST(Fault10_ExpandedGradient, SumOfTheOutput) {
  const Case c{
      .pass = Pass::kBackward, .lens = {{5, 5}}, .causal = true, .q_layout = Layout::kExpandedAll};
  for_each_kernel(c, kAllDtypes, [](BuiltCase& built) {
    ASSERT_EQ(built.bench.at("dout").spec.strides, (std::array<std::int64_t, 4>{0, 0, 0, 0}));
    fill_counting(built);
    built.fill_queries("dout", [](auto...) { return 1.0; });
    built.compute_forward();
    run_probe(built);
    const double expected[] = {1 + 1 / 2.0 + 1 / 3.0 + 1 / 4.0 + 1 / 5.0,
                               1 / 2.0 + 1 / 3.0 + 1 / 4.0 + 1 / 5.0, 1 / 3.0 + 1 / 4.0 + 1 / 5.0,
                               1 / 4.0 + 1 / 5.0, 1 / 5.0};
    for (std::int64_t j = 0; j < 5; ++j) {
      expect_key(built, "dv", 0, j, 0, expected[j]);
      expect_key(built, "dk", 0, j, 0, 0);
    }
  });
}

TEST(Fault10_ExpandedGradient, TransposedGradient) {
  for (const Layout layout : {Layout::kBhsd, Layout::kDimOutermost, Layout::kExpandedBatch}) {
    const Case c{.pass = Pass::kBackward,
                 .lens = {{5, 5}, {5, 5}},
                 .nheads_k = 2,
                 .causal = true,
                 .q_layout = layout};
    for_each_kernel(c, kAllDtypes, [&](BuiltCase& built) { expect_as_contiguous(built, layout); });
  }
}

/// What lies in the slots past the lengths, and in which of the two tensors.
struct Unused {
  double value;
  bool in_k, in_v;
};

void spoil_unused(BuiltCase& built, const Unused& unused) {
  for (const std::string_view name : {"k", "v"}) {
    Operand& cache = built.bench.at(name);
    const bool spoiled = name == "k" ? unused.in_k : unused.in_v;
    built.bench.fill(name, spoiled ? unused.value : 0.0);
    built.fill_keys(name, [&](std::int64_t, std::int64_t j, auto...) {
      return name == "v" ? static_cast<double>(j) : 0.5;
    });
    ASSERT_GT(cache.spec.numel(), 0);
  }
}

TEST(Fault11_UnusedCache, NothingOfItReachesTheOutput) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Case cache{.lens = {{1, 1}, {1, 3}, {1, 8}, {1, 0}}, .k_form = KForm::kCache, .group = 2};
  Case paged = cache;
  paged.k_form = KForm::kPaged;
  paged.page_size = 4;
  for (const Case& c : {cache, paged}) {
    for (const double value : {kNan, kInfinity, 6e4}) {
      for (const auto& [in_k, in_v] : {std::pair{true, false}, {false, true}, {true, true}}) {
        for_each_kernel(c, kAllDtypes, [&](BuiltCase& built) {
          ASSERT_EQ(dense_rows_k(c), 8);
          spoil_unused(built, {value, in_k, in_v});
          built.fill_queries("q", [](auto...) { return 0.0; });
          run_probe(built);
          const double out[] = {0, 1, 3.5, 0};
          const double keys[] = {1, 3, 8, 0};
          for (std::int64_t b = 0; b < 4; ++b) expect_out(built, b, 0, out[b], std::log(keys[b]));
        });
      }
    }
  }
}

/// One sequence on a cache of four pages of 16 slots through a table of two columns.
class PageTable {
 public:
  PageTable(const std::string& kernel, DType dtype, std::int32_t second, std::int32_t length,
            std::int64_t append)
      : kernel_(kernel) {
    bench.problem.causal = true;
    const TensorSpec row = TensorSpec::contiguous(dtype, {1, 1, 1, 64});
    const TensorSpec cache = TensorSpec::contiguous(dtype, {4, 16, 1, 64});
    bench.add("q", row);
    bench.add("k", cache);
    bench.add("v", cache);
    bench.fill("v", [](const Index& index) { return static_cast<double>(index[0]); });
    bench.add("out", row);
    bench.add("block_table", TensorSpec::contiguous(DType::kInt32, {1, 2}));
    bench.at("block_table").set({0, 0}, 3);
    bench.at("block_table").set({0, 1}, second);
    bench.add("seqused_k", TensorSpec::contiguous(DType::kInt32, {1}));
    bench.at("seqused_k").set({0}, length);
    for (const char* name : {"k_new", "v_new"}) {
      if (append > 0) bench.add(name, TensorSpec::contiguous(dtype, {1, append, 1, 64}));
    }
    bench.freeze();
  }

  Status run() { return bench.run({.kernel = kernel_}); }

  Workbench bench;

 private:
  std::string kernel_;
};

std::vector<std::int64_t> all_elements(const Operand& operand) {
  std::vector<std::int64_t> offsets;
  for_each_index(operand.spec,
                 [&](const Index& index) { offsets.push_back(offset_of(operand.spec, index)); });
  return offsets;
}

void for_each_page_table(const std::vector<std::string>& kernels,
                         const std::function<void(const std::string&, DType)>& check) {
  for (const std::string& kernel : kernels) {
    for (const DType dtype : kAllDtypes) {
      SCOPED_TRACE(kernel + " " + dtype_name(dtype));
      check(kernel, dtype);
    }
  }
}

TEST(Fault12_BlockTable, LengthsThatItHolds) {
  const auto check = [](const std::string& kernel, DType dtype) {
    PageTable full(kernel, dtype, 1, 32, 0);
    if (!kernel_takes(full.bench.problem, {.kernel = kernel})) return;
    ASSERT_TRUE(full.run());
    EXPECT_EQ(full.bench.at("out").get({0, 0, 0, 5}), 2);  // half of page 3, half of page 1
    PageTable half(kernel, dtype, -1, 16, 0);
    ASSERT_TRUE(half.run());
    EXPECT_EQ(half.bench.at("out").get({0, 0, 0, 5}), 3);
    PageTable appended(kernel, dtype, 1, 31, 1);
    ASSERT_TRUE(appended.run());
  };
  for_each_page_table(usable_kernels_of(Pass::kForward), check);
}

/// What is in device memory is not looked at before a launch: kernels clamp it.
TEST(Fault12_BlockTable, GpusStayWithinTheCache) {
  const auto check = [](const std::string& kernel, DType dtype) {
    const std::tuple<std::int32_t, std::int32_t, std::int64_t> wild[] = {
        {1, 33, 0}, {1, 32, 1}, {4, 32, 0}, {-1, 17, 0}, {1 << 30, 1 << 30, 0}, {1, -5, 1}};
    for (const auto& [second, length, append] : wild) {
      PageTable table(kernel, dtype, second, length, append);
      if (!kernel_takes(table.bench.problem, {.kernel = kernel})) return;
      const Status status = table.run();
      ASSERT_TRUE(status) << status.message();
      ChangedElements cache;
      if (append > 0)
        cache = {{"k", all_elements(table.bench.at("k"))},
                 {"v", all_elements(table.bench.at("v"))}};
      EXPECT_TRUE(table.bench.check_memory(cache));
    }
  };
  const std::vector<std::string> kernels = usable_kernels_of(Pass::kForward, DeviceType::kCuda);
  if (kernels.empty()) GTEST_SKIP() << "no CUDA kernel can run here";
  for_each_page_table(kernels, check);
}

TEST(Fault12_BlockTable, RefusalsNameSequenceLengthAndLimit) {
  struct Refusal {
    std::int32_t second, length;
    std::int64_t append;
    std::vector<std::string> words;
  };
  const Refusal refusals[] = {
      {1, 33, 0, {"sequence 0", "33", "32"}},
      {1, 32, 1, {"[0]", "32", "1 tokens", "31"}},
      {4, 32, 0, {"sequence 0", "4", "between 0 and 3", "32"}},
      {-1, 17, 0, {"sequence 0", "-1", "between 0 and 3", "17"}},
  };
  const auto check = [&](const std::string& kernel, DType dtype) {
    for (const Refusal& refusal : refusals) {
      PageTable table(kernel, dtype, refusal.second, refusal.length, refusal.append);
      const Status status = table.run();
      ASSERT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
      for (const std::string& word : refusal.words) {
        EXPECT_NE(status.message().find(word), std::string::npos)
            << "'" << word << "' is not in: " << status.message();
      }
      for (const Operand& operand : table.bench.all()) {
        EXPECT_TRUE(std::equal(operand.frozen.begin(), operand.frozen.end(), operand.memory.data()))
            << operand.info->name << " was written by a call that was refused";
      }
    }
  };
  for_each_page_table(usable_kernels_of(Pass::kForward, DeviceType::kCpu), check);
}

}  // namespace
}  // namespace foveal::test
