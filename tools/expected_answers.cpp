#include "tools/expected_answers.hpp"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "tools/element_values.hpp"
#include "tools/message_text.hpp"
#include "tools/tensor_layout.hpp"

namespace foveal::tools {
namespace {

constexpr std::string_view kPrefix = "expected_";
constexpr std::string_view kRowsName = "expected_rows";

bool is_number(FileDType dtype) {
  return dtype == FileDType::kF16 || dtype == FileDType::kBF16 || dtype == FileDType::kF32 ||
         dtype == FileDType::kF64;
}

std::int64_t rows_of(const TensorSpec& spec) {
  return spec.rank == 4 ? spec.shape[0] * spec.shape[1] : spec.shape[0];
}

Result<std::vector<std::int64_t>> load_rows(const TensorView& tensor, std::int64_t num_rows) {
  if (tensor.dtype != FileDType::kI32 && tensor.dtype != FileDType::kI64) {
    return Status::invalid_argument(
        fmt::format("{} is {}: it must be I32 or I64", kRowsName, file_dtype_name(tensor.dtype)));
  }
  if (tensor.shape.size() != 1) {
    return Status::invalid_argument(
        fmt::format("{} {}: it must have 1 dimension", kRowsName, list_text(tensor.shape)));
  }
  std::vector<std::int64_t> rows(static_cast<std::size_t>(tensor.numel()));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double row =
        element_value(tensor.dtype, tensor.data.data(), static_cast<std::int64_t>(i));
    if (!(row >= 0 && row < static_cast<double>(num_rows))) {
      return Status::invalid_argument(
          fmt::format("{}[{}] {}: q has {} rows", kRowsName, i, row, num_rows));
    }
    rows[i] = static_cast<std::int64_t>(row);
  }
  return rows;
}

/// expected_out of the listed rows: [rows, nheads_q, headdim_v].
Status scatter_rows(const TensorView& tensor, const TensorSpec& out,
                    const std::vector<std::int64_t>& rows, std::vector<double>& values) {
  const auto rank = static_cast<std::size_t>(out.rank);
  const std::int64_t heads = out.shape[rank - 2];
  const std::int64_t dim = out.shape[rank - 1];
  const std::vector<std::int64_t> shape{static_cast<std::int64_t>(rows.size()), heads, dim};
  if (tensor.shape != shape) {
    return Status::invalid_argument(
        fmt::format("{} {}: with {} it must be {}, [rows, nheads_q, headdim_v]", tensor.name,
                    list_text(tensor.shape), kRowsName, list_text(shape)));
  }
  values.assign(static_cast<std::size_t>(out.numel()), std::numeric_limits<double>::quiet_NaN());
  const std::int64_t row_size = heads * dim;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::int64_t e = 0; e < row_size; ++e) {
      values[static_cast<std::size_t>(rows[r] * row_size + e)] = element_value(
          tensor.dtype, tensor.data.data(), static_cast<std::int64_t>(r) * row_size + e);
    }
  }
  return Status::ok();
}

Result<ExpectedAnswer> load_answer(const TensorView& tensor, const TensorView* rows,
                                   const AttentionResults& results) {
  ExpectedAnswer answer{
      .result = tensor.name.substr(kPrefix.size()), .values = {}, .rows = std::nullopt};
  const ResultTensor* result = results.find(answer.result);
  if (result == nullptr) {
    std::vector<std::string_view> names;
    for (const ResultTensor& computed : results.results) names.push_back(computed.name);
    return Status::invalid_argument(fmt::format("{} has no result to compare with: computed are {}",
                                                tensor.name, fmt::join(names, ", ")));
  }
  if (!is_number(tensor.dtype)) {
    return Status::invalid_argument(fmt::format("{} is {}: it must be F16, BF16, F32 or F64",
                                                tensor.name, file_dtype_name(tensor.dtype)));
  }
  if (rows != nullptr && answer.result == "out") {
    FOVEAL_ASSIGN_OR_RETURN(listed, load_rows(*rows, rows_of(result->spec)));
    FOVEAL_RETURN_IF_ERROR(scatter_rows(tensor, result->spec, listed, answer.values));
    answer.rows = std::move(listed);
    return answer;
  }
  const std::vector<std::int64_t> shape = file_shape(result->spec, result->heads_first);
  if (tensor.shape != shape) {
    return Status::invalid_argument(fmt::format("{} {}: it must be {}, as {}", tensor.name,
                                                list_text(tensor.shape), list_text(shape),
                                                answer.result));
  }
  const TensorSpec spec =
      result->heads_first ? heads_first(DType::kFloat32, shape) : row_major(DType::kFloat32, shape);
  answer.values = values_of(tensor.dtype, spec, tensor.data.data());
  return answer;
}

}  // namespace

bool is_expected_name(std::string_view name) { return name.starts_with(kPrefix); }

Result<std::vector<ExpectedAnswer>> load_expected(const SafetensorsFile& file,
                                                  const AttentionResults& results) {
  std::vector<ExpectedAnswer> answers;
  for (const TensorView& tensor : file.tensors()) {
    if (!is_expected_name(tensor.name) || tensor.name == kRowsName) continue;
    FOVEAL_ASSIGN_OR_RETURN(answer, load_answer(tensor, file.find(kRowsName), results));
    answers.push_back(std::move(answer));
  }
  return answers;
}

}  // namespace foveal::tools
