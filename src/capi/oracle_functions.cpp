// The oracle of foveal_experimental.h.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <foveal/foveal_experimental.h>
#include <foveal/experimental.hpp>

#include "capi/attention_struct.hpp"
#include "capi/boundary.hpp"
#include "capi/tensor_view.hpp"

namespace foveal::capi {
namespace {

/// A result: its field in C, its values in C++, and the operand whose shape it has.
struct ResultField {
  const char* name;
  const DLTensor* foveal_oracle_results::*tensor;
  std::vector<double> OracleResult::*values;
  TensorSpec AttentionProblem::*shape;
};

using R = foveal_oracle_results;
using O = OracleResult;
using P = AttentionProblem;
constexpr ResultField kResultFields[] = {
    {"out", &R::out, &O::out, &P::out},
    {"lse", &R::lse, &O::lse, &P::lse},
    {"dq", &R::dq, &O::dq, &P::dq},
    {"dk", &R::dk, &O::dk, &P::dk},
    {"dv", &R::dv, &O::dv, &P::dv},
    {"dbias", &R::dbias, &O::dbias, &P::dbias},
    {"dsinks", &R::dsinks, &O::dsinks, &P::dsinks},
    {"k", &R::k, &O::k_cache, &P::k},
    {"v", &R::v, &O::v_cache, &P::v},
    {"q_rotated", &R::q_rotated, &O::q_rotated, &P::q_rotated},
};

Status read_options(const foveal_oracle_options* given, OracleOptions& options) {
  if (given == nullptr) return Status::ok();
  foveal_oracle_options taken;
  FOVEAL_RETURN_IF_ERROR(take_struct("foveal_oracle_options", given, taken));
  if (taken.num_rows < 0) {
    return Status::invalid_argument(
        concat("num_rows is ", taken.num_rows, ": at least 0, which takes all"));
  }
  if (taken.num_rows > 0 && taken.rows == nullptr) return null_argument("rows");
  if (taken.num_rows > 0) options.rows.assign(taken.rows, taken.rows + taken.num_rows);
  options.use_given_out_and_lse = taken.use_given_out_and_lse != 0;
  options.num_threads = taken.num_threads;
  return Status::ok();
}

/// `tensor` can hold the result: float64, in CPU memory, of the operand's shape.
Status check_destination(const ResultField& field, const DLTensor& tensor, const TensorSpec& spec) {
  if (!spec.present()) {
    return Status::invalid_argument(
        concat(field.name, " is asked for, but the problem has no ", field.name));
  }
  const bool is_double =
      tensor.dtype.code == kDLFloat && tensor.dtype.bits == 64 && tensor.dtype.lanes == 1;
  if (!is_double) {
    return Status::invalid_argument(concat("the result ", field.name, " is ",
                                           dtype_text(tensor.dtype), ": it must be float64"));
  }
  Device device;
  FOVEAL_RETURN_IF_ERROR(read_device(field.name, tensor.device, device));
  if (device.type != DeviceType::kCpu) {
    return Status::invalid_argument(
        concat("the result ", field.name, " is on ", device_text(device), ": it must be on cpu"));
  }
  const auto rank = static_cast<std::size_t>(spec.rank);
  if (tensor.ndim != spec.rank || tensor.shape == nullptr ||
      !std::equal(tensor.shape, tensor.shape + rank, spec.shape.begin())) {
    return Status::invalid_argument(concat("the result ", field.name,
                                           " must have the operand's shape ",
                                           std::span(spec.shape.data(), rank)));
  }
  if (tensor.data == nullptr && spec.numel() > 0) {
    return Status::invalid_argument(
        concat("the result ", field.name, " has no data: its pointer is null"));
  }
  return Status::ok();
}

/// Writes row-major `values` along the strides of `tensor`.
void scatter(const std::vector<double>& values, const DLTensor& tensor) {
  const auto rank = static_cast<std::size_t>(tensor.ndim);
  auto* data = static_cast<double*>(data_of(tensor));
  if (tensor.strides == nullptr) {
    std::copy(values.begin(), values.end(), data);
    return;
  }
  std::vector<std::int64_t> index(rank, 0);
  for (const double value : values) {
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < rank; ++axis) offset += index[axis] * tensor.strides[axis];
    data[offset] = value;
    for (std::size_t axis = rank; axis-- > 0;) {
      if (++index[axis] < tensor.shape[axis]) break;
      index[axis] = 0;
    }
  }
}

Status run_oracle(const foveal_attention* given, const foveal_oracle_options* given_options,
                  const foveal_oracle_results* given_results) {
  foveal_attention attention;
  FOVEAL_RETURN_IF_ERROR(take_struct("foveal_attention", given, attention));
  FOVEAL_ASSIGN_OR_RETURN(problem, read_problem(attention));
  Device device;
  FOVEAL_RETURN_IF_ERROR(read_common_device(attention, device));
  if (device.type != DeviceType::kCpu) {
    return Status::unsupported(
        concat("the oracle reads CPU memory, and the tensors are on ", device_text(device)));
  }
  OracleOptions options;
  FOVEAL_RETURN_IF_ERROR(read_options(given_options, options));
  foveal_oracle_results results;
  FOVEAL_RETURN_IF_ERROR(take_struct("foveal_oracle_results", given_results, results));
  for (const ResultField& field : kResultFields) {
    const DLTensor* tensor = results.*field.tensor;
    if (tensor == nullptr) continue;
    FOVEAL_RETURN_IF_ERROR(check_destination(field, *tensor, problem.*field.shape));
  }

  FOVEAL_ASSIGN_OR_RETURN(computed, oracle(problem, read_tensors(attention), options));
  for (const ResultField& field : kResultFields) {
    const DLTensor* tensor = results.*field.tensor;
    if (tensor == nullptr) continue;
    const std::vector<double>& values = computed.*field.values;
    if (static_cast<std::int64_t>(values.size()) != (problem.*field.shape).numel()) {
      return Status::invalid_argument(concat(field.name, " is asked for, but a ",
                                             pass_name(problem.pass), " pass doesn't compute it"));
    }
    scatter(values, *tensor);
  }
  return Status::ok();
}

}  // namespace
}  // namespace foveal::capi

extern "C" foveal_status foveal_oracle(const foveal_attention* attention,
                                       const foveal_oracle_options* options,
                                       const foveal_oracle_results* results) {
  return foveal::capi::guarded(
      [&] { return foveal::capi::run_oracle(attention, options, results); });
}
