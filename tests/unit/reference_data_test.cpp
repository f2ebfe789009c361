// The oracle on real models' inputs: every file of examples/data against the answers in it, which
// were computed in double elsewhere and stored in fp32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "support/source_directory.hpp"
#include "unit/reference_case.hpp"

namespace foveal::test {
namespace {

struct FileTensor {
  TensorSpec spec;
  std::byte* data = nullptr;

  [[nodiscard]] const float* floats() const { return reinterpret_cast<const float*>(data); }
};

/// A well-formed safetensors file, held in memory.
struct DataFile {
  std::vector<std::byte> bytes;
  std::map<std::string, FileTensor> tensors;
  std::map<std::string, std::string> metadata;
};

DataFile read_file(const std::filesystem::path& path) {
  DataFile file;
  std::ifstream stream(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, text.data(), sizeof header_bytes);
  const std::size_t begin = sizeof header_bytes + header_bytes;
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  file.bytes.assign(bytes + begin, bytes + text.size());  // aligned, wherever the header ended
  const std::map<std::string, DType> dtypes{
      {"F16", DType::kFloat16}, {"F32", DType::kFloat32}, {"I32", DType::kInt32}};
  const nlohmann::json header =
      nlohmann::json::parse(text.substr(sizeof header_bytes, header_bytes));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      file.metadata = entry.get<std::map<std::string, std::string>>();
      continue;
    }
    file.tensors[name] = {make_spec(dtypes.at(entry["dtype"]), entry["shape"].get<Shape>()),
                          file.bytes.data() + entry["data_offsets"][0].get<std::size_t>()};
  }
  return file;
}

/// [batch, heads, seqlen, dim] in memory as [batch, seqlen, heads, dim].
TensorSpec swap_heads(TensorSpec spec) {
  std::swap(spec.shape[1], spec.shape[2]);
  std::swap(spec.strides[1], spec.strides[2]);
  return spec;
}

OracleCase case_of(DataFile& file) {
  OracleCase test;
  const bool heads_first = file.metadata.at("layout") == "bhsd";
  for (auto& [name, tensor] : file.tensors) {
    if (name.starts_with("expected")) continue;
    const bool swap = heads_first && (name == "q" || name == "k" || name == "v");
    test.attach(name, swap ? swap_heads(tensor.spec) : tensor.spec, tensor.data);
  }
  test.problem.causal = file.metadata.at("causal") == "1";
  test.problem.out = test.problem.q;
  test.problem.lse = file.tensors.at("expected_lse").spec;
  return test;
}

/// The rows of q that expected_out holds: flat, in order.
std::vector<std::int64_t> expected_rows(const DataFile& file, std::int64_t num_rows) {
  std::vector<std::int64_t> rows;
  const auto found = file.tensors.find("expected_rows");
  if (found == file.tensors.end()) {
    for (std::int64_t row = 0; row < num_rows; ++row) rows.push_back(row);
  } else {
    std::vector<std::int32_t> listed(static_cast<std::size_t>(found->second.spec.numel()));
    std::memcpy(listed.data(), found->second.data, listed.size() * sizeof(std::int32_t));
    rows.assign(listed.begin(), listed.end());
  }
  return rows;
}

/// Half a unit in the last place of fp32, and a little for what the other computation rounded.
double stored_error(double value) { return std::fabs(value) * 0x1p-24 + 1e-9; }

void expect_answers(DataFile& file) {
  OracleCase test = case_of(file);
  const OracleResult result = test.run({});
  const FileTensor& out = file.tensors.at("expected_out");
  const FileTensor& lse = file.tensors.at("expected_lse");
  const bool heads_first = file.metadata.at("layout") == "bhsd";
  const TensorSpec out_spec = heads_first ? swap_heads(out.spec) : out.spec;

  const bool packed = test.problem.q.rank == 3;
  const std::int64_t seqlen = test.problem.q.shape[packed ? 0 : 1];
  const std::int64_t heads = test.problem.q.shape[packed ? 1 : 2];
  const std::int64_t dim = test.problem.q.shape[packed ? 2 : 3];
  const std::vector<std::int64_t> rows =
      expected_rows(file, packed ? seqlen : test.problem.q.shape[0] * seqlen);
  for (std::size_t n = 0; n < rows.size(); ++n) {
    const auto row = static_cast<std::int64_t>(n);  // of expected_out
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t d = 0; d < dim; ++d) {
        const std::int64_t offset = packed ? row * out_spec.strides[0] + h * out_spec.strides[1] + d
                                           : row / seqlen * out_spec.strides[0] +
                                                 row % seqlen * out_spec.strides[1] +
                                                 h * out_spec.strides[2] + d;
        const auto expected = static_cast<double>(out.floats()[offset]);
        const double actual = result.out[static_cast<std::size_t>((rows[n] * heads + h) * dim + d)];
        ASSERT_NEAR(actual, expected, stored_error(expected)) << "row " << rows[n] << " head " << h;
      }
    }
  }
  for (std::int64_t i = 0; i < lse.spec.numel(); ++i) {
    const auto expected = static_cast<double>(lse.floats()[i]);
    const double actual = result.lse[static_cast<std::size_t>(i)];
    if (std::isinf(expected)) {
      ASSERT_EQ(actual, expected) << "lse " << i;
    } else {
      ASSERT_NEAR(actual, expected, stored_error(expected)) << "lse " << i;
    }
  }
}

TEST(ReferenceData, RealInputsGiveTheAnswersInTheirFiles) {
  int num_files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(test::source_directory() + "/examples/data")) {
    if (entry.path().extension() != ".safetensors") continue;
    SCOPED_TRACE(entry.path().filename().string());
    DataFile file = read_file(entry.path());
    expect_answers(file);
    ++num_files;
  }
  EXPECT_GE(num_files, 4);
}

}  // namespace
}  // namespace foveal::test
