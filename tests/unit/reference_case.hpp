// A problem with the memory of its tensors, put together by operand names, for tests of the oracle:
//
//   OracleCase test;
//   test.add("q", {1, 3, 1, 4}, constant(0));
//   test.add("v", {1, 8, 1, 4}, [](const Element& e) { return double(e.index[1]); });
//   test.want("out", {1, 3, 1, 4});
//   const OracleResult result = test.run();
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <foveal/experimental.hpp>

#include "core/half.hpp"
#include "support/random.hpp"

namespace foveal::test {
// The test program has other cases with other helpers: these names are linked apart from theirs.
inline namespace reference_case {

using Shape = std::vector<std::int64_t>;

/// Where a value goes: its place in row-major order, and its index.
struct Element {
  std::int64_t flat = 0;
  std::array<std::int64_t, TensorSpec::kMaxRank> index{};
};
using Fill = std::function<double(const Element&)>;

inline Fill constant(double value) {
  return [value](const Element&) { return value; };
}
inline Fill list(std::vector<double> values) {
  return [values = std::move(values)](const Element& element) {
    return values.at(static_cast<std::size_t>(element.flat));
  };
}
/// Normal numbers on a grid of 2^-5 below 4 in size: every dtype holds them exactly, and in fp32
/// sums with small powers of two stay exact.
inline Fill normal(Random& random) {
  return [&random](const Element&) {
    return std::clamp(std::round(random.normal() * 32) / 32, -3.96875, 3.96875);
  };
}

inline TensorSpec make_spec(DType dtype, const Shape& shape) {
  TensorSpec spec;
  spec.dtype = dtype;
  spec.rank = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    spec.shape[axis] = shape[axis];
    spec.strides[axis] = stride;
    stride *= shape[axis];
  }
  return spec;
}

/// Writes a value in the dtype.
inline void store_element(DType dtype, double value, std::byte* address) {
  const auto put = [&](const auto& stored) { std::memcpy(address, &stored, sizeof stored); };
  switch (dtype) {
    case DType::kNone: return;
    case DType::kFloat16: return put(from_float<Half>(static_cast<float>(value)));
    case DType::kBFloat16: return put(from_float<BFloat16>(static_cast<float>(value)));
    case DType::kFloat32: return put(static_cast<float>(value));
    case DType::kInt32: return put(static_cast<std::int32_t>(value));
    case DType::kBool: return put(static_cast<std::uint8_t>(value != 0 ? 1 : 0));
  }
}

/// For thousands of small problems.
inline OracleOptions one_thread() {
  OracleOptions options;
  options.num_threads = 1;
  return options;
}

class OracleCase {
 public:
  AttentionProblem problem;
  AttentionTensors tensors;

  OracleCase() = default;
  OracleCase(OracleCase&&) = default;  // the deque hands over its vectors where they lie
  OracleCase(const OracleCase&) = delete;

  /// A contiguous operand with values; fp32 without a dtype.
  void add(std::string_view name, const Shape& shape, const Fill& fill,
           DType dtype = DType::kFloat32) {
    add_view(name, make_spec(dtype, shape), fill);
  }
  /// A view with any strides, `byte_offset` bytes into its memory. Gaps hold NaN.
  void add_view(std::string_view name, const TensorSpec& spec, const Fill& fill,
                std::size_t byte_offset = 0) {
    std::int64_t lowest = 0;
    std::int64_t highest = 0;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(spec.rank); ++axis) {
      const std::int64_t reach =
          spec.strides[axis] * std::max<std::int64_t>(spec.shape[axis] - 1, 0);
      (reach < 0 ? lowest : highest) += reach;
    }
    const std::int64_t width = dtype_bytes(spec.dtype);
    std::vector<std::byte>& bytes = storage_.emplace_back(
        static_cast<std::size_t>((highest - lowest + 1) * width) + byte_offset, std::byte{0xff});
    std::byte* data = bytes.data() + byte_offset - lowest * width;
    for (Element element; element.flat < spec.numel(); ++element.flat) {
      std::int64_t rest = element.flat;
      std::int64_t offset = 0;
      for (auto axis = static_cast<std::size_t>(spec.rank); axis-- > 0; rest /= spec.shape[axis]) {
        element.index[axis] = rest % spec.shape[axis];
        offset += element.index[axis] * spec.strides[axis];
      }
      store_element(spec.dtype, fill(element), data + offset * width);
    }
    attach(name, spec, data);
  }
  void add_ints(std::string_view name, const std::vector<std::int32_t>& values) {
    add_ints(name, {static_cast<std::int64_t>(values.size())}, values);
  }
  void add_ints(std::string_view name, const Shape& shape,
                const std::vector<std::int32_t>& values) {
    add(name, shape, list({values.begin(), values.end()}), DType::kInt32);
  }
  /// An output: it needs no memory.
  void want(std::string_view name, const Shape& shape) {
    problem.*find(name).spec = make_spec(DType::kFloat32, shape);
  }
  /// Any view of someone else's memory.
  void attach(std::string_view name, const TensorSpec& spec, void* data) {
    const OperandInfo& operand = find(name);
    problem.*operand.spec = spec;
    if (operand.input != nullptr) {
      tensors.*operand.input = data;
    } else {
      tensors.*operand.output = data;
    }
  }
  void remove(std::string_view name) { problem.*find(name).spec = {}; }

