// Which operands belong to a pass, their ranks and their element types.
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include "core/format.hpp"
#include "core/integer.hpp"
#include "problem/validate.hpp"

namespace foveal::checks {
namespace {

enum class Need : std::int32_t { kRequired, kOptional };

struct OperandNeed {
  std::string_view name;
  Need need;
};

constexpr OperandNeed kForwardOperands[] = {
    {"q", Need::kRequired},
    {"k", Need::kRequired},
    {"v", Need::kRequired},
    {"out", Need::kRequired},
    {"lse", Need::kOptional},
    {"bias", Need::kOptional},
    {"sinks", Need::kOptional},
    {"alibi_slopes", Need::kOptional},
    {"cu_seqlens_q", Need::kOptional},
    {"cu_seqlens_k", Need::kOptional},
    {"seqused_q", Need::kOptional},
    {"seqused_k", Need::kOptional},
    {"leftpad_k", Need::kOptional},
    {"block_table", Need::kOptional},
    {"k_new", Need::kOptional},
    {"cache_batch_idx", Need::kOptional},
    {"v_new", Need::kOptional},
    {"rotary_cos", Need::kOptional},
    {"rotary_sin", Need::kOptional},
};

constexpr OperandNeed kBackwardOperands[] = {
    {"q", Need::kRequired},
    {"k", Need::kRequired},
    {"v", Need::kRequired},
    {"out", Need::kRequired},
    {"lse", Need::kRequired},
    {"dout", Need::kRequired},
    {"dlse", Need::kOptional},
    {"dq", Need::kOptional},
    {"dk", Need::kOptional},
    {"dv", Need::kOptional},
    {"bias", Need::kOptional},
    {"dbias", Need::kOptional},
    {"sinks", Need::kOptional},
    {"dsinks", Need::kOptional},
    {"alibi_slopes", Need::kOptional},
    {"cu_seqlens_q", Need::kOptional},
    {"seqused_q", Need::kOptional},
    {"cu_seqlens_k", Need::kOptional},
    {"seqused_k", Need::kOptional},
    {"leftpad_k", Need::kOptional},
};

constexpr OperandNeed kAppendOperands[] = {
    {"k", Need::kRequired},          {"v", Need::kRequired},
    {"k_new", Need::kRequired},      {"v_new", Need::kRequired},
    {"seqused_k", Need::kRequired},  {"block_table", Need::kOptional},
    {"leftpad_k", Need::kOptional},  {"cache_batch_idx", Need::kOptional},
    {"rotary_cos", Need::kOptional}, {"rotary_sin", Need::kOptional},
    {"q", Need::kOptional},          {"q_rotated", Need::kOptional},
    {"seqused_q", Need::kOptional},  {"cu_seqlens_q", Need::kOptional},
};

constexpr OperandNeed kMergeOperands[] = {
    {"out", Need::kRequired},   {"lse", Need::kOptional},   {"out_a", Need::kRequired},
    {"lse_a", Need::kRequired}, {"out_b", Need::kRequired}, {"lse_b", Need::kRequired},
};

std::span<const OperandNeed> operands_of(Pass pass) {
  switch (pass) {
    case Pass::kForward: return kForwardOperands;
    case Pass::kBackward: return kBackwardOperands;
    case Pass::kAppend: return kAppendOperands;
    case Pass::kMerge: return kMergeOperands;
  }
  return {};
}

const OperandNeed* find_need(Pass pass, std::string_view name) {
  for (const OperandNeed& need : operands_of(pass)) {
    if (need.name == name) return &need;
  }
  return nullptr;
}

/// `name` is given where `needed` is not.
struct Dependency {
  std::string_view name;
  TensorSpec AttentionProblem::*spec;
  std::string_view needed;
  TensorSpec AttentionProblem::*needed_spec;
};

using P = AttentionProblem;
constexpr Dependency kDependencies[] = {
    {"k_new", &P::k_new, "v_new", &P::v_new},
    {"v_new", &P::v_new, "k_new", &P::k_new},
    {"k_new", &P::k_new, "seqused_k", &P::seqused_k},
    {"rotary_cos", &P::rotary_cos, "rotary_sin", &P::rotary_sin},
    {"rotary_sin", &P::rotary_sin, "rotary_cos", &P::rotary_cos},
    {"rotary_cos", &P::rotary_cos, "k_new", &P::k_new},
    {"q_rotated", &P::q_rotated, "q", &P::q},
    {"q_rotated", &P::q_rotated, "rotary_cos", &P::rotary_cos},
    {"dbias", &P::dbias, "bias", &P::bias},
    {"dsinks", &P::dsinks, "sinks", &P::sinks},
};

/// Bytes that the view spans fit in 64 bits.
bool span_fits(const TensorSpec& spec) {
  std::int64_t span = 1;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(spec.rank); ++axis) {
    const std::int64_t stride = spec.strides[axis];
    std::int64_t reach = 0;
    if (stride == std::numeric_limits<std::int64_t>::min()) return false;
    if (!multiply_checked(stride < 0 ? -stride : stride,
                          max_of<std::int64_t>(spec.shape[axis] - 1, 0), reach) ||
        !add_checked(span, reach, span)) {
      return false;
    }
  }
  std::int64_t bytes = 0;
  return multiply_checked(span, dtype_bytes(spec.dtype), bytes);
}

Status check_extent(const OperandInfo& operand, const TensorSpec& spec) {
  constexpr std::int64_t kMaxExtent = std::numeric_limits<std::int32_t>::max();
  if (spec.rank < 1 || spec.rank > TensorSpec::kMaxRank) {
    return Status::invalid_argument(
        concat(operand.name, " has ", spec.rank, " dimensions: between 1 and 4 are allowed"));
  }
  std::int64_t count = 1;
  bool fits = true;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(spec.rank); ++axis) {
    const std::int64_t extent = spec.shape[axis];
    if (extent < 0 || extent > kMaxExtent) {
      return Status::invalid_argument(concat(operand.name, " has an extent of ", extent,
                                             " in dimension ", axis, ": between 0 and ", kMaxExtent,
                                             " is allowed"));
    }
    fits = fits && multiply_checked(count, max_of<std::int64_t>(extent, 1), count);
  }
  std::int64_t bytes = 0;
  if (!fits || !multiply_checked(count, dtype_bytes(spec.dtype), bytes) || !span_fits(spec)) {
    const auto rank = static_cast<std::size_t>(spec.rank);
    return Status::invalid_argument(concat(operand.name, " ", std::span(spec.shape.data(), rank),
                                           ": its size in bytes must fit in 64 bits"));
  }
  return Status::ok();
}

