#include "operand.hpp"

#include <array>
#include <string>
#include <utility>

#include <torch/csrc/stable/ops.h>

#include "errors.hpp"

namespace foveal::python {
namespace {

struct DTypePair {
  std::int32_t torch_dtype;
  DType dtype;
};

/// torch's numbers are not part of the ABI: they are asked for once. uint8 is a mask, as in C.
const std::array<DTypePair, 6>& dtype_pairs() {
  static const std::array<DTypePair, 6> pairs{{{aoti_torch_dtype_float32(), DType::kFloat32},
                                               {aoti_torch_dtype_bfloat16(), DType::kBFloat16},
                                               {aoti_torch_dtype_float16(), DType::kFloat16},
                                               {aoti_torch_dtype_int32(), DType::kInt32},
                                               {aoti_torch_dtype_bool(), DType::kBool},
                                               {aoti_torch_dtype_uint8(), DType::kBool}}};
  return pairs;
}

/// The types that come by mistake: torch's default for integers, and NumPy's for numbers.
const char* wide_type(std::int32_t torch_dtype) {
  if (torch_dtype == aoti_torch_dtype_int64()) return "type int64";
  if (torch_dtype == aoti_torch_dtype_float64()) return "type float64";
  return "a type that foveal does not take";
}

DType dtype_of(const char* name, const Tensor& tensor) {
  std::int32_t torch_dtype = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &torch_dtype));
  for (const DTypePair& pair : dtype_pairs()) {
    if (pair.torch_dtype == torch_dtype) return pair.dtype;
  }
  raise_invalid(std::string(name) + " has elements of " + wide_type(torch_dtype) +
                ": float16, bfloat16 and float32 are allowed, int32 for lengths and pages, bool "
                "for masks");
}

std::int32_t torch_dtype_of(DType dtype) {
  for (const DTypePair& pair : dtype_pairs()) {
    if (pair.dtype == dtype) return pair.torch_dtype;
  }
  return aoti_torch_dtype_float32();
}

}  // namespace

TensorSpec spec_of(const char* name, const Tensor& tensor, Layout layout) {
  TensorSpec spec;
  spec.dtype = dtype_of(name, tensor);
  const auto sizes = tensor.sizes();
  if (sizes.size() > TensorSpec::kMaxRank) {
    raise_invalid(std::string(name) + " has " + std::to_string(sizes.size()) +
                  " dimensions: at most " + std::to_string(TensorSpec::kMaxRank));
  }
  spec.rank = static_cast<std::int32_t>(sizes.size());
  std::int64_t* strides = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor.get(), &strides));
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    spec.shape[axis] = sizes[axis];
    spec.strides[axis] = strides[axis];
  }
  if (layout == Layout::kBhsd && spec.rank == 4) {
    std::swap(spec.shape[1], spec.shape[2]);
    std::swap(spec.strides[1], spec.strides[2]);
  }
  return spec;
}

bool same_device(const Tensor& tensor, const Tensor& anchor) {
  return tensor.is_cpu() == anchor.is_cpu() &&
         (anchor.is_cpu() || tensor.get_device_index() == anchor.get_device_index());
}

void check_device(const char* name, const Tensor& tensor, const Tensor& anchor) {
  if (same_device(tensor, anchor)) return;
  const auto where = [](const Tensor& t) {
    return t.is_cpu() ? std::string("the CPU") : "GPU " + std::to_string(t.get_device_index());
  };
  raise_invalid(std::string(name) + " is on " + where(tensor) + " and others are on " +
                where(anchor) + ": all operands must be on one device");
}

Tensor empty_operand(const Tensor& like, const TensorSpec& spec, Layout layout) {
  std::array<std::int64_t, TensorSpec::kMaxRank> shape = spec.shape;
  std::array<std::int64_t, TensorSpec::kMaxRank> strides{};
  std::int64_t stride = 1;
  for (std::int32_t axis = spec.rank - 1; axis >= 0; --axis) {
    strides[static_cast<std::size_t>(axis)] = stride;
    stride *= std::max<std::int64_t>(shape[static_cast<std::size_t>(axis)], 1);
  }
  if (layout == Layout::kBhsd && spec.rank == 4) {
    std::swap(shape[1], shape[2]);
    std::swap(strides[1], strides[2]);
  }
  std::int32_t device_type = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  AtenTensorHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(spec.rank, shape.data(), strides.data(),
                                                         torch_dtype_of(spec.dtype), device_type,
                                                         like.get_device_index(), &handle));
  return Tensor(handle);
}

Tensor empty_gradient(const Tensor& tensor) {
  const std::int64_t rank = tensor.dim();
  if (rank == 0 || tensor.stride(rank - 1) == 1) return torch::stable::empty_like(tensor);
  return torch::stable::new_empty(tensor, tensor.sizes());
}

Tensor no_tensor(const Tensor& like, DType dtype) {
  return empty_operand(like, TensorSpec::contiguous(dtype, {0}));
}

}  // namespace foveal::python
