#include "capi/tensor_view.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/format.hpp"

namespace foveal::capi {
namespace {

/// Later DLPack headers call it kDLBool.
constexpr std::uint8_t kBoolCode = 6;

DType to_dtype(const DLDataType& dtype) {
  if (dtype.lanes != 1) return DType::kNone;
  switch (dtype.code) {
    case kDLFloat:
      if (dtype.bits == 16) return DType::kFloat16;
      return dtype.bits == 32 ? DType::kFloat32 : DType::kNone;
    case kDLBfloat: return dtype.bits == 16 ? DType::kBFloat16 : DType::kNone;
    case kDLInt: return dtype.bits == 32 ? DType::kInt32 : DType::kNone;
    case kBoolCode:
    case kDLUInt: return dtype.bits == 8 ? DType::kBool : DType::kNone;
    default: return DType::kNone;
  }
}

/// A product that leaves 64 bits wraps; validate() refuses such a shape.
std::int64_t wrapping_product(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

bool has_elements(std::span<const std::int64_t> shape) {
  for (const std::int64_t extent : shape) {
    if (extent < 1) return false;
  }
  return true;
}

}  // namespace

Status read_spec(const char* name, const DLTensor& tensor, TensorSpec& spec) {
  const DType dtype = to_dtype(tensor.dtype);
  if (dtype == DType::kNone) {
    return Status::invalid_argument(concat(name, " has elements of type ", dtype_text(tensor.dtype),
                                           ": float16, bfloat16 and float32 are allowed, int32 "
                                           "for lengths and pages, bool and uint8 for masks"));
  }
  if (tensor.ndim < 1 || tensor.ndim > TensorSpec::kMaxRank) {
    return Status::invalid_argument(
        concat(name, " has ", tensor.ndim, " dimensions: between 1 and 4 are allowed"));
  }
  if (tensor.shape == nullptr) {
    return Status::invalid_argument(concat(name, " has no shape: its pointer is null"));
  }
  spec.dtype = dtype;
  spec.rank = tensor.ndim;
  const auto rank = static_cast<std::size_t>(tensor.ndim);
  const bool any_address = tensor.strides != nullptr && has_elements({tensor.shape, rank});
  std::int64_t contiguous = 1;
  for (std::size_t axis = rank; axis-- > 0;) {
    const std::int64_t extent = tensor.shape[axis];
    spec.shape[axis] = extent;
    spec.strides[axis] = any_address && extent != 1 ? tensor.strides[axis] : contiguous;
    if (extent > 1) contiguous = wrapping_product(contiguous, extent);
  }
  return Status::ok();
}

Status read_device(const char* name, const DLDevice& device, Device& result) {
  switch (device.device_type) {
    case kDLCPU:
    case kDLCUDAHost: result = Device::cpu(); return Status::ok();
    case kDLCUDA:
    case kDLCUDAManaged: result = Device::cuda(device.device_id); return Status::ok();
    default:
      return Status::invalid_argument(concat(name, " is on a device of DLPack type ",
                                             static_cast<int>(device.device_type),
                                             ": the CPU (1 or 3) and CUDA (2 or 13) are allowed"));
  }
}

std::string device_text(const Device& device) {
  if (device.type == DeviceType::kCpu) return "cpu";
  return concat("cuda:", device.index);
}

std::string dtype_text(const DLDataType& dtype) {
  const char* kind = nullptr;
  switch (dtype.code) {
    case kDLInt: kind = "int"; break;
    case kDLUInt: kind = "uint"; break;
    case kDLFloat: kind = "float"; break;
    case kDLBfloat: kind = "bfloat"; break;
    case kDLComplex: kind = "complex"; break;
    case kBoolCode: kind = "bool"; break;
    default: break;
  }
  std::string text = kind != nullptr
                         ? concat(kind, int{dtype.bits})
                         : concat("code ", int{dtype.code}, " with ", int{dtype.bits}, " bits");
  if (dtype.lanes != 1) text += concat(" x ", int{dtype.lanes}, " lanes");
  return text;
}

}  // namespace foveal::capi