bool is_float(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 || dtype == DType::kFloat32;
}

/// The operand is `dtype` or, where that is allowed, fp32.
Status check_float(const char* name, const TensorSpec& spec, DType dtype, bool or_fp32) {
  if (!spec.present() || spec.dtype == dtype) return Status::ok();
  if (or_fp32 && spec.dtype == DType::kFloat32) return Status::ok();
  const bool two_choices = or_fp32 && dtype != DType::kFloat32;
  return Status::invalid_argument(concat(name, " is ", dtype_name(spec.dtype), ": it must be ",
                                         dtype_name(dtype), two_choices ? " or fp32" : ""));
}

Status check_bias_dtypes(const AttentionProblem& problem, DType dtype) {
  if (problem.bias.present() && problem.bias.dtype != DType::kBool && problem.bias.dtype != dtype &&
      problem.bias.dtype != DType::kFloat32) {
    return Status::invalid_argument(concat("bias is ", dtype_name(problem.bias.dtype),
                                           ": it must be ", dtype_name(dtype),
                                           dtype == DType::kFloat32 ? "" : ", fp32", " or bool"));
  }
  if (problem.dbias.present() && problem.bias.dtype == DType::kBool) {
    return Status::invalid_argument("dbias is given, but bias is bool: a mask has no gradient");
  }
  if (problem.dbias.present() && problem.dbias.dtype != problem.bias.dtype) {
    return Status::invalid_argument(concat("dbias is ", dtype_name(problem.dbias.dtype),
                                           ": it must be ", dtype_name(problem.bias.dtype),
                                           ", as bias"));
  }
  return Status::ok();
}

Status check_merge_dtypes(const AttentionProblem& problem) {
  const std::pair<const char*, const TensorSpec*> values[] = {
      {"out_a", &problem.out_a}, {"out_b", &problem.out_b}, {"out", &problem.out}};
  for (const auto& [name, spec] : values) {
    if (!is_float(spec->dtype)) {
      return Status::invalid_argument(
          concat(name, " is ", dtype_name(spec->dtype), ": it must be fp16, bf16 or fp32"));
    }
  }
  return Status::ok();
}

}  // namespace

