#include "tools/attention_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "tools/element_values.hpp"
#include "tools/expected_answers.hpp"
#include "tools/message_text.hpp"
#include "tools/tensor_layout.hpp"

namespace foveal::tools {
namespace {

using P = AttentionProblem;

/// How a file's tensor becomes an operand.
enum class Role : std::uint8_t {
  kRows,      // q, dout: [batch, seqlen, heads, dim] in the layout's order, or packed
  kKeys,      // k, v: the same, or pages
  kNewKeys,   // k_new, v_new: the layout's order, never packed
  kFloats,    // fp32 side operands, in the problem's order
  kAngles,    // rotary_cos, rotary_sin: q's type or fp32
  kBias,      // a float bias, or a mask of BOOL or U8
  kIntegers,  // int32, or I64 that fits
};

struct InputOperand {
  std::string_view name;
  Role role;
};

constexpr std::array kInputs{
    InputOperand{"q", Role::kRows},
    InputOperand{"k", Role::kKeys},
    InputOperand{"v", Role::kKeys},
    InputOperand{"dout", Role::kRows},
    InputOperand{"dlse", Role::kFloats},
    InputOperand{"bias", Role::kBias},
    InputOperand{"sinks", Role::kFloats},
    InputOperand{"alibi_slopes", Role::kFloats},
    InputOperand{"cu_seqlens_q", Role::kIntegers},
    InputOperand{"cu_seqlens_k", Role::kIntegers},
    InputOperand{"seqused_q", Role::kIntegers},
    InputOperand{"seqused_k", Role::kIntegers},
    InputOperand{"leftpad_k", Role::kIntegers},
    InputOperand{"block_table", Role::kIntegers},
    InputOperand{"cache_batch_idx", Role::kIntegers},
    InputOperand{"k_new", Role::kNewKeys},
    InputOperand{"v_new", Role::kNewKeys},
    InputOperand{"rotary_cos", Role::kAngles},
    InputOperand{"rotary_sin", Role::kAngles},
};

const InputOperand* find_input(std::string_view name) {
  const auto* found = std::find_if(kInputs.begin(), kInputs.end(),
                                   [&](const InputOperand& input) { return input.name == name; });
  return found == kInputs.end() ? nullptr : found;
}

bool is_float(FileDType dtype) {
  return dtype == FileDType::kF16 || dtype == FileDType::kBF16 || dtype == FileDType::kF32;
}

Status refuse_dtype(const TensorView& tensor, std::string_view allowed) {
  return Status::invalid_argument(
      fmt::format("{} is {}: it must be {}", tensor.name, file_dtype_name(tensor.dtype), allowed));
}

Status check_names(const SafetensorsFile& file) {
  for (const TensorView& tensor : file.tensors()) {
    if (find_input(tensor.name) != nullptr || is_expected_name(tensor.name)) continue;
    std::vector<std::string_view> known;
    for (const InputOperand& input : kInputs) known.push_back(input.name);
    return Status::invalid_argument(fmt::format("unknown tensor {}: known are {} and expected_*",
                                                in_quotes(tensor.name), fmt::join(known, ", ")));
  }
  for (const std::string_view name : {"q", "k", "v"}) {
    if (file.find(name) == nullptr) {
      return Status::invalid_argument(
          fmt::format("tensor {} is missing: q, k and v are needed", name));
    }
  }
  if (file.find("dlse") != nullptr && file.find("dout") == nullptr) {
    return Status::invalid_argument("dlse is given without dout: a backward needs dout");
  }
  return Status::ok();
}

Status check_rank(const TensorView& tensor, std::size_t rank, TensorLayout layout) {
  if (tensor.shape.size() == rank) return Status::ok();
  return Status::invalid_argument(fmt::format("{} {}: layout {} has {} dimensions", tensor.name,
                                              list_text(tensor.shape), tensor_layout_name(layout),
                                              rank));
}

/// The operand's shape and strides by its role and the file's layout; its dtype is still to be set.
class SpecReader {
 public:
  SpecReader(TensorLayout layout, bool paged) : layout_(layout), paged_(paged) {}

  [[nodiscard]] Result<TensorSpec> read(const TensorView& tensor, Role role) const {
    const std::size_t rank = tensor.shape.size();
    if (rank < 1 || rank > TensorSpec::kMaxRank) {
      return Status::invalid_argument(
          fmt::format("{} has {} dimensions: between 1 and 4 are allowed", tensor.name, rank));
    }
    const bool packed_rows = layout_ == TensorLayout::kThd && role == Role::kRows;
    if (role == Role::kRows) {
      FOVEAL_RETURN_IF_ERROR(check_rank(tensor, packed_rows ? 3 : 4, layout_));
    }
    const bool in_layout =
        role == Role::kRows || role == Role::kNewKeys || (role == Role::kKeys && !paged_);
    if (in_layout && layout_ == TensorLayout::kBhsd && rank == 4) {
      return heads_first(DType::kFloat32, tensor.shape);
    }
    return row_major(DType::kFloat32, tensor.shape);
  }

