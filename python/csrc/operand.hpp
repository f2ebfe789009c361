// PyTorch's tensors as operands of a problem. Only torch's stable ABI, so that one binary serves
// every torch from 2.10 on.
#pragma once

#include <cstdint>
#include <optional>

#include <torch/csrc/stable/tensor.h>

#include <foveal/problem.hpp>
#include <foveal/tensor.hpp>

namespace foveal::python {

using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// The order of the two middle dimensions of q, k, v, out and their gradients in PyTorch: the
/// problem is always BSHD, so that BHSD is a matter of strides.
enum class Layout : bool { kBshd = false, kBhsd = true };

/// Shape, strides and type of `tensor` as the operand `name`. Raises for what a TensorSpec can't
/// say.
TensorSpec spec_of(const char* name, const Tensor& tensor, Layout layout = Layout::kBshd);

/// A pointer says nothing of where it leads: every operand must be on the device of the `anchor`.
[[nodiscard]] bool same_device(const Tensor& tensor, const Tensor& anchor);
void check_device(const char* name, const Tensor& tensor, const Tensor& anchor);

/// Describes `tensor` as the operand `name` and takes its data.
template <class Data>
void add_operand(const char* name, const Tensor& tensor, const Tensor& anchor, TensorSpec& spec,
                 Data*& data, Layout layout = Layout::kBshd) {
  check_device(name, tensor, anchor);
  spec = spec_of(name, tensor, layout);
  data = tensor.data_ptr();
}
template <class Data>
void add_operand(const char* name, const OptionalTensor& tensor, const Tensor& anchor,
                 TensorSpec& spec, Data*& data) {
  if (tensor) add_operand(name, *tensor, anchor, spec, data);
}

/// An uninitialised tensor on `like`'s device, of the type and the shape that `spec` says, in the
/// memory order BSHD without gaps; as PyTorch sees it in `layout`.
Tensor empty_operand(const Tensor& like, const TensorSpec& spec, Layout layout = Layout::kBshd);

/// An uninitialised gradient of `tensor`: laid out like it where its last dimension is contiguous.
Tensor empty_gradient(const Tensor& tensor);

/// A tensor without elements, in the place of a result that was not asked for.
Tensor no_tensor(const Tensor& like, DType dtype = DType::kFloat32);

}  // namespace foveal::python