Status check_operand_set(const AttentionProblem& problem) {
  const char* pass = pass_name(problem.pass);
  if (operands_of(problem.pass).empty()) {
    return Status::invalid_argument(concat("pass ", static_cast<std::int32_t>(problem.pass),
                                           ": it must be forward, backward, append or merge"));
  }
  for (const OperandInfo& operand : operands()) {
    const bool present = (problem.*operand.spec).present();
    const OperandNeed* need = find_need(problem.pass, operand.name);
    if (present && need == nullptr) {
      return Status::invalid_argument(
          concat(operand.name, " is given: ", pass, " doesn't take it"));
    }
    if (!present && need != nullptr && need->need == Need::kRequired) {
      return Status::invalid_argument(concat(operand.name, " is missing: ", pass, " needs it"));
    }
  }
  for (const Dependency& dependency : kDependencies) {
    if ((problem.*dependency.spec).present() && !(problem.*dependency.needed_spec).present()) {
      return Status::invalid_argument(
          concat(dependency.name, " is given without ", dependency.needed, ": it needs it"));
    }
  }
  if (problem.pass == Pass::kAppend && problem.q.present() != problem.q_rotated.present()) {
    return Status::invalid_argument("q is given without q_rotated: append only rotates q");
  }
  if (problem.pass == Pass::kBackward && !problem.dq.present() && !problem.dk.present() &&
      !problem.dv.present() && !problem.dbias.present() && !problem.dsinks.present()) {
    return Status::invalid_argument(
        "dq is missing, and so are dk, dv, dbias and dsinks: backward needs one of them");
  }
  return Status::ok();
}

Status check_extents(const AttentionProblem& problem) {
  for (const OperandInfo& operand : operands()) {
    const TensorSpec& spec = problem.*operand.spec;
    if (spec.present()) FOVEAL_RETURN_IF_ERROR(check_extent(operand, spec));
  }
  return Status::ok();
}

Status check_dtypes(const AttentionProblem& problem) {
  for (const char* name : {"lse", "dlse", "sinks", "dsinks", "alibi_slopes", "lse_a", "lse_b"}) {
    for (const OperandInfo& operand : operands()) {
      if (operand.name != std::string_view(name)) continue;
      FOVEAL_RETURN_IF_ERROR(
          check_float(name, problem.*operand.spec, DType::kFloat32, /*or_fp32=*/false));
    }
  }
  const std::pair<const char*, const TensorSpec*> integers[] = {
      {"cu_seqlens_q", &problem.cu_seqlens_q},
      {"cu_seqlens_k", &problem.cu_seqlens_k},
      {"seqused_q", &problem.seqused_q},
      {"seqused_k", &problem.seqused_k},
      {"leftpad_k", &problem.leftpad_k},
      {"block_table", &problem.block_table},
      {"cache_batch_idx", &problem.cache_batch_idx}};
  for (const auto& [name, spec] : integers) {
    if (spec->present() && spec->dtype != DType::kInt32) {
      return Status::invalid_argument(
          concat(name, " is ", dtype_name(spec->dtype), ": it must be int32"));
    }
  }
  if (problem.pass == Pass::kMerge) return check_merge_dtypes(problem);

  const DType dtype = problem.k.dtype;
  if (problem.q.present() && !is_float(problem.q.dtype)) {
    return Status::invalid_argument(
        concat("q is ", dtype_name(problem.q.dtype), ": it must be fp16, bf16 or fp32"));
  }
  if (!is_float(dtype)) {
    return Status::invalid_argument(
        concat("k is ", dtype_name(dtype), ": it must be fp16, bf16 or fp32"));
  }
  if (problem.q.present() && problem.q.dtype != dtype) {
    return Status::invalid_argument(concat("q is ", dtype_name(problem.q.dtype), " and k is ",
                                           dtype_name(dtype), ": q, k and v must have one dtype"));
  }
  FOVEAL_RETURN_IF_ERROR(check_float("v", problem.v, dtype, false));
  FOVEAL_RETURN_IF_ERROR(check_float("k_new", problem.k_new, dtype, false));
  FOVEAL_RETURN_IF_ERROR(check_float("v_new", problem.v_new, dtype, false));
  FOVEAL_RETURN_IF_ERROR(check_float("q_rotated", problem.q_rotated, dtype, false));
  FOVEAL_RETURN_IF_ERROR(check_float("rotary_cos", problem.rotary_cos, dtype, true));
  FOVEAL_RETURN_IF_ERROR(
      check_float("rotary_sin", problem.rotary_sin, problem.rotary_cos.dtype, false));
  FOVEAL_RETURN_IF_ERROR(check_float("out", problem.out, dtype, true));
  FOVEAL_RETURN_IF_ERROR(check_float("dout", problem.dout, dtype, true));
  FOVEAL_RETURN_IF_ERROR(check_float("dq", problem.dq, dtype, true));
  FOVEAL_RETURN_IF_ERROR(check_float("dk", problem.dk, dtype, true));
  FOVEAL_RETURN_IF_ERROR(check_float("dv", problem.dv, dtype, true));
  return check_bias_dtypes(problem, dtype);
}

}  // namespace foveal::checks
