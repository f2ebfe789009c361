#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>

#include <foveal/experimental.hpp>

#include "core/format.hpp"
#include "reference/append.hpp"
#include "reference/backward.hpp"
#include "reference/forward.hpp"
#include "reference/inputs.hpp"
#include "reference/merge.hpp"

namespace foveal {
namespace {

Status check_options(const AttentionProblem& problem, const OracleOptions& options) {
  if (options.num_threads < 0) {
    return Status::invalid_argument(concat("num_threads ", options.num_threads, ": at least 0"));
  }
  if (options.use_given_out_and_lse && problem.pass != Pass::kBackward) {
    return Status::invalid_argument(concat("use_given_out_and_lse with a ", pass_name(problem.pass),
                                           " pass: only a backward pass reads out and lse"));
  }
  if (options.rows.empty()) return {};
  if (problem.pass != Pass::kForward) {
    return Status::invalid_argument(
        concat("rows with a ", pass_name(problem.pass), " pass: only a forward pass takes them"));
  }
  const std::int64_t num_rows =
      problem.q.rank == 3 ? problem.q.shape[0] : problem.q.shape[0] * problem.q.shape[1];
  for (const std::int64_t row : options.rows) {
    if (row < 0 || row >= num_rows) {
      return Status::invalid_argument(
          concat("rows: ", row, " is not among the ", num_rows, " rows of q"));
    }
  }
  return {};
}

/// The tensors with an address for each output, so that callers need no memory for what the oracle
/// neither writes nor reads. It is never followed.
AttentionTensors with_outputs(const AttentionTensors& tensors, bool reads_out_and_lse) {
  static std::byte placeholder[16];
  AttentionTensors complete = tensors;
  for (const OperandInfo& operand : operands()) {
    if (operand.output == nullptr) continue;
    const bool read = reads_out_and_lse && (operand.output == &AttentionTensors::out ||
                                            operand.output == &AttentionTensors::lse);
    if (!read && complete.*operand.output == nullptr) complete.*operand.output = placeholder;
  }
  return complete;
}

OracleResult compute(const AttentionProblem& problem, const AttentionTensors& tensors,
                     const OracleOptions& options) {
  OracleResult result;
  const reference::Inputs inputs(problem, tensors);
  switch (problem.pass) {
    case Pass::kForward:
      reference::forward(inputs, options, result);
      if (problem.k_new.present()) reference::append(inputs, result);
      break;
    case Pass::kBackward: reference::backward(inputs, options, result); break;
    case Pass::kAppend: reference::append(inputs, result); break;
    case Pass::kMerge: reference::merge(inputs, result); break;
  }
  return result;
}

}  // namespace

Result<OracleResult> oracle(const AttentionProblem& problem, const AttentionTensors& tensors,
                            const OracleOptions& options) {
  try {
    FOVEAL_RETURN_IF_ERROR(validate(problem));
    FOVEAL_RETURN_IF_ERROR(check_options(problem, options));
    FOVEAL_RETURN_IF_ERROR(validate(problem, with_outputs(tensors, options.use_given_out_and_lse)));
    return compute(problem, tensors, options);
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory("the oracle's results in double do not fit in memory");
  } catch (const std::length_error&) {
    return Status::out_of_memory("the oracle's results in double are larger than memory can be");
  }
}

}  // namespace foveal
