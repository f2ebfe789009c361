#include "tools/attention_results.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tools/tensor_layout.hpp"

namespace foveal::tools {
namespace {

using P = AttentionProblem;

/// All bytes 0xff is NaN in fp16, bf16 and fp32.
constexpr int kNanByte = 0xff;

/// Memory in the file's order of dimensions, described in the problem's: `like` is an input with
/// the same ones, `last` the result's last dimension.
TensorSpec result_like(const TensorSpec& like, std::int64_t last, DType dtype,
                       bool heads_first_in) {
  std::vector<std::int64_t> shape = file_shape(like, heads_first_in);
  shape.back() = last;
  return heads_first_in && shape.size() == 4 ? heads_first(dtype, shape) : row_major(dtype, shape);
}

std::int64_t last_dimension(const TensorSpec& spec) {
  return spec.shape[static_cast<std::size_t>(std::max(spec.rank, 1) - 1)];
}

TensorSpec lse_spec(const TensorSpec& q) {
  if (q.rank == 3) return TensorSpec::contiguous(DType::kFloat32, {q.shape[1], q.shape[0]});
  return TensorSpec::contiguous(DType::kFloat32, {q.shape[0], q.shape[2], q.shape[1]});
}

enum class ResultMemory : std::uint8_t { kAllocated, kNone };

class ResultMaker {
 public:
  ResultMaker(const AttentionInput& input, ResultMemory memory) : input_(input), memory_(memory) {}

  Result<AttentionResults> make() {
    plan_forward();
    if (input_.has_backward()) plan_backward();
    FOVEAL_RETURN_IF_ERROR(validate(made_.forward));
    if (made_.backward) FOVEAL_RETURN_IF_ERROR(validate(*made_.backward));
    made_.tensors = input_.tensors;
    for (ResultTensor& result : made_.results) FOVEAL_RETURN_IF_ERROR(allocate(result));
    FOVEAL_RETURN_IF_ERROR(validate(made_.forward, made_.tensors));
    if (made_.backward) FOVEAL_RETURN_IF_ERROR(validate(*made_.backward, made_.tensors));
    return std::move(made_);
  }

 private:
  [[nodiscard]] bool heads_first_of(const TensorSpec& spec) const {
    return input_.heads_first() && spec.rank == 4;
  }

  void add(const char* name, const TensorSpec& spec, RowAxes rows, bool heads_first) {
    made_.results.push_back(
        {.name = name, .spec = spec, .rows = rows, .heads_first = heads_first, .buffer = {}});
  }

  void plan_forward() {
    const P& given = input_.problem;
    P& forward = made_.forward;
    forward = given;
    forward.out =
        result_like(given.q, last_dimension(given.v), given.q.dtype, heads_first_of(given.q));
    forward.lse = lse_spec(given.q);
    add("out", forward.out, RowAxes::kLeading, heads_first_of(given.q));
    add("lse", forward.lse, RowAxes::kTrailing, false);
    if (!given.k_new.present()) return;
    const bool cache_heads_first = !given.block_table.present() && heads_first_of(given.k);
    add("k", given.k, RowAxes::kNone, cache_heads_first);
    add("v", given.v, RowAxes::kNone, cache_heads_first);
  }

  void plan_backward() {
    P backward = made_.forward;
    backward.pass = Pass::kBackward;
    backward.dout = input_.dout;
    backward.dlse = input_.dlse;
    backward.dq = like(backward.q);
    backward.dk = like(backward.k);
    backward.dv = like(backward.v);
    add("dq", backward.dq, RowAxes::kLeading, heads_first_of(backward.q));
    add("dk", backward.dk, RowAxes::kNone, heads_first_of(backward.k));
    add("dv", backward.dv, RowAxes::kNone, heads_first_of(backward.v));
    if (backward.sinks.present()) {
      backward.dsinks = backward.sinks;
      add("dsinks", backward.dsinks, RowAxes::kNone, false);
    }
    if (backward.bias.present() && backward.bias.dtype != DType::kBool) {
      backward.dbias = backward.bias;
      add("dbias", backward.dbias, RowAxes::kNone, false);
    }
    made_.backward = backward;
  }

  [[nodiscard]] TensorSpec like(const TensorSpec& spec) const {
    return result_like(spec, last_dimension(spec), spec.dtype, heads_first_of(spec));
  }

  /// Memory of a result, or of the cache that the pass appends to.
  Status allocate(ResultTensor& result) {
    if (memory_ == ResultMemory::kNone) {
      set_placeholder(result.name);
      return Status::ok();
    }
    const std::int64_t bytes = result.spec.numel() * dtype_bytes(result.spec.dtype);
    FOVEAL_ASSIGN_OR_RETURN(buffer, AlignedBuffer::allocate(bytes, result.name));
    result.buffer = std::move(buffer);
    std::byte* data = result.buffer.data();
    if (data != nullptr) std::memset(data, kNanByte, result.buffer.size());
    for (const OperandInfo& operand : operands()) {
      if (operand.name != result.name) continue;
      if (operand.output != nullptr) {
        made_.tensors.*operand.output = data;
        continue;
      }
      if (data != nullptr) {
        std::memcpy(data, input_.tensors.*operand.input, result.buffer.size());
      }
      made_.tensors.*operand.input = data;
    }
    return Status::ok();
  }

  /// validate() asks for an address of each output and doesn't follow it.
  void set_placeholder(std::string_view name) {
    static std::byte placeholder[1];
    for (const OperandInfo& operand : operands()) {
      if (operand.output != nullptr && operand.name == name) {
        made_.tensors.*operand.output = placeholder;
      }
    }
  }

  const AttentionInput& input_;
  ResultMemory memory_;
  AttentionResults made_;
};

}  // namespace

const ResultTensor* AttentionResults::find(std::string_view name) const {
  const auto found = std::find_if(results.begin(), results.end(),
                                  [&](const ResultTensor& result) { return result.name == name; });
  return found == results.end() ? nullptr : &*found;
}

Result<AttentionResults> make_results(const AttentionInput& input) {
  return ResultMaker(input, ResultMemory::kAllocated).make();
}

Result<AttentionResults> describe_results(const AttentionInput& input) {
  return ResultMaker(input, ResultMemory::kNone).make();
}

}  // namespace foveal::tools
