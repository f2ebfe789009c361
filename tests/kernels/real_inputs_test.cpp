// Queries, keys and values of real models with known answers (examples/data), in every forward
// kernel and, rounded to it, every dtype.
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include <nlohmann/json.hpp>

#include "kernels/fault_probe.hpp"
#include "support/source_directory.hpp"

namespace foveal::test {
namespace {

/// The tensors of a safetensors file, converted to numbers.
struct FileTensor {
  std::vector<std::int64_t> shape;
  std::vector<double> values;
};

struct RealInput {
  std::map<std::string, FileTensor> tensors;
  bool causal = false;
  float softmax_scale = 0;
};

DType file_dtype(const std::string& name) {
  if (name == "F16") return DType::kFloat16;
  return name == "I32" ? DType::kInt32 : DType::kFloat32;
}

RealInput read_input(const std::string& name) {
  std::ifstream file(source_directory() + "/examples/data/" + name + ".safetensors",
                     std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  EXPECT_GT(bytes.size(), 8u) << name;
  std::uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), sizeof header_size);
  const char* header = bytes.data() + 8;
  const nlohmann::json description = nlohmann::json::parse(header, header + header_size);
  RealInput input;
  for (const auto& [key, entry] : description.items()) {
    if (key == "__metadata__") continue;
    FileTensor tensor{entry.at("shape"), {}};
    std::int64_t count = 1;
    for (const std::int64_t extent : tensor.shape) count *= extent;
    const char* data = header + header_size + entry.at("data_offsets").at(0).get<std::size_t>();
    for (std::int64_t i = 0; i < count; ++i) {
      tensor.values.push_back(load_element(file_dtype(entry.at("dtype")), data, i));
    }
    input.tensors[key] = std::move(tensor);
  }
  const auto& metadata = description.at("__metadata__");
  input.causal = metadata.at("causal") == "1";
  input.softmax_scale = std::stof(metadata.at("softmax_scale").get<std::string>());
  return input;
}

Operand& add_tensor(Workbench& bench, std::string_view name, DType dtype,
                    const FileTensor& tensor) {
  TensorSpec spec;
  spec.dtype = dtype;
  spec.rank = static_cast<std::int32_t>(tensor.shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = tensor.shape.size(); axis-- > 0; stride *= tensor.shape[axis]) {
    spec.shape[axis] = tensor.shape[axis];
    spec.strides[axis] = stride;
  }
  Operand& operand = bench.add(name, spec);
  for (std::size_t i = 0; i < tensor.values.size(); ++i) {
    store_element(dtype, operand.data(), static_cast<std::int64_t>(i), tensor.values[i]);
  }
  return operand;
}

/// Largest error of out (fp32, in the rows that the file has) and of lse.
struct Limits {
  double out, lse;
};

void fill_problem(Workbench& bench, const RealInput& input, DType dtype) {
  bench.problem.causal = input.causal;
  bench.problem.softmax_scale = input.softmax_scale;
  for (const char* name : {"q", "k", "v"}) add_tensor(bench, name, dtype, input.tensors.at(name));
  for (const char* name :
       {"cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "block_table"}) {
    const auto found = input.tensors.find(name);
    if (found != input.tensors.end()) add_tensor(bench, name, DType::kInt32, found->second);
  }
  TensorSpec out = bench.problem.q;
  out.dtype = DType::kFloat32;
  bench.add("out", out);
  const std::vector<std::int64_t>& lse = input.tensors.at("expected_lse").shape;
  bench.add("lse", lse.size() == 2
                       ? TensorSpec::contiguous(DType::kFloat32, {lse[0], lse[1]})
                       : TensorSpec::contiguous(DType::kFloat32, {lse[0], lse[1], lse[2]}));
}

void expect_answers(const Workbench& bench, const RealInput& input, Limits limits) {
  const FileTensor& expected = input.tensors.at("expected_out");
  const std::vector<double> out = bench.at("out").values();
  const std::size_t row = out.size() / static_cast<std::size_t>(bench.problem.q.shape[0]);
  const std::size_t rows = expected.values.size() / row;
  const auto listed = input.tensors.find("expected_rows");
  double error = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    const std::size_t from =
        listed == input.tensors.end() ? r : static_cast<std::size_t>(listed->second.values[r]);
    for (std::size_t i = 0; i < row; ++i) {
      error = std::max(error, std::abs(out[from * row + i] - expected.values[r * row + i]));
    }
  }
  EXPECT_LE(error, limits.out) << "out";
  const FileTensor& lse = input.tensors.at("expected_lse");
  EXPECT_LE(largest_error(lse.values, bench.at("lse").values()), limits.lse) << "lse";
}

/// The limits of examples/data/README.md, with bf16's, where the rounded inputs are most of it.
void expect_file(const std::string& name, const std::map<DType, Limits>& limits) {
  const RealInput input = read_input(name);
  for (const std::string& kernel : usable_kernels_of(Pass::kForward)) {
    for (const auto& [dtype, limit] : limits) {
      SCOPED_TRACE(name + " " + kernel + " " + dtype_name(dtype));
      Workbench bench;
      fill_problem(bench, input, dtype);
      if (!kernel_takes(bench.problem, {.kernel = kernel})) continue;
      bench.freeze();
      const Status status = bench.run({.kernel = kernel, .num_threads = 2});
      ASSERT_TRUE(status) << status.message();
      EXPECT_TRUE(bench.check_memory());
      expect_answers(bench, input, limit);
    }
  }
}

TEST(RealInputs, MiniLmPackedSentences) {
  const std::map<DType, Limits> limits = {{DType::kFloat32, {5e-6, 2e-5}},
                                          {DType::kFloat16, {4e-3, 5e-3}},
                                          {DType::kBFloat16, {3e-2, 4e-2}}};
  expect_file("minilm-packed-layer0", limits);
  expect_file("minilm-packed-layer5", limits);
}

TEST(RealInputs, SmolLm2CausalText) {
  expect_file("smollm2-causal-layer18", {{DType::kFloat32, {2e-5, 1e-5}},
                                         {DType::kFloat16, {4e-3, 1e-5}},
                                         {DType::kBFloat16, {1e-1, 1.5e-1}}});
}

TEST(Fault11_UnusedCache, SmolLm2PagedDecode) {
  expect_file("smollm2-paged-decode-layer18", {{DType::kFloat32, {2e-5, 1e-5}},
                                               {DType::kFloat16, {4e-3, 1e-5}},
                                               {DType::kBFloat16, {1e-1, 1.5e-1}}});
}

}  // namespace
}  // namespace foveal::test
