#include "capi/attention_struct.hpp"

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "capi/tensor_view.hpp"
#include "core/format.hpp"

namespace foveal::capi {
namespace {

using A = foveal_attention;

constexpr TensorField kTensorFields[] = {
    {"q", &A::q},
    {"k", &A::k},
    {"v", &A::v},
    {"out", &A::out},
    {"lse", &A::lse},
    {"dout", &A::dout},
    {"dlse", &A::dlse},
    {"dq", &A::dq},
    {"dk", &A::dk},
    {"dv", &A::dv},
    {"bias", &A::bias},
    {"dbias", &A::dbias},
    {"sinks", &A::sinks},
    {"dsinks", &A::dsinks},
    {"alibi_slopes", &A::alibi_slopes},
    {"cu_seqlens_q", &A::cu_seqlens_q},
    {"cu_seqlens_k", &A::cu_seqlens_k},
    {"seqused_q", &A::seqused_q},
    {"seqused_k", &A::seqused_k},
    {"leftpad_k", &A::leftpad_k},
    {"block_table", &A::block_table},
    {"cache_batch_idx", &A::cache_batch_idx},
    {"k_new", &A::k_new},
    {"v_new", &A::v_new},
    {"rotary_cos", &A::rotary_cos},
    {"rotary_sin", &A::rotary_sin},
    {"q_rotated", &A::q_rotated},
    {"out_a", &A::out_a},
    {"lse_a", &A::lse_a},
    {"out_b", &A::out_b},
    {"lse_b", &A::lse_b},
};

Status check_flag(const char* name, std::int32_t value) {
  if (value == 0 || value == 1) return Status::ok();
  return Status::invalid_argument(concat(name, " is ", value, ": it must be 0 or 1"));
}

Status check_flags(const foveal_attention& attention) {
  FOVEAL_RETURN_IF_ERROR(check_flag("causal", attention.causal));
  FOVEAL_RETURN_IF_ERROR(check_flag("rotary_interleaved", attention.rotary_interleaved));
  FOVEAL_RETURN_IF_ERROR(check_flag("deterministic", attention.deterministic));
  FOVEAL_RETURN_IF_ERROR(check_flag("batch_invariant", attention.batch_invariant));
  FOVEAL_RETURN_IF_ERROR(check_flag("has_softmax_scale", attention.has_softmax_scale));
  return check_flag("has_window", attention.has_window);
}

/// Everything of a problem but its tensors.
void read_options(const foveal_attention& attention, AttentionProblem& problem) {
  problem.pass = static_cast<Pass>(attention.pass);
  problem.max_seqlen_q = attention.max_seqlen_q;
  problem.max_seqlen_k = attention.max_seqlen_k;
  if (attention.has_softmax_scale != 0) problem.softmax_scale = attention.softmax_scale;
  problem.softcap = attention.softcap;
  problem.dropout_p = attention.dropout_p;
  if (attention.has_window != 0) {
    problem.window_size_left = attention.window_size_left;
    problem.window_size_right = attention.window_size_right;
  }
  problem.causal = attention.causal != 0;
  problem.rotary_interleaved = attention.rotary_interleaved != 0;
  problem.deterministic = attention.deterministic != 0;
  problem.batch_invariant = attention.batch_invariant != 0;
}

/// The name of an option that differs, or null.
const char* differing_option(const AttentionProblem& a, const AttentionProblem& b) {
  if (a.pass != b.pass) return "pass";
  if (a.max_seqlen_q != b.max_seqlen_q) return "max_seqlen_q";
  if (a.max_seqlen_k != b.max_seqlen_k) return "max_seqlen_k";
  if (a.softmax_scale != b.softmax_scale) return "softmax_scale";
  if (a.softcap != b.softcap) return "softcap";
  if (a.dropout_p != b.dropout_p) return "dropout_p";
  if (a.window_size_left != b.window_size_left) return "window_size_left";
  if (a.window_size_right != b.window_size_right) return "window_size_right";
  if (a.causal != b.causal) return "causal";
  if (a.rotary_interleaved != b.rotary_interleaved) return "rotary_interleaved";
  if (a.deterministic != b.deterministic) return "deterministic";
  if (a.batch_invariant != b.batch_invariant) return "batch_invariant";
  return nullptr;
}

}  // namespace

std::span<const TensorField> tensor_fields() { return kTensorFields; }

Result<AttentionProblem> read_problem(const foveal_attention& attention) {
  FOVEAL_RETURN_IF_ERROR(check_flags(attention));
  AttentionProblem problem;
  read_options(attention, problem);
  const std::span<const OperandInfo> infos = operands();
  for (std::size_t i = 0; i < std::size(kTensorFields); ++i) {
    const DLTensor* tensor = attention.*kTensorFields[i].tensor;
    if (tensor == nullptr) continue;
    FOVEAL_RETURN_IF_ERROR(read_spec(kTensorFields[i].name, *tensor, problem.*infos[i].spec));
  }
  return problem;
}

AttentionTensors read_tensors(const foveal_attention& attention) {
  AttentionTensors tensors;
  const std::span<const OperandInfo> infos = operands();
  for (std::size_t i = 0; i < std::size(kTensorFields); ++i) {
    const DLTensor* tensor = attention.*kTensorFields[i].tensor;
    if (tensor == nullptr) continue;
    if (infos[i].output != nullptr) {
      tensors.*infos[i].output = data_of(*tensor);
    } else {
      tensors.*infos[i].input = data_of(*tensor);
    }
  }
  tensors.dropout_seed = attention.dropout_seed;
  tensors.dropout_offset = attention.dropout_offset;
  tensors.dropout_seed_ptr = attention.dropout_seed_ptr;
  tensors.dropout_offset_ptr = attention.dropout_offset_ptr;
  return tensors;
}

Status read_common_device(const foveal_attention& attention, Device& device) {
  device = Device::cpu();
  const char* first = nullptr;
  for (const TensorField& field : kTensorFields) {
    const DLTensor* tensor = attention.*field.tensor;
    if (tensor == nullptr) continue;
    Device found;
    FOVEAL_RETURN_IF_ERROR(read_device(field.name, tensor->device, found));
    if (first == nullptr) {
      first = field.name;
      device = found;
    } else if (found != device) {
      return Status::invalid_argument(concat(field.name, " is on ", device_text(found), " and ",
                                             first, " on ", device_text(device),
                                             ": all tensors must be on one device"));
    }
  }
  return Status::ok();
}

Status check_same_problem(const AttentionProblem& planned, const Device& device,
                          const foveal_attention& attention) {
  FOVEAL_RETURN_IF_ERROR(check_flags(attention));
  AttentionProblem options;
  read_options(attention, options);
  if (const char* option = differing_option(planned, options)) {
    return Status::invalid_argument(
        concat(option, " is not the one that was planned: make a plan for each value"));
  }
  const std::span<const OperandInfo> infos = operands();
  for (std::size_t i = 0; i < std::size(kTensorFields); ++i) {
    const char* name = kTensorFields[i].name;
    const DLTensor* tensor = attention.*kTensorFields[i].tensor;
    TensorSpec spec;
    if (tensor != nullptr) {
      FOVEAL_RETURN_IF_ERROR(read_spec(name, *tensor, spec));
      Device found;
      FOVEAL_RETURN_IF_ERROR(read_device(name, tensor->device, found));
      if (found.type != device.type || found.index != device.index) {
        return Status::invalid_argument(
            concat(name, " is on ", device_text(found), ": the plan is for ", device_text(device)));
      }
    }
    if (spec != planned.*infos[i].spec) {
      return Status::invalid_argument(concat(name, " is ", spec.to_string(), ": the plan is for ",
                                             (planned.*infos[i].spec).to_string()));
    }
  }
  return Status::ok();
}

}  // namespace foveal::capi