  [[nodiscard]] TensorSpec& spec(std::string_view name) { return problem.*find(name).spec; }

  /// Element `flat` of a contiguous fp32 operand that add() made.
  [[nodiscard]] float& value(std::string_view name, std::int64_t flat) {
    const OperandInfo& operand = find(name);
    EXPECT_EQ((problem.*operand.spec).dtype, DType::kFloat32) << name;
    return static_cast<float*>(const_cast<void*>(operand.data(tensors)))[flat];
  }

  [[nodiscard]] OracleResult run(const OracleOptions& options = one_thread()) const {
    Result<OracleResult> result = oracle(problem, tensors, options);
    if (!result) {
      ADD_FAILURE() << result.status().message();
      return {};
    }
    return *std::move(result);
  }
  /// The message of a run that must fail.
  [[nodiscard]] std::string error(const OracleOptions& options = {}) const {
    const Result<OracleResult> result = oracle(problem, tensors, options);
    return result ? "no error" : result.status().message();
  }

 private:
  static const OperandInfo& find(std::string_view name) {
    for (const OperandInfo& operand : operands()) {
      if (operand.name == name) return operand;
    }
    throw std::logic_error("no such operand");
  }

  std::deque<std::vector<std::byte>> storage_;
};

struct Sizes {
  std::int64_t batch = 1;
  std::int64_t seqlen_q = 1;
  std::int64_t seqlen_k = 1;
  std::int64_t nheads_q = 1;
  std::int64_t nheads_k = 1;
  std::int64_t headdim = 4;
};

/// q, k and v dense, with out and lse asked for.
inline OracleCase dense_case(const Sizes& sizes, const Fill& q, const Fill& k, const Fill& v) {
  OracleCase test;
  test.add("q", {sizes.batch, sizes.seqlen_q, sizes.nheads_q, sizes.headdim}, q);
  test.add("k", {sizes.batch, sizes.seqlen_k, sizes.nheads_k, sizes.headdim}, k);
  test.add("v", {sizes.batch, sizes.seqlen_k, sizes.nheads_k, sizes.headdim}, v);
  test.want("out", {sizes.batch, sizes.seqlen_q, sizes.nheads_q, sizes.headdim});
  test.want("lse", {sizes.batch, sizes.nheads_q, sizes.seqlen_q});
  return test;
}

/// The same, packed: documents of these lengths. Fills see rows of the whole pack.
inline OracleCase packed_case(const std::vector<std::int32_t>& lengths_q,
                              const std::vector<std::int32_t>& lengths_k, Sizes sizes,
                              const std::array<Fill, 3>& qkv) {
  const auto cumulative = [](const std::vector<std::int32_t>& lengths) {
    std::vector<std::int32_t> sums{0};
    for (const std::int32_t length : lengths) sums.push_back(sums.back() + length);
    return sums;
  };
  const std::vector<std::int32_t> cu_seqlens_q = cumulative(lengths_q);
  const std::vector<std::int32_t> cu_seqlens_k = cumulative(lengths_k);
  OracleCase test;
  test.add_ints("cu_seqlens_q", cu_seqlens_q);
  test.add_ints("cu_seqlens_k", cu_seqlens_k);
  const Shape q_shape{cu_seqlens_q.back(), sizes.nheads_q, sizes.headdim};
  const Shape k_shape{cu_seqlens_k.back(), sizes.nheads_k, sizes.headdim};
  test.add("q", q_shape, qkv[0]);
  test.add("k", k_shape, qkv[1]);
  test.add("v", k_shape, qkv[2]);
  test.want("out", q_shape);
  test.want("lse", {sizes.nheads_q, cu_seqlens_q.back()});
  return test;
}

/// Makes a backward case of a forward one: dout given, gradients wanted.
inline void make_backward(OracleCase& test, const Fill& dout) {
  const auto shape_of = [](const TensorSpec& spec) {
    return Shape(spec.shape.begin(), spec.shape.begin() + spec.rank);
  };
  test.problem.pass = Pass::kBackward;
  test.add("dout", shape_of(test.spec("out")), dout);
  test.want("dq", shape_of(test.spec("q")));
  test.want("dk", shape_of(test.spec("k")));
  test.want("dv", shape_of(test.spec("v")));
  if (test.spec("sinks").present()) test.want("dsinks", shape_of(test.spec("sinks")));
  if (test.spec("bias").present() && test.spec("bias").dtype != DType::kBool) {
    test.want("dbias", shape_of(test.spec("bias")));
  }
}

/// Every column of each row holds one value; expects these values row by row.
inline void expect_rows(const std::vector<double>& actual, const std::vector<double>& rows,
                        double tolerance = 1e-12) {
  ASSERT_FALSE(rows.empty());
  ASSERT_EQ(actual.size() % rows.size(), 0u);
  const std::size_t columns = actual.size() / rows.size();
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], rows[i / columns], tolerance)
        << "row " << i / columns << " column " << i % columns;
  }
}

/// The same for values that may be infinite.
inline void expect_values(const std::vector<double>& actual, const std::vector<double>& expected,
                          double tolerance = 1e-12) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isinf(expected[i])) {
      ASSERT_EQ(actual[i], expected[i]) << "element " << i;
    } else {
      ASSERT_NEAR(actual[i], expected[i], tolerance) << "element " << i;
    }
  }
}

}  // namespace reference_case
}  // namespace foveal::test
