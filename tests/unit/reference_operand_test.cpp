// Operands with any strides, alignment and dtype read as their contiguous copies.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "unit/reference_case.hpp"

namespace foveal::test {
namespace {

/// The spec of the same shape with other strides.
TensorSpec restride(const TensorSpec& like, std::array<std::int64_t, 4> strides) {
  TensorSpec spec = like;
  spec.strides = strides;
  return spec;
}

TEST(ReferenceOperand, AnyStridesAndAlignment) {
  const Shape shape{2, 3, 4, 5};
  const TensorSpec contiguous = make_spec(DType::kFloat32, shape);
  const std::vector<TensorSpec> views{
      restride(contiguous, {60, 5, 15, 1}),    // heads outside the sequence
      restride(contiguous, {60, 1, 15, 3}),    // the last dimension strided
      restride(contiguous, {180, 60, 5, 1}),   // a slice of a packed qkv
      restride(contiguous, {-60, -20, 5, 1}),  // reversed
      restride(contiguous, {61, 20, -5, -1}),  // reversed in the heads, odd gaps
  };
  Random random(3);
  const Fill fill = normal(random);
  std::vector<double> values;
  for (int i = 0; i < 3 * 120; ++i) values.push_back(fill({}));
  const auto part = [&](std::int64_t index) -> Fill {
    return [&values, index](const Element& e) {
      return values[static_cast<std::size_t>(index * 120 + e.flat)];
    };
  };
  OracleCase plain = dense_case(
      {.batch = 2, .seqlen_q = 3, .seqlen_k = 3, .nheads_q = 4, .nheads_k = 4, .headdim = 5},
      part(0), part(1), part(2));
  const OracleResult expected = plain.run();
  for (const TensorSpec& view : views) {
    for (const std::size_t byte_offset : {0, 1, 2}) {
      for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
        TensorSpec spec = view;
        spec.dtype = dtype;
        OracleCase test;
        test.add_view("q", spec, part(0), byte_offset);
        test.add_view("k", spec, part(1), byte_offset);
        test.add_view("v", spec, part(2), byte_offset);
        test.want("out", shape);
        test.want("lse", {2, 4, 3});
        EXPECT_EQ(test.run().out, expected.out) << spec.to_string();
        EXPECT_EQ(test.run().lse, expected.lse) << spec.to_string();
      }
    }
  }
}

TEST(ReferenceOperand, ExpandedHeadsAndBatchesAreOneHeadAndOneBatch) {
  Random random(4);
  const Fill fill = normal(random);
  std::vector<double> values;
  for (int i = 0; i < 4 * 5; ++i) values.push_back(fill({}));
  const auto by_row = [&values](const Element& e) {
    return values[static_cast<std::size_t>(e.index[1] * 5 + e.index[3])];
  };
  const Sizes sizes{
      .batch = 2, .seqlen_q = 4, .seqlen_k = 4, .nheads_q = 3, .nheads_k = 3, .headdim = 5};
  const OracleResult expected = dense_case(sizes, by_row, by_row, by_row).run();
  OracleCase test = dense_case(sizes, by_row, by_row, by_row);
  for (const char* name : {"q", "k", "v"}) {
    test.add_view(name, restride(test.spec(name), {0, 5, 0, 1}), by_row);
  }
  EXPECT_EQ(test.run().out, expected.out);
  EXPECT_EQ(test.run().lse, expected.lse);
}

TEST(ReferenceOperand, BiasInEitherDtypeAndWithStrides) {
  Random random(6);
  OracleCase test = dense_case({.seqlen_q = 2, .seqlen_k = 3, .nheads_q = 2}, normal(random),
                               normal(random), normal(random));
  const Fill bias = [](const Element& e) {
    return static_cast<double>(e.index[1] * 4 + e.index[2] * 2 - e.index[3]) / 4;
  };
  test.add("bias", {1, 2, 2, 3}, bias);
  const OracleResult expected = test.run();
  test.add_view("bias", restride(test.spec("bias"), {0, 1, 2, 4}), bias);
  EXPECT_EQ(test.run().out, expected.out);
  for (const char* name : {"q", "k", "v"}) test.spec(name).dtype = DType::kFloat16;
  Random again(6);
  for (const char* name : {"q", "k", "v"}) {
    test.add_view(name, test.spec(name), normal(again));
  }
  EXPECT_EQ(test.run().out, expected.out) << "fp32 bias";
  test.add("bias", {1, 2, 2, 3}, bias, DType::kFloat16);
  EXPECT_EQ(test.run().out, expected.out) << "fp16 bias";
}

}  // namespace
}  // namespace foveal::test