 private:
  TensorLayout layout_;
  bool paged_;
};

/// Puts one tensor of the file into the input.
class OperandLoader {
 public:
  OperandLoader(AttentionInput& input, std::optional<DType> dtype)
      : input_(input),
        dtype_(dtype),
        q_dtype_(input.file.find("q")->dtype),
        specs_(input.layout, input.file.find("block_table") != nullptr) {}

  Status load(const OperandInfo& operand, Role role) {
    const TensorView* tensor = input_.file.find(operand.name);
    if (tensor == nullptr) return Status::ok();
    FOVEAL_ASSIGN_OR_RETURN(spec, specs_.read(*tensor, role));
    FOVEAL_ASSIGN_OR_RETURN(operand_dtype, computed_dtype(*tensor, role));
    spec.dtype = operand_dtype;
    FOVEAL_ASSIGN_OR_RETURN(data, data_as(*tensor, operand_dtype));
    spec_of(operand) = spec;
    input_.tensors.*operand.input = data;
    return Status::ok();
  }

 private:
  TensorSpec& spec_of(const OperandInfo& operand) {
    if (operand.spec == &P::dout) return input_.dout;
    if (operand.spec == &P::dlse) return input_.dlse;
    return input_.problem.*operand.spec;
  }

  /// Of the operand, after --dtype.
  [[nodiscard]] Result<DType> computed_dtype(const TensorView& tensor, Role role) const {
    const DType own = to_dtype(tensor.dtype);
    switch (role) {
      case Role::kIntegers:
        if (tensor.dtype == FileDType::kI64 || own == DType::kInt32) return DType::kInt32;
        return refuse_dtype(tensor, "I32 or I64");
      case Role::kFloats:
        if (own == DType::kFloat32) return own;
        return refuse_dtype(tensor, "F32");
      case Role::kBias:
        if (own == DType::kBool || tensor.dtype == FileDType::kU8) return DType::kBool;
        if (!is_float(tensor.dtype)) return refuse_dtype(tensor, "F16, BF16, F32, BOOL or U8");
        break;
      default:
        if (!is_float(tensor.dtype)) return refuse_dtype(tensor, "F16, BF16 or F32");
    }
    const bool converts = role == Role::kRows || role == Role::kKeys || role == Role::kNewKeys ||
                          tensor.dtype == q_dtype_;
    return dtype_ && converts ? *dtype_ : own;
  }

  Result<const void*> data_as(const TensorView& tensor, DType dtype) {
    if (tensor.dtype == FileDType::kI64) return keep(narrowed_to_int32(tensor));
    if (dtype != DType::kBool && to_dtype(tensor.dtype) != dtype) {
      return keep(converted(tensor, dtype));
    }
    if (!tensor.is_aligned()) return keep(copied(tensor));
    return static_cast<const void*>(tensor.data.data());
  }

  Result<const void*> keep(Result<AlignedBuffer> buffer) {
    if (!buffer) return buffer.status();
    input_.buffers.push_back(*std::move(buffer));
    return static_cast<const void*>(input_.buffers.back().data());
  }

  AttentionInput& input_;
  std::optional<DType> dtype_;
  FileDType q_dtype_;
  SpecReader specs_;
};

/// Whether values of `from` can need rounding to be `to`.
bool rounds(DType from, DType to) { return from != to && to != DType::kFloat32; }

Status load(AttentionInput& input, const ComputeOptions& flags, std::optional<DType> dtype,
            const std::string& path) {
  FOVEAL_ASSIGN_OR_RETURN(metadata, options_from_metadata(input.file.metadata(), path));
  const ComputeOptions options = overlay(flags, metadata);
  FOVEAL_RETURN_IF_ERROR(in_file(path, check_names(input.file)));
  const TensorView& q = *input.file.find("q");
  input.layout =
      options.layout.value_or(q.shape.size() == 3 ? TensorLayout::kThd : TensorLayout::kBshd);

  OperandLoader loader(input, dtype);
  for (const OperandInfo& operand : operands()) {
    const InputOperand* known = find_input(operand.name);
    if (known == nullptr) continue;
    FOVEAL_RETURN_IF_ERROR(in_file(path, loader.load(operand, known->role)));
  }
  if (dtype && rounds(to_dtype(q.dtype), *dtype)) input.rounded_from = to_dtype(q.dtype);
  apply_options(options, input.problem, input.tensors);
  return Status::ok();
}

}  // namespace

Result<AttentionInput> load_attention_input(const std::string& path, const ComputeOptions& flags,
                                            std::optional<DType> dtype) {
  FOVEAL_ASSIGN_OR_RETURN(file, SafetensorsFile::open(path));
  AttentionInput input{.file = std::move(file)};
  FOVEAL_RETURN_IF_ERROR(load(input, flags, dtype, path));
  return input;
}

Status in_file(const std::string& path, const Status& status) {
  if (status.is_ok()) return status;
  return {status.code(), path + ": " + status.message()};
}

}  // namespace foveal::tools
